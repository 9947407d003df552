"""Measured time by calls in flight, the better of two drawn at random. A baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from router.contract import Ask, Objective, Scored, View
from router.ranks import burden, slowdowns

__all__ = ["PICKER", "build", "why"]

PICKER = "two_choices"


def build() -> Objective:
    """Score: how many times slower than the fastest such a call has been there, times calls in flight with this one.

    One that was never measured is taken to be as slow as the slowest that was.
    """

    def score(ask: Ask, views: Sequence[View], now: float) -> Mapping[str, Scored]:
        scored: dict[str, Scored] = {}
        for view, ratio in zip(views, slowdowns(ask, views, now), strict=True):
            calls = burden(view, now)
            scored[view.endpoint.name] = Scored(ratio * (calls + 1), {"slowdown": ratio, "calls": float(calls)})
        return scored

    return score


def why(views: Sequence[View]) -> str:
    """By what order it goes."""
    return "the better of two drawn"
