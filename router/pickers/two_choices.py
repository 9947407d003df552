"""The better of two drawn at random: nearly as even as the best of all, without every caller rushing to one."""

from __future__ import annotations

from collections.abc import Mapping

from router.contract import Scored

__all__ = ["pick"]


def pick(scored: Mapping[str, Scored], draw: float) -> tuple[tuple[str, ...], Mapping[str, float]]:
    """Draw one of the n(n-1)/2 pairs and rank its better one first, then the rest by score.

    The draw's remainder within the pair's share decides between equals. Of n with different scores the k-th best
    (from 0) therefore comes first with probability 2(n-1-k) / n(n-1), and the worst of all never.
    """
    order = sorted((entry.score, name) for name, entry in scored.items())
    count = len(order)
    if count < 2:
        return tuple(name for _, name in order), {name: 1.0 for _, name in order}
    pairs = count * (count - 1) // 2
    place = draw * pairs
    index = int(place)
    first, second = _pair(index, count)
    if order[first][0] == order[second][0] and place - index >= 0.5:
        first = second
    chosen = order[first][1]
    ranking = (chosen, *(name for _, name in order if name != chosen))
    return ranking, _propensities(order, pairs)


def _pair(index: int, count: int) -> tuple[int, int]:
    """The index-th pair (i, j), i < j, of `count` places, in lexical order."""
    first = 0
    while index >= count - 1 - first:
        index -= count - 1 - first
        first += 1
    return first, first + 1 + index


def _propensities(order: list[tuple[float, str]], pairs: int) -> dict[str, float]:
    count = len(order)
    shares: dict[str, float] = {}
    for score, name in order:
        equals = sum(1 for other, _ in order if other == score)
        better = sum(1 for other, _ in order if other < score)
        # It wins against every worse one, and half of the draws against its equals.
        shares[name] = (count - better - equals + (equals - 1) / 2.0) / pairs
    return shares
