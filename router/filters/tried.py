"""Keeps an ask from the endpoints that it has been to."""

from __future__ import annotations

from collections.abc import Collection

from router.contract import Ask, Filter, Removal, View

__all__ = ["excluding"]

_TRIED = Removal("tried")


def excluding(names: Collection[str]) -> Filter:
    """A filter that removes these with `tried`."""

    def judge(ask: Ask, view: View, now: float) -> Removal | None:
        return _TRIED if view.endpoint.name in names else None

    return judge
