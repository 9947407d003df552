"""The least score; equals take turns by the draw."""

from __future__ import annotations

from collections.abc import Mapping

from router.contract import Scored

__all__ = ["pick"]


def pick(scored: Mapping[str, Scored], draw: float) -> tuple[tuple[str, ...], Mapping[str, float]]:
    """Rank by score. Each of k equal best ones comes first with probability 1/k, whatever order they came in."""
    order = sorted((entry.score, name) for name, entry in scored.items())
    if not order:
        return (), {}
    least = order[0][0]
    equals = 1
    while equals < len(order) and order[equals][0] == least:
        equals += 1
    turn = int(draw * equals)
    names = [name for _, name in order]
    ranking = names[turn:equals] + names[:turn] + names[equals:]
    share = 1.0 / equals
    return tuple(ranking), {name: share if place < equals else 0.0 for place, name in enumerate(names)}
