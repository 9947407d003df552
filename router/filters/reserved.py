"""Keeps an ask from room that calls ahead of it in the queue wait for."""

from __future__ import annotations

from collections.abc import Collection

from router.contract import Ask, Filter, Removal, View

__all__ = ["keeping"]

_RESERVED = Removal("full", "others wait for it")


def keeping(names: Collection[str]) -> Filter:
    """A filter that removes these with `full`."""

    def judge(ask: Ask, view: View, now: float) -> Removal | None:
        return _RESERVED if view.endpoint.name in names else None

    return judge
