"""Each in turn: the one whose last call was longest ago. A baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from router.contract import Ask, Objective, Scored, View

__all__ = ["build", "why"]


def build() -> Objective:
    """Score by the number of the last send. Endpoints that come, go or fill up do not disturb the turn of others."""

    def score(ask: Ask, views: Sequence[View], now: float) -> Mapping[str, Scored]:
        return {view.endpoint.name: Scored(float(view.sent), {"last_send": float(view.sent)}) for view in views}

    return score


def why(views: Sequence[View]) -> str:
    """By what order it goes."""
    return "each in turn"
