"""The gateway's end of the line to one worker process: calls in, reports out, and who has a place in it."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable
from typing import cast

from engines import embedded_pipe as pipe
from engines.contract import Kind
from engines.embedded_pipe import Deframer, FrameError, encode_frame, read_report
from engines.errors import EngineError, Gone, Overloaded, Unreached

__all__ = ["Link", "Places", "Ticket"]


class Places:
    """The worker's places, and a line of bounded length before them. First come, first served.

    Args:
        places: calls that run at once. line: calls that may wait.
    """

    def __init__(self, places: int, line: int) -> None:
        self._free = places
        self._places = places
        self._line = line
        self._waiting: collections.deque[asyncio.Future[None]] = collections.deque()

    @property
    def free(self) -> int:
        """Places that nobody holds."""
        return self._free

    @property
    def waiting(self) -> int:
        """Calls in line."""
        return len(self._waiting)

    async def enter(self) -> None:
        """Wait for a place. Who is cancelled meanwhile leaves the line and never gets one.

        Raises:
            Overloaded: the line is full. EngineError: as `clear` says.
        """
        if self._free > 0:
            self._free -= 1
            return
        if len(self._waiting) >= self._line:
            running = f"{self._places} running and {self._line} waiting"
            raise Overloaded(f"The engine is full: {running} calls.", status=429)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.leave()  # the place was ours already
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise

    def leave(self) -> None:
        """Give a place back: to the next in line, where there is one."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def clear(self, error: EngineError) -> None:
        """Send everybody in line away with `error`."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(error)


class Ticket:
    """One call in the worker.

    Attributes:
        over: done when the worker has nothing more to do with the call and its place is free.
        queued: what the worker said and nobody took up yet; bounded by the credit given.
    """

    def __init__(self, link: Link, number: int) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._link = link
        self._number = number
        self.queued: collections.deque[pipe.Report] = collections.deque()
        self._error: EngineError | None = None
        self._news = asyncio.Event()
        self._taken = 0
        self._cancelled = False

    async def next(self) -> pipe.Report:
        """The worker's next word on the call.

        Raises:
            Gone: the worker ended.
        """
        while not self.queued:
            if self._error is not None:
                raise self._error
            self._news.clear()
            await self._news.wait()
        return self.queued.popleft()

    def taken(self) -> None:
        """One event was taken up: the worker may send another. It is told of several at a time."""
        self._taken += 1
        if 2 * self._taken >= pipe.WINDOW and not self.over.done():
            self._link.send(pipe.Credit(self._number, self._taken))
            self._taken = 0

    def cancel(self) -> None:
        """Stop the call in the worker, if it still runs there; `over` says when that is done."""
        if not self._cancelled and not self.over.done():
            self._cancelled = True
            self._link.send(pipe.Cancel(self._number))

    def put(self, report: pipe.Report) -> None:
        """The link's side: a report came."""
        if isinstance(report, pipe.Done | pipe.Failed):
            self._close()
        if not isinstance(report, pipe.Alive) or not self.queued:
            self.queued.append(report)
        self._news.set()

    def lose(self, error: EngineError) -> None:
        """The link's side: the worker ended."""
        self._error = error
        self._close()
        self._news.set()

    def _close(self) -> None:
        if not self.over.done():
            self.over.set_result(None)


class Link(asyncio.Protocol):
    """The line to one worker, from its start to its end. The next worker gets a new one.

    Args:
        free: called whenever a call's place is free again.
        broken: called once when the line is cut, with the link and what to say of calls that had not begun.
        kill: ends the worker, which says what it should not.

    Attributes:
        ready: what the worker said of its model; None while it loads.
    """

    def __init__(
        self, free: Callable[[], None], broken: Callable[[Link, EngineError], None], kill: Callable[[], None]
    ) -> None:
        self.ready: pipe.Ready | None = None
        self._free = free
        self._broken = broken
        self._kill = kill
        self._deframer = Deframer()
        self._tickets: dict[int, Ticket] = {}
        self._last = 0
        self._transport: asyncio.Transport | None = None

    @property
    def is_open(self) -> bool:
        """The worker is there and its model is loaded."""
        return self._transport is not None and self.ready is not None

    def start(self, kind: Kind, body: bytes, *, stream: bool) -> Ticket:
        """Begin a call. The caller holds a place, which is given back when the call is over."""
        if not self.is_open:
            self._free()
            raise Unreached("The engine's process is not running.")
        self._last += 1
        ticket = self._tickets[self._last] = Ticket(self, self._last)
        self.send(pipe.Start(self._last, kind, body, stream))
        return ticket

    def send(self, order: pipe.Order) -> None:
        """Tell the worker. It reads at all times, so nothing piles up here but what it was just told."""
        if self._transport is not None:
            self._transport.write(encode_frame(order))

    def kill(self) -> None:
        """End the worker: it hangs. Every call in it is lost."""
        self._kill()

    def close(self) -> None:
        """Hang up; the worker ends when it hears that."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._deframer.feed(data):
                self._hear(read_report(frame))
        except FrameError:
            # Whatever it is now, it is no worker of ours: its end is told to every call by `connection_lost`.
            self._kill()
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        tickets, self._tickets = self._tickets, {}
        self._broken(self, Unreached("The engine's process ended before the call began."))
        for ticket in tickets.values():
            ticket.lose(Gone("The engine's process ended while it worked on the call."))
            self._free()

    def _hear(self, report: pipe.Report) -> None:
        if isinstance(report, pipe.Ready):
            self.ready = report
            return
        ticket = self._tickets.get(report.id)
        if ticket is None:
            raise FrameError(f"a report on the unknown call {report.id}")
        if isinstance(report, pipe.Done | pipe.Failed):
            del self._tickets[report.id]
            ticket.put(report)
            self._free()
        else:
            ticket.put(report)
