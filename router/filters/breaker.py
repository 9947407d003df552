"""Keeps asks from engines that keep failing."""

from __future__ import annotations

from router.contract import Ask, Removal, View

__all__ = ["judge"]


def judge(ask: Ask, view: View, now: float) -> Removal | None:
    """`breaker_open` while the endpoint's breaker is open, or half open with its trial under way."""
    seconds = view.broken_for(now)
    return Removal("breaker_open", f"{seconds:.1f} s") if seconds > 0.0 else None
