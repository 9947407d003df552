"""The router: sole owner of in-flight counts, load, health, breakers and learnt models."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

from router import learning, snapshot
from router.contract import Ask, Decision, Endpoint, EndpointState, Failure, Load, Outcome
from router.desk import Desk
from router.fleet import Fleet

__all__ = ["Router"]

_FAILURES = frozenset(get_args(Failure))
_OUTCOMES = frozenset(get_args(Outcome))


class Router:
    """Decides which endpoint takes a call, and learns from what comes of it (DESIGN 5.1).

    Times are seconds on any one monotonic clock. Events may come late, twice, or for attempts and endpoints that are
    not known: they are then counted (`counters`) and change nothing. One caller at a time: it is not made for threads.

    Args:
        endpoints: any order; it decides nothing. Names must differ.
        policy: the default one, by name (`router.policies.names()`).
        seed: of the random draws; the same seed, events and times give the same decisions.

    Raises:
        ValueError: a name comes twice, or the policy is not known.
    """

    def __init__(self, endpoints: Iterable[Endpoint] = (), policy: str = "adaptive", seed: int = 0) -> None:
        self._fleet = Fleet(endpoints)
        self._desk = Desk(self._fleet, policy, seed)
        self._dumped_at: float | None = None  # the restored dump's time, until the first event tells our clock

    @property
    def counters(self) -> dict[str, int]:
        """How often it happened: sent, queued, rejected, unknown_attempts, late_events, unknown_endpoints,
        reused_ids. What never happened is absent."""
        counts = {**self._desk.counters, "sent": self._desk.sends}
        return {name: count for name, count in sorted(counts.items()) if count}

    # -- decisions

    def decide(self, ask: Ask, now: float, policy: str | None = None) -> Decision:
        """Where a call goes. With "send" it counts as dispatched; with "wait" it is queued (see `wake`).

        An ask of an id that waits already is decided anew; one of an id that is in flight gets a further attempt.

        Args:
            policy: another than the router's own, for this ask.

        Raises:
            ValueError: the policy is not known.
        """
        name = self._desk.policy(policy).name
        self._tick(now)
        course = self._desk.ledger.begin(ask, name)
        if course.attempts and course.waiting is None:
            self._desk.counters["reused_ids"] += 1
            course.tried.clear()
        return self._desk.place(course, self._desk.attempt(course), now)

    def retry(self, attempt: str, now: float, failure: Failure = "error", retry_after: float | None = None) -> Decision:
        """End a failed attempt and decide anew, without the endpoints that this ask has been to.

        `overload` is no fault of the endpoint's: it rests for `retry_after` seconds, with all of its quota group,
        or counts as full for a moment where no time was named. Every other failure counts against it.
        """
        if failure not in _FAILURES:
            raise ValueError(f"unknown failure {failure!r}; known are {', '.join(sorted(_FAILURES))}")
        self._tick(now)
        live, standing = self._desk.end(attempt)
        if live is None:
            return self._desk.refuse(Ask(id=attempt), attempt, "unknown_attempt", now)
        if standing is not None:
            self._desk.blame(standing, live, failure, retry_after, now)
        if live.mirror:
            return self._desk.refuse(Ask(id=live.ask), attempt, "mirror", now)
        course = self._desk.ledger.courses[live.ask]
        return self._desk.place(course, self._desk.attempt(course), now)

    def hedge(self, id: str, now: float) -> Decision:
        """A second live attempt of an ask, elsewhere. It never waits: the first attempt still lives."""
        self._tick(now)
        ledger = self._desk.ledger
        live = ledger.live.get(id)
        course = ledger.courses.get(id if live is None else live.ask)
        if course is None or not course.live:
            self._desk.miss(id)
            return self._desk.refuse(Ask(id=id), id, "unknown_attempt", now)
        return self._desk.place(course, ledger.next_attempt(course), now, may_wait=False)

    def mirror(self, ask: Ask, endpoint: str, now: float) -> str:
        """A shadow attempt: in flight and learning there, without a decision, a retry or a word to the breaker.

        Returns its attempt id. Where the endpoint is not known, events under that id are ignored.
        """
        self._tick(now)
        attempt = self._desk.ledger.next_mirror(ask)
        standing = self._fleet.get(endpoint)
        if standing is None:
            self._knows(False)
        else:
            self._desk.dispatch(standing, ask, attempt, now, mirror=True)
        return attempt

    # -- events

    def first_token(self, attempt: str, now: float) -> None:
        """The first event that carries content came. It teaches the attempt's TTFT."""
        self._tick(now)
        live = self._desk.ledger.live.get(attempt)
        if live is None or live.first is not None:
            self._desk.miss(attempt)
            return
        live.first = now
        standing = self._fleet.get(live.endpoint)
        if standing is None:
            return
        standing.start(live)
        if live.kind == "generate":
            standing.model.ttft.add(now - live.dispatched, now)
        if not live.mirror:
            standing.overloads = 0
            if standing.breaker.answered(attempt):
                self._desk.stale = True

    def progress(self, attempt: str, output_tokens: int, now: float) -> None:
        """Output tokens so far."""
        self._tick(now)
        live = self._desk.ledger.live.get(attempt)
        if live is None:
            self._desk.miss(attempt)
            return
        standing = self._fleet.get(live.endpoint)
        if standing is not None:
            standing.grow(live, output_tokens)

    def finish(
        self,
        attempt: str,
        now: float,
        outcome: Outcome = "ok",
        prompt_tokens: int | None = None,
        output_tokens: int | None = None,
        cached_tokens: int | None = None,
        last_token: float | None = None,
        engine_prefill: float | None = None,
        engine_decode: float | None = None,
    ) -> None:
        """An attempt ended, or an ask that was told to wait is withdrawn.

        Args:
            outcome: only "ok" teaches; "cancelled" ends the attempt's share and no more.
            output_tokens: over all sequences, by the engine's count.
            last_token: when it came; now where it is not given.
            engine_prefill, engine_decode: seconds that the engine itself states.
        """
        if outcome not in _OUTCOMES:
            raise ValueError(f"unknown outcome {outcome!r}; known are {', '.join(sorted(_OUTCOMES))}")
        self._tick(now)
        if attempt in self._desk.ledger.waiting:
            self._desk.withdraw(attempt)
            return
        live, standing = self._desk.end(attempt)
        if live is None:
            return
        if not live.mirror:
            self._desk.ledger.forget(self._desk.ledger.courses[live.ask])
        if standing is None:
            return
        if outcome == "ok":
            ending = learning.Ending(output_tokens, last_token, engine_prefill, engine_decode)
            learning.learn(standing.model, live, ending, now)
            if not live.mirror:
                standing.overloads = 0
                standing.breaker.succeeded(attempt, now)
        elif outcome == "cancelled":
            standing.breaker.released(attempt)
        else:
            self._desk.blame(standing, live, outcome, None, now)

    def wake(self, now: float) -> list[Decision]:
        """Decisions for queued asks that can go now ("send"), or never ("reject"). Call it after every event."""
        self._tick(now)
        return self._desk.wake(now)

    def next_wake(self) -> float | None:
        """When `wake` is next worth calling; None while nothing waits. A time that has passed means at once."""
        return self._desk.next_wake()

    # -- the fleet

    def set_endpoint(self, endpoint: Endpoint, now: float) -> None:
        """Add an endpoint, or change one. A change of engine forgets what was learnt of it."""
        self._tick(now)
        self._fleet.put(endpoint)
        self._desk.widened()

    def remove(self, name: str, now: float) -> None:
        """Take an endpoint away. Attempts that it carries end silently, later."""
        self._tick(now)
        self._knows(self._fleet.remove(name))

    def set_load(self, name: str, load: Load, now: float) -> None:
        """What the engine says of its load. What is not ours in it is foreign load, believed for 30 s."""
        self._tick(now)
        self._knows(self._fleet.set_load(name, load, now))

    def set_health(self, name: str, health: str, now: float, why: str = "") -> None:
        """What a probe found: unknown, loading, ready, degraded, draining or down. Raises ValueError for others.

        `why` is the cause in a few words. Clients may be shown it, so it holds no address, path or secret.
        """
        self._tick(now)
        self._knows(self._fleet.set_health(name, health, now, why))

    def states(self, now: float) -> dict[str, EndpointState]:
        """How every endpoint stands, by name."""
        self._tick(now)
        return self._fleet.states(now)

    # -- memory

    def dump(self) -> bytes:
        """All that the router knows, as bytes: the same state gives the same bytes."""
        return snapshot.encode(self._desk)

    def restore(self, data: bytes, live: bool = True) -> None:
        """Take over a dump. Endpoints stay as configured; of those in the dump only these are looked at.

        Args:
            live: also what is under way: attempts, the queue, health, load and counters; what was under way here is
                dropped. A new process passes False, as the attempts of the old one are gone: then only models,
                breakers and holds are taken, and where the clock has started anew they are moved along.

        Raises:
            ValueError: the data is corrupt, of another version, or names a policy that is not known. Nothing has
                changed then.
        """
        found = snapshot.decode(data)
        if live:
            snapshot.whole(found, self._desk)
            self._dumped_at = None
        else:
            snapshot.learnt(found, self._desk)
            self._dumped_at = found.now

    def _tick(self, now: float) -> None:
        if self._dumped_at is not None:
            if now < self._dumped_at:
                self._fleet.shift(now - self._dumped_at)
            self._dumped_at = None
        if now > self._desk.now:
            self._desk.now = now

    def _knows(self, known: bool) -> None:
        """Count what was said of an endpoint that is not there; else the queue may move."""
        if known:
            self._desk.stale = True
        else:
            self._desk.counters["unknown_endpoints"] += 1
