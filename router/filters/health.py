"""Keeps asks from engines that do not serve now. Unknown and degraded ones serve; they rank behind ready ones."""

from __future__ import annotations

from router.contract import Ask, Removal, View

__all__ = ["judge"]

_SERVES = frozenset({"unknown", "ready", "degraded"})


def judge(ask: Ask, view: View, now: float) -> Removal | None:
    """`loading`, `draining` or `down`, by the last word pushed, with its cause."""
    return None if view.health in _SERVES else Removal(view.health, view.why)
