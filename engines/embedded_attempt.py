"""One attempt at the embedded engine: waits for a place, sends the call to the worker, edits its answer on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from engines import embedded_pipe as pipe
from engines import errors
from engines.answer import StreamEditor, edit_answer
from engines.contract import Call, Sink
from engines.dialect import Dialect
from engines.embedded_link import Link, Places, Ticket
from engines.errors import EngineError, Malformed, TimedOut
from engines.request import build_body

__all__ = ["EmbeddedAttempt"]

_STREAM: Final = "text/event-stream"
_JSON: Final = "application/json"


class EmbeddedAttempt:
    """An `Attempt` that owns its task. Needs a running event loop.

    The sink hears exactly one of `end` and `fail`; after `abort` it hears nothing more.

    Args:
        link_for: gives the line to a worker that can take calls, or raises why there is none.
        places: the worker's places.
        dialect: what the engine honours.
        stall: seconds without a sign of life from the worker, after which it is ended; also after a cancel.

    Attributes:
        task: runs the attempt. ticket: the call in the worker, once it is there.
    """

    def __init__(
        self,
        link_for: Callable[[Call], Link],
        places: Places,
        dialect: Dialect,
        stall: float,
        call: Call,
        sink: Sink,
    ) -> None:
        self._link_for = link_for
        self._places = places
        self._dialect = dialect
        self._stall = stall
        self._call = call
        self._sink = sink
        self._said = False
        self._aborted = False
        self._link: Link | None = None
        self.ticket: Ticket | None = None
        self._deadline = asyncio.timeout(None)
        self._loop = asyncio.get_running_loop()
        self.task = self._loop.create_task(self._run())

    def abort(self, why: str) -> None:
        """Take the call out of the line, or stop it in the worker, and say nothing more to the sink."""
        if self._aborted:
            return
        self._aborted = True
        if self.ticket is not None:
            self.ticket.cancel()
        self.task.cancel(why)

    async def closed(self) -> None:
        """Return when the worker has let go of the call, or is gone."""
        await asyncio.wait({self.task})
        if self.ticket is not None:
            await asyncio.wait({self.ticket.over})

    async def _run(self) -> None:
        try:
            async with self._deadline:
                await self._serve()
        except EngineError as error:
            self._fail(error)
        except TimeoutError:
            assert self._link is not None
            self._link.kill()
            self._fail(TimedOut("The engine stayed silent for too long."))
        except Exception as error:
            # A fault of ours. The client must not wait for ever; the loop's exception handler gets to see it.
            self._fail(Malformed("The engine's answer could not be handled.", detail=repr(error)))
            raise
        finally:
            self._let_go()

    async def _serve(self) -> None:
        call = self._call
        self._link_for(call)  # says now what would be in vain
        body = build_body(call, self._dialect, call.model)
        await self._places.enter()
        try:
            self._link = self._link_for(call)
        except EngineError:
            self._places.leave()
            raise
        self.ticket = ticket = self._link.start(call.kind, body, stream=call.stream)
        self._lives()
        editor = StreamEditor(call, self._dialect) if call.stream else None
        begun = False
        while not self._aborted:
            report = await ticket.next()
            self._lives()
            if isinstance(report, pipe.Event) and editor is not None:
                if not begun:
                    begun = True
                    self._sink.head(200, (("content-type", _STREAM),))
                await self._pass_on(editor, report.payload, ticket)
            elif isinstance(report, pipe.Whole) and editor is None:
                self._whole(report.body)
                begun = True
            elif isinstance(report, pipe.Failed):
                raise _error(report)
            elif isinstance(report, pipe.Done):
                self._finish(editor, begun)
                return
            elif not isinstance(report, pipe.Alive):
                raise Malformed("The engine's answer is not of the kind that was asked for.")

    async def _pass_on(self, editor: StreamEditor, payload: bytes, ticket: Ticket) -> None:
        edited = editor.feed(payload)
        if edited is not None:
            block, mark = edited
            if mark.error is not None:
                raise mark.error
            if not self._sink.data(block, mark):
                # The engine is not the one who is slow: its clock stands still.
                self._deadline.reschedule(None)
                await self._sink.writable()
                self._lives()
        ticket.taken()

    def _whole(self, body: bytes) -> None:
        block, mark = edit_answer(self._call, body, self._dialect)
        self._sink.head(200, (("content-type", _JSON),))
        if not self._aborted:
            self._sink.data(block, mark)

    def _finish(self, editor: StreamEditor | None, begun: bool) -> None:
        if not begun:
            raise Malformed("The engine ended the call without an answer.")
        last = None if editor is None else editor.close()
        if last is not None and not self._aborted:
            self._sink.data(*last)
        if not self._aborted and not self._said:
            self._said = True
            self._sink.end()

    def _lives(self) -> None:
        self._deadline.reschedule(self._loop.time() + self._stall)

    def _let_go(self) -> None:
        """However the attempt ended, the worker must not go on with it: it gets a word, and then its time."""
        ticket, link = self.ticket, self._link
        if ticket is None or link is None or ticket.over.done():
            return
        ticket.cancel()
        timer = self._loop.call_later(self._stall, link.kill)
        ticket.over.add_done_callback(lambda _: timer.cancel())

    def _fail(self, error: EngineError) -> None:
        if not self._aborted and not self._said:
            self._said = True
            self._sink.fail(error)


def _error(report: pipe.Failed) -> EngineError:
    kind: type[EngineError] = getattr(errors, report.error)
    status = 500 if report.error == "Faulted" else 400
    return kind(report.message, status=status, param=report.param, code=report.code, detail=report.detail)
