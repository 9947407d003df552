"""Fewest tokens in hand: prompts that wait and contexts that run. A baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from router.contract import Ask, Objective, Scored, View

__all__ = ["build", "why"]


def build() -> Objective:
    """Score by the tokens of the gateway's own calls; of foreign calls no engine tells the tokens."""

    def score(ask: Ask, views: Sequence[View], now: float) -> Mapping[str, Scored]:
        return {view.endpoint.name: Scored(float(view.tokens), {"tokens": float(view.tokens)}) for view in views}

    return score


def why(views: Sequence[View]) -> str:
    """By what order it goes."""
    return "fewest tokens in hand"
