"""How one endpoint stands: its limits, health, load, holds, breaker, model, and the attempts that it carries.

Gauges are sums over the set of live attempts: an attempt adds to them once, when it enters, and takes away exactly
what it added, when it leaves. So they cannot drift or go negative, however late or often events come.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable

import msgspec

from engines.contract import Load
from router.breaker import Breaker
from router.contract import AskKind, Endpoint
from router.model import Model

__all__ = ["BUSY_FIRST_S", "BUSY_LONGEST_S", "HOLD_LONGEST_S", "LOAD_FRESH_S", "Live", "Standing", "Tally"]

LOAD_FRESH_S = 30.0
"""An engine's word on its load is believed for this long."""
HOLD_LONGEST_S = 300.0
"""An engine that asks for a longer rest gets this much."""
BUSY_FIRST_S = 0.25
BUSY_LONGEST_S = 8.0
UNPROBED_S = 5.0
"""A new endpoint ranks behind ready ones for this long: then whoever probes has spoken, or nobody probes."""


class Live(msgspec.Struct):
    """One attempt in flight.

    `first` is when its first token came, `expected` when it was predicted to (calls that do not stream). `context`
    and `queued` are what it now adds to its endpoint's token gauges.
    """

    id: str
    ask: str
    endpoint: str
    dispatched: float
    kind: AskKind = "generate"
    stream: bool = True
    sequences: int = 1
    prompt_tokens: int = 0
    mirror: bool = False
    running: bool = False
    first: float | None = None
    expected: float | None = None
    output_tokens: int = 0
    context: int = 0
    queued: int = 0


class Tally(msgspec.Struct):
    """Attempts in flight over all endpoints of a router, mirrors left out."""

    inflight: int = 0


class Standing:
    """The mutable side of one endpoint; `router.contract.View` is how the steps of a policy see it."""

    __slots__ = (
        "_pending",
        "breaker",
        "busy_until",
        "context_tokens",
        "endpoint",
        "health",
        "health_at",
        "held_until",
        "inflight",
        "live",
        "load",
        "load_until",
        "model",
        "others",
        "overloads",
        "queued_tokens",
        "quotas",
        "sent",
        "sequences",
        "tally",
        "waiting",
        "why",
    )

    def __init__(self, endpoint: Endpoint, tally: Tally) -> None:
        self.endpoint = endpoint
        self.quotas = quotas(endpoint)
        self.health = "unknown"
        self.why = ""
        self.health_at: float | None = None
        self.tally = tally
        self.model = Model()
        self.breaker = Breaker()
        self.load: Load | None = None
        self.load_until = -math.inf
        self.others = 0
        self.held_until = -math.inf
        self.busy_until = -math.inf
        self.overloads = 0
        self.sent = 0
        self.live: dict[str, Live] = {}
        self.inflight = self.waiting = self.sequences = self.context_tokens = self.queued_tokens = 0
        self._pending: list[tuple[float, str]] = []

    # -- what policies read

    @property
    def tokens(self) -> int:
        return self.context_tokens + self.queued_tokens

    @property
    def ttft(self) -> float | None:
        return self.model.ttft.value

    @property
    def tpot(self) -> float | None:
        return self.model.tpot.value

    @property
    def total(self) -> float | None:
        return self.model.total.value

    @property
    def pool_inflight(self) -> int:
        return self.tally.inflight

    def age(self, now: float) -> float:
        lasts = [track.last for track in (self.model.ttft, self.model.tpot, self.model.total) if track.count]
        return max(0.0, now - max(lasts)) if lasts else 0.0

    def foreign(self, now: float) -> int:
        return self.others if now < self.load_until else 0

    def held_for(self, now: float) -> float:
        return max(0.0, self.held_until - now)

    def busy_for(self, now: float) -> float:
        return max(0.0, self.busy_until - now)

    def broken_for(self, now: float) -> float:
        return self.breaker.wait(now)

    def tier(self, now: float) -> int:
        """0: as good as any. 1: only where no other is left (degraded, or too new to have been probed)."""
        if self.health == "ready":
            return 0
        if self.health == "unknown" and self.health_at is not None and now - self.health_at >= UNPROBED_S:
            return 0
        return 1

    # -- attempts

    def enter(self, live: Live) -> None:
        """Carry an attempt from now on."""
        self.live[live.id] = live
        self.inflight += 1
        self.sequences += live.sequences
        if not live.mirror:
            self.tally.inflight += 1
        if live.running:
            live.context = live.prompt_tokens + live.output_tokens
            self.context_tokens += live.context
        else:
            live.queued = live.prompt_tokens
            self.waiting += 1
            self.queued_tokens += live.queued
            if live.expected is not None:
                heapq.heappush(self._pending, (live.expected, live.id))

    def leave(self, attempt: str) -> Live | None:
        """Carry it no longer. None where it was not here (the endpoint was removed meanwhile)."""
        live = self.live.pop(attempt, None)
        if live is None:
            return None
        self.inflight -= 1
        self.sequences -= live.sequences
        self.context_tokens -= live.context
        self.queued_tokens -= live.queued
        if not live.running:
            self.waiting -= 1
        if not live.mirror:
            self.tally.inflight -= 1
        live.context = live.queued = 0
        return live

    def start(self, live: Live) -> None:
        """Its prompt is done: it moves from the waiting to the running ones."""
        if live.running or live.id not in self.live:
            return
        live.running = True
        self.waiting -= 1
        self.queued_tokens -= live.queued
        live.queued = 0
        live.context = live.prompt_tokens + live.output_tokens
        self.context_tokens += live.context

    def grow(self, live: Live, output_tokens: int) -> None:
        """It has put out so many tokens so far; an older, smaller figure changes nothing."""
        more = output_tokens - live.output_tokens
        if more <= 0 or live.id not in self.live:
            return
        self.start(live)
        live.output_tokens = output_tokens
        live.context += more
        self.context_tokens += more

    def settle(self, now: float) -> None:
        """Bring what depends on time alone up to date."""
        if self.health_at is None:
            self.health_at = now
        while self._pending and self._pending[0][0] <= now:
            live = self.live.get(heapq.heappop(self._pending)[1])
            if live is not None:
                self.start(live)

    # -- what configuration, engines and probes say

    def change(self, endpoint: Endpoint) -> None:
        """Take a new configuration of the same name. Another engine: nothing that was learnt holds any more."""
        if endpoint.engine != self.endpoint.engine:
            self.model = Model()
            self.breaker = Breaker()
        self.endpoint = endpoint
        self.quotas = quotas(endpoint)

    def set_load(self, load: Load, now: float) -> None:
        """Take an engine's own figures; what is not ours among them is foreign."""
        self.load = load
        self.load_until = now + LOAD_FRESH_S
        self.others = max(0, (load.running or 0) + (load.waiting or 0) - self.sequences)

    def hold(self, seconds: float, now: float) -> None:
        """Leave it alone for so long, `HOLD_LONGEST_S` at most. An earlier, longer hold stays."""
        self.held_until = max(self.held_until, now + min(seconds, HOLD_LONGEST_S))

    def back_off(self, now: float) -> None:
        """It said that it is full and named no time: count it as full for a moment, longer each time in a row."""
        if now < self.busy_until:
            return
        pause = min(BUSY_LONGEST_S, BUSY_FIRST_S * 2.0 ** min(self.overloads, 16))
        self.overloads += 1
        self.busy_until = now + pause

    def shift(self, seconds: float) -> None:
        """Move every time stamp, for a clock that started anew."""
        self.held_until += seconds
        self.busy_until += seconds
        self.load_until += seconds
        if self.health_at is not None:
            self.health_at += seconds
        self.model.shift(seconds)
        self.breaker.shift(seconds)

    def moments(self) -> Iterable[float]:
        """The times at which something about it changes by itself."""
        yield self.held_until
        yield self.busy_until
        if self.others:
            yield self.load_until
        if self.breaker.until is not None:
            yield self.breaker.until
            if self.breaker.trial is not None:
                yield self.breaker.trial_ends


def quotas(endpoint: Endpoint) -> frozenset[str]:
    """Its `quota:<name>` tags: endpoints that share one draw on the same allowance and rest together."""
    return frozenset(tag for tag in endpoint.tags if tag.startswith("quota:"))
