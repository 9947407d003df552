"""Which asks are under way and which attempts of theirs live: every attempt has one entry, and ends once."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from router.contract import Ask
from router.state import Live

__all__ = ["REMEMBERED", "Course", "Ledger"]

REMEMBERED = 8_192
"""Ended attempts that are remembered, so that a late event is told from one that was never ours."""


class Course(msgspec.Struct):
    """One ask from its first decision to its last attempt's end.

    `tried`: endpoints it was sent to, in order. `live`: its attempts in flight, mirrors left out. `waiting`: the
    attempt id under which it is queued. `attempts`: how many ids were given.
    """

    ask: Ask
    policy: str
    tried: list[str] = []
    live: dict[str, str] = {}
    waiting: str | None = None
    attempts: int = 0


class Ledger:
    """Asks and attempts by id. Holds what is under way and a bounded memory of what has ended, nothing else.

    `courses` by ask id, `live` by attempt id, `waiting`: attempt id -> ask id of those that are queued.
    """

    def __init__(self) -> None:
        self.courses: dict[str, Course] = {}
        self.live: dict[str, Live] = {}
        self.waiting: dict[str, str] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()

    def begin(self, ask: Ask, policy: str) -> Course:
        """The course of an ask: a new one, or that of an ask of this id which is still under way."""
        course = self.courses.get(ask.id)
        if course is None:
            course = self.courses[ask.id] = Course(ask=ask, policy=policy)
        else:
            course.ask, course.policy = ask, policy
        return course

    def next_attempt(self, course: Course) -> str:
        """The ask's own id at first, then "id/2", "id/3", ..., never one in use."""
        while True:
            course.attempts += 1
            attempt = course.ask.id if course.attempts == 1 else f"{course.ask.id}/{course.attempts}"
            if not self._in_use(attempt):
                return attempt

    def next_mirror(self, ask: Ask) -> str:
        """The first of "id/m1", "id/m2", ... that is neither in use nor just ended."""
        number = 1
        while self._in_use(attempt := f"{ask.id}/m{number}") or attempt in self._ended:
            number += 1
        return attempt

    def send(self, live: Live) -> None:
        """An attempt begins."""
        self.live[live.id] = live
        self._ended.pop(live.id, None)
        if not live.mirror:
            course = self.courses[live.ask]
            course.live[live.id] = live.endpoint
            course.tried.append(live.endpoint)

    def end(self, attempt: str) -> Live | None:
        """An attempt ends; None where it is none of those that live."""
        live = self.live.pop(attempt, None)
        if live is None:
            return None
        self._remember(attempt)
        if not live.mirror:
            self.courses[live.ask].live.pop(attempt, None)
        return live

    def forget(self, course: Course) -> None:
        """Drop an ask of which nothing lives or waits any more."""
        if not course.live and course.waiting is None and self.courses.get(course.ask.id) is course:
            del self.courses[course.ask.id]

    def wait(self, course: Course, attempt: str) -> None:
        """The ask is queued; it will be sent as this attempt."""
        course.waiting = attempt
        self.waiting[attempt] = course.ask.id

    def unwait(self, course: Course) -> None:
        """It is queued no longer."""
        if course.waiting is not None:
            self.waiting.pop(course.waiting, None)
            course.waiting = None

    def withdraw(self, attempt: str) -> None:
        """A queued ask ended without having been sent."""
        course = self.courses[self.waiting[attempt]]
        self.unwait(course)
        self._remember(attempt)
        self.forget(course)

    def ended(self, attempt: str) -> bool:
        """Whether this attempt was ours and ended lately."""
        return attempt in self._ended

    def _in_use(self, attempt: str) -> bool:
        return attempt in self.live or attempt in self.waiting

    def _remember(self, attempt: str) -> None:
        self._ended[attempt] = None
        self._ended.move_to_end(attempt)
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)
