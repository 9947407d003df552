"""Keeps asks from engines that asked to be left alone."""

from __future__ import annotations

from router.contract import Ask, Removal, View

__all__ = ["judge"]


def judge(ask: Ask, view: View, now: float) -> Removal | None:
    """`on_hold` until the time that the endpoint, or one of its quota group, asked for has passed."""
    seconds = view.held_for(now)
    return Removal("on_hold", f"{seconds:.1f} s") if seconds > 0.0 else None
