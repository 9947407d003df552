"""The router's book-keeping: turns verdicts into decisions, sends, ends attempts, and serves the queue in order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection

from msgspec import structs

from router.contract import Action, Ask, Decision
from router.draw import draw
from router.fleet import Fleet
from router.ledger import Course, Ledger
from router.policies import Policy, build
from router.queue import Queue, Waiting
from router.state import Live, Standing
from router.verdict import Verdict, judge, refuse

__all__ = ["Desk"]


class Desk:
    """All of a router's state.

    Attributes:
        counters: how often what was counted happened.
        sends: how many attempts were sent. now: the latest time heard of.
        stale: something happened that may let a queued ask go. woken: when the queue was last gone through.
        usable: who could serve at the last look, room aside.
        epoch: grows when queued asks may have more endpoints to choose from than they were judged by.
    """

    def __init__(self, fleet: Fleet, policy: str, seed: int) -> None:
        self.fleet = fleet
        self.ledger = Ledger()
        self.queue = Queue()
        self.counters: Counter[str] = Counter()
        self.sends = 0
        self.now = -math.inf
        self.stale = False
        self.woken = -math.inf
        self.usable: set[str] = set()
        self.epoch = 0
        self._seed = seed
        self._default = policy
        self._policies: dict[str, Policy] = {policy: build(policy)}

    def policy(self, name: str | None) -> Policy:
        """A policy by name, the router's own for None. Raises ValueError for one that is not known."""
        name = self._default if name is None else name
        if name not in self._policies:
            self._policies[name] = build(name)
        return self._policies[name]

    def miss(self, attempt: str) -> None:
        """An event came for an attempt that does not live, or came twice."""
        known = attempt in self.ledger.live or self.ledger.ended(attempt)
        self.counters["late_events" if known else "unknown_attempts"] += 1

    def widened(self) -> None:
        """Queued asks may have more endpoints to choose from."""
        self.epoch += 1
        self.stale = True

    # -- attempts

    def place(self, course: Course, attempt: str, now: float, may_wait: bool = True) -> Decision:
        """Judge an ask that comes now: send it, queue it, or refuse it. It overtakes nobody in the queue."""
        verdict = self._judge(course, attempt, now, self.queue.wanted)
        if self._goes(course, verdict, now):
            return self._send(course, attempt, verdict, now)
        if self._overdue(course.ask, now):
            verdict = structs.replace(verdict, reason="deadline", retry_after=None)
        elif verdict.wants and may_wait and not self.queue.full:
            # Room kept for others may still be this one's, by priority: let the next wake decide.
            self.stale |= bool(self.queue.wanted)
            self._enqueue(course, attempt, verdict, now)
            return self._decision(course, attempt, verdict, "wait", reason="full")
        elif verdict.wants and may_wait:
            verdict = structs.replace(verdict, reason="queue_full")
        return self._reject(course, attempt, verdict)

    def refuse(self, ask: Ask, attempt: str, reason: str, now: float) -> Decision:
        """A rejection without judging, for a retry or a hedge that has no ask to decide about."""
        return self._reject(Course(ask=ask, policy=self._default), attempt, refuse(ask, self.fleet.views, reason, now))

    def dispatch(self, standing: Standing, ask: Ask, attempt: str, now: float, mirror: bool = False) -> None:
        """An attempt is on its way."""
        expected = standing.ttft if ask.kind == "generate" and not ask.stream else None
        live = Live(
            id=attempt,
            ask=ask.id,
            endpoint=standing.endpoint.name,
            dispatched=now,
            kind=ask.kind,
            stream=ask.stream,
            sequences=max(1, ask.sequences),
            prompt_tokens=max(0, ask.prompt_tokens),
            mirror=mirror,
            expected=None if expected is None else now + expected,
        )
        self.ledger.send(live)
        standing.enter(live)
        if not mirror:
            self.sends += 1
            standing.sent = self.sends
            standing.breaker.sent(attempt, now)

    def end(self, attempt: str) -> tuple[Live | None, Standing | None]:
        """An attempt ends: it, and its endpoint where that is still there."""
        live = self.ledger.end(attempt)
        if live is None:
            self.miss(attempt)
            return None, None
        self.stale = True
        standing = self.fleet.get(live.endpoint)
        if standing is not None:
            standing.leave(attempt)
        return live, standing

    def blame(self, standing: Standing, live: Live, failure: str, retry_after: float | None, now: float) -> None:
        """An attempt failed. Overload rests the endpoint; all else counts against it. Mirrors do neither."""
        if live.mirror:
            return
        stated = retry_after is not None and retry_after >= 0.0
        if stated and retry_after:
            self.fleet.hold(standing, retry_after, now)
        if failure == "overload":
            standing.breaker.released(live.id)
            if not stated:
                standing.back_off(now)
        else:
            standing.breaker.failed(live.id, now)

    # -- the queue

    def withdraw(self, attempt: str) -> None:
        """A queued ask is wanted no longer."""
        self.queue.take(attempt)
        self.ledger.withdraw(attempt)
        self.stale = True

    def attempt(self, course: Course) -> str:
        """The id to decide about: where the ask is queued already, the one that it waits under, out of the queue."""
        attempt = course.waiting
        if attempt is None:
            return self.ledger.next_attempt(course)
        self._unqueue(course)
        return attempt

    def wake(self, now: float) -> list[Decision]:
        """Go through the queue where that may change something."""
        if not self.queue or not (self.stale or now >= self._next_moment()):
            return []
        self.stale, self.woken = False, now
        decisions = [self._reject_overdue(waiting, now) for waiting in self.queue.overdue(now)]
        usable = self._look(now)
        free = self.fleet.usable(now)
        ahead: set[str] = set()
        for waiting in self.queue.in_order():
            known = waiting.epoch == self.epoch
            may_go = not free.isdisjoint(waiting.wants) if known else bool(free)
            if not may_go and not usable.isdisjoint(waiting.wants):
                continue
            decision = self._rejudge(waiting, ahead, now)
            if decision is None:
                # What this one wants is kept for it: a small call must not starve a large one.
                ahead |= waiting.wants
                free -= waiting.wants
                continue
            decisions.append(decision)
            if decision.endpoint is not None and not self.fleet.serves(self.fleet.by_name[decision.endpoint], now):
                free.discard(decision.endpoint)
        return decisions

    def next_wake(self) -> float | None:
        """When the queue is next worth going through."""
        if not self.queue:
            return None
        moment = self.now if self.stale else self._next_moment()
        return moment if moment < math.inf else None

    def _unqueue(self, course: Course) -> None:
        if course.waiting is not None:
            self.queue.take(course.waiting)
            self.ledger.unwait(course)

    def _look(self, now: float) -> set[str]:
        """Who could serve now, room aside. One more than at the last look: queued asks do not know of it."""
        usable = self.fleet.usable(now, room=False)
        self.epoch += not usable <= self.usable
        self.usable = usable
        return usable

    def _next_moment(self) -> float:
        return min(self.queue.next_deadline(), self.fleet.next_moment(self.woken))

    def _enqueue(self, course: Course, attempt: str, verdict: Verdict, now: float) -> None:
        ask = course.ask
        self._look(now)
        if not self.queue:
            # It has just been judged: nothing that happened before is news to it.
            self.stale, self.woken = False, now
        waiting = Waiting(
            attempt=attempt,
            ask=ask.id,
            priority=ask.priority,
            arrived=now if ask.arrived is None else ask.arrived,
            number=self.queue.number,
            deadline=ask.deadline,
            wants=verdict.wants,
            epoch=self.epoch,
        )
        self.counters["queued"] += 1
        self.queue.add(waiting)
        self.ledger.wait(course, attempt)

    def _rejudge(self, waiting: Waiting, ahead: Collection[str], now: float) -> Decision | None:
        """Judge a queued ask anew; None where it goes on waiting."""
        course = self.ledger.courses[waiting.ask]
        verdict = self._judge(course, waiting.attempt, now, ahead)
        if verdict.wants and not verdict.ranking:
            self.queue.judged(waiting, verdict.wants, self.epoch)
            return None
        self._unqueue(course)
        if self._goes(course, verdict, now):
            return self._send(course, waiting.attempt, verdict, now)
        return self._reject(course, waiting.attempt, verdict)

    def _reject_overdue(self, waiting: Waiting, now: float) -> Decision:
        course = self.ledger.courses[waiting.ask]
        self._unqueue(course)
        verdict = self._judge(course, waiting.attempt, now, ())
        return self._reject(course, waiting.attempt, structs.replace(verdict, reason="deadline", retry_after=None))

    # -- one verdict

    def _judge(self, course: Course, attempt: str, now: float, ahead: Collection[str]) -> Verdict:
        policy = self.policy(course.policy)
        drawn = draw(self._seed, attempt)
        return judge(course.ask, self.fleet.views, policy, now, drawn, been=course.tried, ahead=ahead)

    def _goes(self, course: Course, verdict: Verdict, now: float) -> bool:
        return bool(verdict.ranking) and not self._overdue(course.ask, now)

    @staticmethod
    def _overdue(ask: Ask, now: float) -> bool:
        return ask.deadline is not None and now >= ask.deadline

    def _send(self, course: Course, attempt: str, verdict: Verdict, now: float) -> Decision:
        chosen = verdict.ranking[0]
        decision = self._decision(course, attempt, verdict, "send", endpoint=chosen, reason=verdict.reason)
        self.dispatch(self.fleet.by_name[chosen], course.ask, attempt, now)
        return decision

    def _reject(self, course: Course, attempt: str, verdict: Verdict) -> Decision:
        self.counters["rejected"] += 1
        self.ledger.forget(course)
        return self._decision(
            course, attempt, verdict, "reject", reason=verdict.reason, retry_after=verdict.retry_after
        )

    @staticmethod
    def _decision(
        course: Course,
        attempt: str,
        verdict: Verdict,
        action: Action,
        endpoint: str | None = None,
        reason: str = "",
        retry_after: float | None = None,
    ) -> Decision:
        return Decision(
            id=course.ask.id,
            attempt=attempt,
            action=action,
            endpoint=endpoint,
            ranking=verdict.ranking,
            candidates=verdict.candidates,
            retry_after=retry_after,
            propensities=verdict.propensities if action == "send" else {},
            policy=course.policy,
            reason=reason,
        )
