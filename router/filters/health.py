"""Keeps asks from engines that do not serve now. Unknown and degraded ones serve; they rank behind ready ones."""

from __future__ import annotations

from router.contract import Ask, Removal, View

__all__ = ["judge"]

_SERVES = frozenset({"unknown", "ready", "degraded"})
_REMOVALS = {word: Removal(word) for word in ("loading", "draining", "down")}


def judge(ask: Ask, view: View, now: float) -> Removal | None:
    """`loading`, `draining` or `down`, by the last word pushed."""
    return None if view.health in _SERVES else _REMOVALS[view.health]
