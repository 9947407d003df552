"""Keeps an ask from engines that cannot honour what it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from router.contract import Ask, Removal, View

__all__ = ["judge", "undeclared"]


def judge(ask: Ask, view: View, now: float) -> Removal | None:
    """`lacks_feature` where an endpoint says what it serves, and something needed is not among it."""
    declared = view.endpoint.limits.features
    if not ask.features or not declared or ask.features <= declared:
        return None
    return Removal("lacks_feature", ", ".join(sorted(ask.features - declared)))


def undeclared(ask: Ask, views: Sequence[View]) -> Mapping[str, Removal]:
    """Of the endpoints that could take the ask, those that say nothing, where another says that it can."""
    silent = [view.endpoint.name for view in views if not view.endpoint.limits.features]
    if not ask.features or not silent or len(silent) == len(views):
        return {}
    removal = Removal("feature_unknown", ", ".join(sorted(ask.features)))
    return dict.fromkeys(silent, removal)
