"""The asks that wait for room: by priority (larger first), then arrival."""

from __future__ import annotations

import bisect
import heapq
import math
from collections import Counter

import msgspec

__all__ = ["QUEUE_LONGEST", "Queue", "Waiting"]

QUEUE_LONGEST = 10_000


class Waiting(msgspec.Struct):
    """One ask in the queue, by the attempt id that it will be sent under.

    `wants` are the endpoints that had only no room for it when it was last judged, at the router's `epoch`.
    """

    attempt: str
    ask: str
    priority: int
    arrived: float
    number: int
    deadline: float | None = None
    wants: frozenset[str] = frozenset()
    epoch: int = -1

    @property
    def key(self) -> tuple[int, float, int]:
        return (-self.priority, self.arrived, self.number)


class Queue:
    """Bounded, ordered, and quick to say whose deadline has passed and which endpoints are wanted (`wanted`)."""

    def __init__(self, longest: int = QUEUE_LONGEST) -> None:
        self.longest = longest
        self._order: list[tuple[tuple[int, float, int], Waiting]] = []
        self._by_attempt: dict[str, Waiting] = {}
        self._deadlines: list[tuple[float, int, str]] = []
        self.number = 0
        self.wanted: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, attempt: str) -> bool:
        return attempt in self._by_attempt

    @property
    def full(self) -> bool:
        return len(self._order) >= self.longest

    def in_order(self) -> list[Waiting]:
        """A copy, first to be served first."""
        return [waiting for _, waiting in self._order]

    def add(self, waiting: Waiting) -> None:
        """Put one in its place. Its number must not have been used."""
        self.number = max(self.number, waiting.number + 1)
        self._by_attempt[waiting.attempt] = waiting
        self.wanted.update(waiting.wants)
        bisect.insort(self._order, (waiting.key, waiting), key=lambda entry: entry[0])
        if waiting.deadline is not None:
            heapq.heappush(self._deadlines, (waiting.deadline, waiting.number, waiting.attempt))

    def take(self, attempt: str) -> Waiting | None:
        """Remove one; None where it does not wait."""
        waiting = self._by_attempt.pop(attempt, None)
        if waiting is None:
            return None
        place = bisect.bisect_left(self._order, waiting.key, key=lambda entry: entry[0])
        del self._order[place]
        self._unwant(waiting.wants)
        if len(self._deadlines) > 2 * len(self._order) + 64:
            # Deadlines of asks that were served stay behind until their time; do not let them pile up.
            self._deadlines = [entry for entry in self._deadlines if self._stands(entry)]
            heapq.heapify(self._deadlines)
        return waiting

    def judged(self, waiting: Waiting, wants: frozenset[str], epoch: int) -> None:
        """One that waits was judged anew and goes on waiting."""
        self._unwant(waiting.wants)
        self.wanted.update(wants)
        waiting.wants, waiting.epoch = wants, epoch

    def overdue(self, now: float) -> list[Waiting]:
        """Those whose deadline has passed, earliest first. They stay until taken."""
        found: list[Waiting] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            entry = heapq.heappop(self._deadlines)
            if self._stands(entry):
                found.append(self._by_attempt[entry[2]])
        return found

    def next_deadline(self) -> float:
        """The earliest deadline, infinite where none is set."""
        while self._deadlines and not self._stands(self._deadlines[0]):
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else math.inf

    def _unwant(self, wants: frozenset[str]) -> None:
        for name in wants:
            self.wanted[name] -= 1
            if not self.wanted[name]:
                del self.wanted[name]

    def _stands(self, entry: tuple[float, int, str]) -> bool:
        waiting = self._by_attempt.get(entry[2])
        return waiting is not None and waiting.number == entry[1]
