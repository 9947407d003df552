"""Fewest calls in flight, own and foreign. A baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from router.contract import Ask, Objective, Scored, View
from router.ranks import burden

__all__ = ["build", "why"]


def build() -> Objective:
    """Score by calls in flight."""

    def score(ask: Ask, views: Sequence[View], now: float) -> Mapping[str, Scored]:
        counts = {view.endpoint.name: float(burden(view, now)) for view in views}
        return {name: Scored(calls, {"calls": calls}) for name, calls in counts.items()}

    return score


def why(views: Sequence[View]) -> str:
    """By what order it goes."""
    return "fewest calls in flight"
