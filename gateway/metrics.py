"""What the gateway counts of its calls, and the page that Prometheus scrapes.

`observe` takes what became of a call and adds it up in plain lists (`gateway.series`); the names are in
`gateway.families`. Gauges of endpoints are not counted here at all: the router is asked when the page is made.

The page is rendered in a thread and kept for a second, so that any number of scrapers cannot stall a stream. The
router is asked on the loop, as it belongs to the loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Literal

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from gateway.contract import Observation, Pool, Served
from gateway.families import Families
from gateway.gauges import Gauges
from gateway.labels import ERRORS, NONE, OPERATIONS, OTHER, OUTCOMES, Words, known_endpoint, known_policy
from gateway.series import Cell, put

__all__ = ["Metrics"]

Raw = tuple[str, str, str, str, str, str]


class _Attempt:
    """The cells of one kind of attempt, looked up once."""

    __slots__ = ("call_ttft", "duration", "engine", "input", "itl", "output", "tpot", "ttft", "where")

    def __init__(self, families: Families, model: str, kind: str, where: tuple[str, str, str, str]) -> None:
        self.engine, endpoint = where[0], where[1]
        self.where = (model, self.engine, endpoint)
        genai = (OPERATIONS[kind], self.engine, model)
        self.ttft = families.server_ttft.cell(*genai, *where)
        self.tpot = families.server_tpot.cell(*genai, *where)
        self.call_ttft = families.call_ttft.cell(model, kind, *where)
        self.duration = families.attempt_duration.cell(model, kind, *where)
        self.itl = tuple(families.itl.cell(model, kind, *where, stat) for stat in ("p50", "p99", "max"))
        self.input = families.token_usage.cell(*genai, "input", *where)
        self.output = families.token_usage.cell(*genai, "output", *where)


class Metrics:
    """Counts calls and renders `/metrics`.

    Args:
        pools: the configured pools, by public model name; read at every use, so endpoints may come and go.
        version: of the gateway, for `enginehouse_build_info`.
        clock: the monotonic clock that the routers are driven by.
        max_age: seconds for which a rendered page is served again.
    """

    def __init__(
        self,
        pools: Mapping[str, Pool],
        *,
        version: str,
        clock: Callable[[], float] = time.monotonic,
        max_age: float = 1.0,
    ) -> None:
        self._pools = pools
        self._clock = clock
        self._max_age = max_age
        self._families = Families()
        self._gauges = Gauges(version)
        self._registry = CollectorRegistry(auto_describe=False)
        for collector in (self._families, self._gauges):
            self._registry.register(collector)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._attempts: dict[Raw, _Attempt] = {}
        self._errors = Words()
        self._reasons = Words()
        self._page = b""
        self._rendered: float | None = None
        self._rendering: asyncio.Future[bytes] | None = None

    def observe(self, served: Served) -> None:
        """Count one call and its attempts. An `Observer`: it neither blocks nor raises."""
        families = self._families
        pool = self._pools.get(served.model)
        model = OTHER if pool is None else served.model
        kind = served.kind if served.kind in OPERATIONS else OTHER
        policy = known_policy(pool, served.policy)
        outcome = served.outcome if served.outcome in OUTCOMES else OTHER
        engine, endpoint = known_endpoint(pool, served.endpoint)
        families.requests.cell(model, kind, policy, outcome, _code_class(served.status))[0] += 1
        error = self._errors(served.code) if served.code else ""
        put(
            families.server_duration.cell(OPERATIONS[kind], engine, model, engine, endpoint, policy, outcome, error),
            families.server_duration.bounds,
            served.total,
        )
        put(families.overhead.cell(model, kind, policy), families.overhead.bounds, served.overhead)
        if outcome == "cancelled" or served.status == 499:
            families.client_gone.cell(model, kind)[0] += 1
        self._decided(served, pool, model)
        previous: Observation | None = None
        for observation in served.observations:
            self.attempt(observation)
            if observation.shadow:
                continue
            if previous is None:
                put(families.queue_wait.cell(model, kind, policy), families.queue_wait.bounds, observation.queue_wait)
            else:
                families.retries.cell(model, _error_label(previous.error))[0] += 1
                if observation.endpoint != previous.endpoint:
                    families.failovers.cell(model, known_endpoint(pool, observation.endpoint)[1])[0] += 1
            previous = observation

    def attempt(self, seen: Observation) -> None:
        """Count one attempt. `observe` does it for a call's own; mirrored attempts may be given here alone."""
        families = self._families
        cells = self._cells(seen)
        model, engine, endpoint = cells.where
        outcome = seen.outcome if seen.outcome in OUTCOMES else OTHER
        if seen.shadow:
            self._shadow(seen, cells.where, outcome)
            return
        families.attempts.cell(model, engine, endpoint, outcome, _error_label(seen.error))[0] += 1
        put(cells.duration, families.attempt_duration.bounds, seen.total)
        # No figure of first tokens without a stream: the whole duration in their place would drown them (B26).
        if seen.stream:
            if seen.call_ttft is not None:
                put(cells.call_ttft, families.call_ttft.bounds, seen.call_ttft)
            for cell, value in zip(cells.itl, (seen.itl_p50, seen.itl_p99, seen.itl_max), strict=True):
                if value is not None:
                    put(cell, families.itl.bounds, value)
            if outcome == "ok":
                self._timed(seen, cells)
        self._counted(seen, cells)
        if seen.bytes_in:
            families.bytes.cell(model, engine, endpoint, "in")[0] += seen.bytes_in
        if seen.bytes_out:
            families.bytes.cell(model, engine, endpoint, "out")[0] += seen.bytes_out

    def watch(
        self, name: str, help: str, read: Callable[[], float], kind: Literal["counter", "gauge"] = "counter"
    ) -> None:
        """Show a number that another part counts itself (drops of a queue, say). Read on the loop at each render."""
        self._gauges.watch(name, help, read, kind)

    async def render(self) -> tuple[bytes, str]:
        """Return the page and its content type. Concurrent callers share one rendering."""
        now = self._clock()
        if self._rendered is None or now - self._rendered >= self._max_age:
            if self._rendering is None:
                self._gauges.read(self._pools, now)
                self._rendering = asyncio.get_running_loop().run_in_executor(None, generate_latest, self._registry)
                self._rendering.add_done_callback(self._keep)
            # A scraper that leaves must not take the page from the others.
            await asyncio.shield(self._rendering)
        return self._page, CONTENT_TYPE_PLAIN_0_0_4

    def _keep(self, rendering: asyncio.Future[bytes]) -> None:
        self._rendering = None
        if not rendering.cancelled() and rendering.exception() is None:
            self._page, self._rendered = rendering.result(), self._clock()

    def _cells(self, seen: Observation) -> _Attempt:
        raw = (seen.model, seen.kind, seen.engine, seen.endpoint, seen.policy, seen.outcome)
        found = self._attempts.get(raw)
        if found is not None:
            return found
        pool = self._pools.get(seen.model)
        model = OTHER if pool is None else seen.model
        kind = seen.kind if seen.kind in OPERATIONS else OTHER
        policy = known_policy(pool, seen.policy)
        outcome = seen.outcome if seen.outcome in OUTCOMES else OTHER
        engine, endpoint = known_endpoint(pool, seen.endpoint)
        clean = (model, kind, engine, endpoint, policy, outcome)
        found = self._attempts.get(clean)
        if found is None:
            found = _Attempt(self._families, model, kind, (engine, endpoint, policy, outcome))
            self._attempts[clean] = found
        return found

    def _decided(self, served: Served, pool: Pool | None, model: str) -> None:
        families = self._families
        for decision in served.decisions:
            families.decisions.cell(
                model, known_policy(pool, decision.policy), decision.action, "true" if decision.explored else "false"
            )[0] += 1
            for candidate in decision.candidates.values():
                if candidate.removed_by is not None:
                    endpoint = known_endpoint(pool, candidate.name)[1]
                    families.removed.cell(model, endpoint, self._reasons(candidate.removed_by))[0] += 1

    def _timed(self, seen: Observation, cells: _Attempt) -> None:
        families = self._families
        measured = (
            ("ttft", cells.ttft, families.server_ttft.bounds, seen.attempt_ttft, seen.predicted_ttft),
            ("tpot", cells.tpot, families.server_tpot.bounds, seen.tpot, seen.predicted_tpot),
        )
        for what, cell, bounds, value, predicted in measured:
            if value is None:
                continue
            put(cell, bounds, value)
            if predicted is not None and value > 0:
                put(families.prediction.cell(*cells.where, what), families.prediction.bounds, predicted / value)

    def _counted(self, seen: Observation, cells: _Attempt) -> None:
        families = self._families
        family = families.estimated_tokens if seen.tokens_estimated else families.tokens
        counts: tuple[tuple[str, int | None, Cell | None], ...] = (
            ("input", seen.prompt_tokens, cells.input),
            ("output", seen.output_tokens, cells.output),
            ("cached", seen.cached_tokens, None),
            ("reasoning", seen.reasoning_tokens, None),
        )
        for name, count, usage in counts:
            if count is None:
                continue
            if count:
                family.cell(*cells.where, name)[0] += count
            if usage is not None and not seen.tokens_estimated:
                put(usage, families.token_usage.bounds, count)

    def _shadow(self, seen: Observation, where: tuple[str, str, str], outcome: str) -> None:
        families = self._families
        families.shadow_attempts.cell(*where, outcome, _error_label(seen.error))[0] += 1
        if seen.stream and outcome == "ok":
            if seen.attempt_ttft is not None:
                put(families.shadow_ttft.cell(*where), families.shadow_ttft.bounds, seen.attempt_ttft)
            if seen.tpot is not None:
                put(families.shadow_tpot.cell(*where), families.shadow_tpot.bounds, seen.tpot)


def _code_class(status: int) -> str:
    return f"{status // 100}xx" if 100 <= status < 600 else OTHER


def _error_label(error: str | None) -> str:
    if error is None:
        return NONE
    return error if error in ERRORS else OTHER
