"""The line: one call, straight down. Decide, open, relay; on failure before anything was passed, decide again.

Nothing here knows Litestar or ASGI, and nothing calls upward. Whatever happens to a call, each attempt ends in exactly
one word to the router and exactly one `Observation`, and the call in exactly one `Served`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from engines import EngineError, Headers
from engines.contract import Attempt
from gateway.contract import Client, ClientGone, Observer, Pool, Request, Served
from gateway.errors import error_event, render
from gateway.observe import observation
from gateway.outcome import call_outcome, may_go_on, outcome_of
from gateway.rejection import rejection
from gateway.relay import HEARTBEAT, Pace, Relay
from router import Decision
from router.explain import explain

__all__ = ["Line"]


class Line:
    """Serves calls.

    Args:
        observe: takes what became of each call.
        clock: monotonic seconds, the one clock of the house.
    """

    def __init__(self, observe: Observer, clock: Callable[[], float]) -> None:
        self._observe = observe
        self._clock = clock
        self._active: set[_Exchange] = set()

    @property
    def active(self) -> int:
        """Calls that are being served."""
        return len(self._active)

    async def serve(self, pool: Pool, request: Request, client: Client) -> None:
        """Answer one request, errors included. Raises nothing but CancelledError."""
        exchange = _Exchange(pool, request, client, self._observe, self._clock)
        self._active.add(exchange)
        try:
            await exchange.run()
        finally:
            self._active.discard(exchange)


class _Try(msgspec.Struct):
    """One attempt in progress."""

    decision: Decision
    dispatched: float
    relay: Relay
    attempt: Attempt


class _Exchange:
    """One call while it lasts."""

    def __init__(
        self, pool: Pool, request: Request, client: Client, observe: Observer, clock: Callable[[], float]
    ) -> None:
        self._pool = pool
        self._request = request
        self._client = client
        self._observe = observe
        self._clock = clock
        self._pace = Pace()
        self._served = Served(
            call=request.call.id,
            request_id=request.call.request_id,
            model=pool.model,
            kind=request.call.kind,
            stream=request.call.stream,
            policy=request.policy or pool.policy,
            key=request.key,
            started=request.started,
            status=499,
            outcome="cancelled",
            total=0.0,
            overhead=0.0,
        )
        self._try: _Try | None = None
        self._started = False

    async def run(self) -> None:
        try:
            error = await self._answer()
            if error is None:
                self._note(status=200, outcome="ok")
            else:
                await self._refuse(error)
        except ClientGone:
            self._note(status=499 if not self._started else 200, outcome="cancelled")
        except asyncio.CancelledError:
            # The server is stopping, and whoever called this tells the client so.
            self._note(status=200 if self._started else 503, outcome="error", code="shutting_down")
            raise
        finally:
            elapsed = self._clock() - self._request.arrived
            self._note(total=elapsed, overhead=self._pace.overhead(elapsed))
            self._observe(self._served)

    async def _answer(self) -> Exception | None:
        """Try endpoints in the router's order until one has answered; else the error to tell."""
        router = self._pool.router
        decision = router.decide(self._request.ask, self._clock(), self._request.policy)
        tries, reran = 0, False
        error: EngineError | None = None
        while True:
            decision = await self._settled(decision)
            if decision.action != "send":
                return error or rejection(decision, self._pool.model)
            tries += 1
            error, decision_next = await self._attempt(decision, tries, reran)
            if error is None or decision_next is None:
                return error
            reran = reran or error.retry == "once"
            decision = decision_next

    async def _settled(self, decision: Decision) -> Decision:
        """The decision that lets the call go, after waiting for a place where the router said so."""
        self._note(decisions=(*self._served.decisions, decision))
        if decision.action != "wait":
            return decision
        before = self._clock()
        waiting = self._pool.waiting.settled(decision)
        gone = asyncio.get_running_loop().create_task(self._client.gone.wait())
        try:
            events: set[asyncio.Future[Any]] = {waiting, gone}
            while not (await asyncio.wait(events, timeout=self._beat_due(), return_when=asyncio.FIRST_COMPLETED))[0]:
                await self._beat(decision)
            if waiting.done() and not self._client.gone.is_set():
                settled = waiting.result()
                self._note(decisions=(*self._served.decisions, settled))
                return settled
            raise ClientGone
        except BaseException:
            # Withdraws a queued call; where it was just let go, gives the place back.
            self._pool.router.finish(decision.attempt, self._clock(), "cancelled")
            self._pool.waiting.pump()
            raise
        finally:
            waiting.cancel()
            gone.cancel()
            self._pace.upstream += self._clock() - before

    def _beat_due(self) -> float | None:
        """Seconds until a stream that waits for a place owes its client a comment; None: it never does."""
        pool = self._pool
        if not self._request.call.stream or pool.commit_after is None:
            return None
        if self._started:
            return pool.heartbeat
        return max(0.0, self._request.arrived + pool.commit_after - self._clock())

    async def _beat(self, decision: Decision) -> None:
        if not self._started:
            self._started = True
            await self._client.start(200, self._head(decision, None))
        await self._client.write(HEARTBEAT)

    async def _attempt(self, decision: Decision, tries: int, reran: bool) -> tuple[EngineError | None, Decision | None]:
        """One attempt. Returns its error, and the decision to go on with where another may be made."""
        pool, router = self._pool, self._pool.router
        current = self._open(decision)
        following: Decision | None = None
        outcome, error = "cancelled", None
        try:
            error = await current.relay.pump()
            outcome = outcome_of(error)
            if error is None:
                await self._client.end()
            elif error.failure is not None and not current.relay.passed and may_go_on(error, pool, tries, reran):
                following = router.retry(decision.attempt, self._clock(), error.failure, error.retry_after)
        finally:
            if outcome != "ok":
                current.attempt.abort(type(error).__name__ if error is not None else "the client left")
            self._started = current.relay.started
            if following is None:
                self._end(current, outcome, error)
            pool.waiting.pump()
            self._record(current, outcome, error)
        return error, following

    def _open(self, decision: Decision) -> _Try:
        pool, request = self._pool, self._request
        assert decision.endpoint is not None
        self._note(endpoint=decision.endpoint, engine=decision.candidates[decision.endpoint].engine)

        def first_token(now: float) -> None:
            pool.router.first_token(decision.attempt, now)

        relay = Relay(
            self._client,
            lambda length: self._head(decision, length),
            self._clock,
            self._pace,
            stream=request.call.stream,
            arrived=request.arrived,
            on_first_token=first_token,
            started=self._started,
            commit_after=pool.commit_after,
            heartbeat=pool.heartbeat,
        )
        dispatched = self._clock()
        attempt = pool.engines[decision.endpoint].open(request.call, relay)
        self._try = _Try(decision, dispatched, relay, attempt)
        return self._try

    def _end(self, current: _Try, outcome: str, error: EngineError | None) -> None:
        """The attempt's one last word to the router."""
        relay, usage, timings = current.relay, current.relay.usage, current.relay.timings
        # A request that the engine judged bad says nothing about the engine: its share ends, no more.
        word = "cancelled" if error is not None and error.failure is None else outcome
        self._pool.router.finish(
            current.decision.attempt,
            self._clock(),
            word,  # type: ignore[arg-type]
            prompt_tokens=usage.prompt_tokens if usage else None,
            output_tokens=usage.completion_tokens if usage else None,
            cached_tokens=usage.cached_tokens if usage else None,
            last_token=relay.last_token,
            engine_prefill=timings.prefill if timings else None,
            engine_decode=timings.decode if timings else None,
        )

    def _record(self, current: _Try, outcome: str, error: EngineError | None) -> None:
        now = self._clock()
        elapsed = now - self._request.arrived
        row = observation(
            self._pool, self._request, current.decision, current.relay, current.dispatched, now, outcome, error
        )
        row = msgspec.structs.replace(row, overhead=self._pace.overhead(elapsed))
        self._note(observations=(*self._served.observations, row))

    def _head(self, decision: Decision, length: int | None) -> Headers:
        elapsed = self._clock() - self._request.arrived
        headers = [
            ("content-type", "text/event-stream; charset=utf-8" if self._request.call.stream else "application/json"),
            *self._labels(decision),
            ("x-enginehouse-overhead-ms", f"{self._pace.overhead(elapsed) * 1e3:.3f}"),
        ]
        if self._request.call.stream:
            headers += [("cache-control", "no-cache, no-transform"), ("x-accel-buffering", "no")]
        if length is not None:
            headers.append(("content-length", str(length)))
        return headers

    def _labels(self, decision: Decision) -> list[tuple[str, str]]:
        labels = [("x-enginehouse-policy", decision.policy or self._served.policy)]
        if decision.endpoint is not None:
            labels.append(("x-enginehouse-endpoint", decision.endpoint))
            labels.append(("x-enginehouse-engine", decision.candidates[decision.endpoint].engine))
        if self._request.explain:
            labels.append(("x-enginehouse-explain", explain(decision)))
        return labels

    async def _refuse(self, error: Exception) -> None:
        """Tell the client: a status while none was sent, an error event after that."""
        status, headers, body = render(error, self._request.call.id)
        detail = getattr(error, "detail", "") or str(error)
        self._note(status=status, outcome=call_outcome(error), code=type(error).__name__, detail=detail)
        if self._started:
            self._note(status=200)
            await self._client.write(error_event(error, self._request.call.id))
        else:
            last = self._served.decisions[-1]
            told = [*headers, *self._labels(self._try.decision if self._try else last)]
            await self._client.start(status, told)
            await self._client.write(body)
        await self._client.end()

    def _note(self, **changes: object) -> None:
        self._served = msgspec.structs.replace(self._served, **changes)
