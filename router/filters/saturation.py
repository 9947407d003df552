"""Keeps asks from engines without a free slot. The one removal that is worth waiting for."""

from __future__ import annotations

from router.contract import Ask, Removal, View

__all__ = ["judge"]


def judge(ask: Ask, view: View, now: float) -> Removal | None:
    """`full` where own and foreign sequences leave too few slots, or the endpoint said so a moment ago.

    An ask of more sequences than there are slots may go when nothing else is there.
    """
    seconds = view.busy_for(now)
    if seconds > 0.0:
        return Removal("full", f"said so, {seconds:.1f} s")
    slots = view.endpoint.limits.max_concurrency
    if slots is None:
        return None
    taken = view.sequences + view.foreign(now)
    if taken + max(1, ask.sequences) <= slots or (taken == 0 and slots > 0):
        return None
    return Removal("full", f"{taken} of {slots}")
