"""One attempt's answer on its way to the client: the commit rule, the bounded queue between the two, the stamps.

The engine pushes into a `Relay` (it is a `Sink`); `pump` carries the blocks to the client. Nothing is written before
the attempt's first token-bearing or terminal event, so that until then another endpoint can still answer instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from engines import EngineError, Headers, Mark, Timings, Usage
from gateway.contract import Client, ClientGone
from gateway.observation import Stamps

__all__ = ["HEARTBEAT", "HIGH_WATER", "PREFIX_CAP", "Pace", "Relay"]

PREFIX_CAP = 64 * 2**10
"""Bytes of answer held back while no token has come; past it the answer is committed as it is."""

HIGH_WATER = 256 * 2**10
"""Queued bytes at which the engine is told to stop reading; it is resumed at a quarter of it."""

SLOW_WRITE = 0.001
"""A write to the client that takes longer than this waited for the client; a shorter one is the gateway's own work."""

HEARTBEAT = b": keep-alive\n\n"


class Pace:
    """Where a call's time went: waiting for engines or for a free place, waiting for the client, or neither."""

    __slots__ = ("client", "upstream")

    def __init__(self) -> None:
        self.upstream = 0.0
        self.client = 0.0

    def overhead(self, elapsed: float) -> float:
        """Seconds of `elapsed` that the gateway itself took."""
        return max(0.0, elapsed - self.upstream - self.client)


class Relay:
    """The gateway's side of one attempt.

    Args:
        client: where the blocks go.
        head: called once, right before the first write: returns the response headers.
        clock: monotonic seconds.
        pace: the call's account of time, shared by its attempts.
        stream: the client asked for server-sent events.
        on_first_token: called with the time of the first token-bearing event.
        started: a former attempt already sent the head (and heartbeats, nothing else).
        commit_after, heartbeat: see `gateway.contract.Pool`; both from `arrived`, streams only.
    """

    def __init__(
        self,
        client: Client,
        head: Callable[[int | None], Headers],
        clock: Callable[[], float],
        pace: Pace,
        *,
        stream: bool,
        arrived: float,
        on_first_token: Callable[[float], None],
        started: bool = False,
        commit_after: float | None = None,
        heartbeat: float = 10.0,
    ) -> None:
        self._client = client
        self._head = head
        self._clock = clock
        self._pace = pace
        self._stream = stream
        self._arrived = arrived
        self._on_first_token = on_first_token
        self._commit_after = commit_after if stream else None
        self._heartbeat = heartbeat
        self.started = started
        self.passed = False
        self.first_token: float | None = None
        self.last_token: float | None = None
        self.stamps = Stamps()
        self.usage: Usage | None = None
        self.timings: Timings | None = None
        self.finish: str | None = None
        self.derived = False
        self.bytes = 0
        self.blocks = 0
        self._queue: list[bytes] = []
        self._queued = 0
        self._ripe = False
        self._error: EngineError | None = None
        self._ended = False
        self._beat = False
        self._written = arrived
        self._alarm: asyncio.TimerHandle | None = None
        self._news = asyncio.Event()
        self._resumes: list[Callable[[], None]] = []
        self._room = asyncio.Event()
        self._room.set()

    # -- the engine's side (Sink) ------------------------------------------------------------------------------

    def head(self, status: int, headers: Headers) -> None:
        """The engine began to answer. What it says beside the answer itself is not for the client."""

    def data(self, block: bytes, mark: Mark) -> bool:
        if mark.token and self._stream:
            self.last_token = now = self._clock()
            self.blocks += 1
            self.stamps.add(now)
            if self.first_token is None:
                self.first_token = now
                self._on_first_token(now)
        if mark.usage is not None:
            self.usage = mark.usage
        if mark.timings is not None:
            self.timings = mark.timings
        if mark.finish is not None:
            self.finish = mark.finish
            self.derived = mark.derived
        if block:
            self._queue.append(block)
            self._queued += len(block)
            self.bytes += len(block)
        if mark.token or mark.terminal or self._queued > PREFIX_CAP:
            self._ripe = True
        self._news.set()
        if self._queued < HIGH_WATER:
            return True
        self._room.clear()
        return False

    def on_resume(self, callback: Callable[[], None]) -> None:
        if self._room.is_set():
            callback()
        else:
            self._resumes.append(callback)

    async def writable(self) -> None:
        await self._room.wait()

    def end(self) -> None:
        self._ended = True
        self._news.set()

    def fail(self, error: EngineError) -> None:
        self._error = error
        self._news.set()

    # -- the client's side -------------------------------------------------------------------------------------

    async def pump(self) -> EngineError | None:
        """Carry the answer to the client until it is whole (None) or has failed (the error, not yet told).

        Raises:
            ClientGone: the client left. The attempt is still open; its owner aborts it.
        """
        loop = asyncio.get_running_loop()
        watch = loop.create_task(self._watch())
        self._written = self._clock()
        self._arm(loop)
        try:
            while True:
                if self._client.gone.is_set():
                    raise ClientGone
                if self._queue and self._ripe:
                    await self._flush()
                elif self._error is not None:
                    return self._error
                elif self._ended:
                    await self._flush()
                    return None
                elif self._beat:
                    await self._keep_alive()
                else:
                    await self._wait()
        finally:
            watch.cancel()
            if self._alarm is not None:
                self._alarm.cancel()
            # The engine may be waiting for room that nobody will make any more; its abort ends it.
            self._resumes.clear()

    async def _watch(self) -> None:
        await self._client.gone.wait()
        self._news.set()

    async def _wait(self) -> None:
        self._news.clear()
        before = self._clock()
        await self._news.wait()
        self._pace.upstream += self._clock() - before

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the one timer of this attempt to the moment at which a comment would be owed."""
        due = self._due()
        if due is not None:
            # A twentieth of a second at the least: a timer that is due but cannot act yet must not spin.
            self._alarm = loop.call_later(max(0.05, due - self._clock()), self._ring, loop)

    def _due(self) -> float | None:
        """When the next comment is owed, if nothing else is written until then."""
        if not self._stream:
            return None
        if self.started:
            return self._written + self._heartbeat
        return None if self._commit_after is None else self._arrived + self._commit_after

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        due = self._due()
        if due is not None and self._clock() >= due and self._room.is_set() and not (self._queue and self._ripe):
            self._beat = True
            self._news.set()
        self._arm(loop)

    async def _keep_alive(self) -> None:
        self._beat = False
        await self._start(None)
        await self._client.write(HEARTBEAT)
        self._written = self._clock()

    async def _start(self, length: int | None) -> None:
        if not self.started:
            self.started = True
            await self._client.start(200, self._head(length))

    async def _flush(self) -> None:
        block = self._queue[0] if len(self._queue) == 1 else b"".join(self._queue)
        self._queue.clear()
        if not block and self.started:
            return
        before = self._clock()
        await self._start(None if self._stream else len(block))
        self.passed = True
        await self._client.write(block)
        self._written = self._clock()
        if self._written - before > SLOW_WRITE:
            self._pace.client += self._written - before
        self._queued -= len(block)
        if not self._room.is_set() and self._queued <= HIGH_WATER // 4:
            self._room.set()
            resumes, self._resumes = self._resumes, []
            for resume in resumes:
                resume()
