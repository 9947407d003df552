"""Measured time by calls in flight, the better of two drawn at random. A baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from router.contract import Ask, Objective, Scored, View
from router.ranks import burden, completion

__all__ = ["PICKER", "build"]

PICKER = "two_choices"

UNMEASURED_S = 1.0
"""Where nothing at all was measured, all count alike."""


def build() -> Objective:
    """Score: mean seconds of such a call there, times calls in flight with this one.

    One that was never measured is taken to be as slow as the slowest that was.
    """

    def score(ask: Ask, views: Sequence[View], now: float) -> Mapping[str, Scored]:
        times = [completion(ask, view) for view in views]
        default = max((seconds for seconds in times if seconds is not None), default=UNMEASURED_S)
        scored: dict[str, Scored] = {}
        for view, measured in zip(views, times, strict=True):
            seconds = default if measured is None else measured
            calls = burden(view, now)
            scored[view.endpoint.name] = Scored(seconds * (calls + 1), {"seconds": seconds, "calls": float(calls)})
        return scored

    return score
