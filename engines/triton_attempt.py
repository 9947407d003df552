"""One attempt at a model behind Triton: sends the call, reads its responses, writes OpenAI's form into the sink."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from engines.chat_template import ChatTemplate
from engines.contract import Call, Headers, Mark, Sink
from engines.errors import EngineError, Lost, Malformed, Misconfigured, TimedOut, Unreached
from engines.guided_tools import CallReader
from engines.text_stream import AnswerWriter, writer_of
from engines.triton_answer import AnswerReader
from engines.triton_layout import Layout
from engines.triton_request import Plan, plan_call
from engines.triton_wire import Replies, Request, Transport, fill

__all__ = ["Service", "Settings", "TritonAttempt"]

_STOP_SECONDS: Final = 2.0
_TRACE: Final = frozenset({"traceparent", "tracestate"})


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator set for all calls.

    Attributes:
        first_byte: seconds from dispatch to the first response. idle: between two responses. None: no limit.
        max_tokens: the cap of calls that have none. template, count: for chat; tokens in a text.
        estimate_usage: the client sees counts that are estimates, too.
    """

    first_byte: float | None
    idle: float | None
    max_tokens: int
    template: ChatTemplate | None
    count: Callable[[str], int] | None
    estimate_usage: bool


class Service(Protocol):
    """The engine, as its attempts see it."""

    transport: Transport
    settings: Settings

    async def layout(self) -> Layout:
        """How to speak to the model. Raises EngineError."""

    def forget_layout(self) -> None:
        """It was no longer true."""

    def request_id(self, call: Call) -> str:
        """An id for one inference, unlike all others."""


class TritonAttempt:
    """An `Attempt` that owns its task and its stream. Needs a running event loop.

    The sink hears exactly one of `end` and `fail`; after `abort` it hears nothing more.

    Attributes:
        task: runs the attempt.
    """

    def __init__(self, service: Service, call: Call, sink: Sink) -> None:
        self._service = service
        self._call = call
        self._sink = sink
        self._replies: Replies | None = None
        self._headed = self._said = self._aborted = False
        self._complete = False  # nothing of the call is left at work in the engine
        self._loop = asyncio.get_running_loop()
        self._deadline = asyncio.timeout(service.settings.first_byte)
        self.task = self._loop.create_task(self._run())

    def abort(self, why: str) -> None:
        """Cancel the stream now and say nothing more to the sink. `why` goes with the task's cancellation."""
        if self._aborted:
            return
        self._aborted = True
        if self._replies is not None:
            self._replies.cancel()
        self.task.cancel(why)

    async def closed(self) -> None:
        """Return when the engine was told, whichever way the attempt ended."""
        await asyncio.wait({self.task})

    async def _run(self) -> None:
        try:
            async with self._deadline:
                await self._answer()
        except EngineError as error:
            if isinstance(error, Misconfigured):
                self._service.forget_layout()
            self._fail(await self._service.transport.settle(error))
        except TimeoutError:
            self._fail(self._out_of_time())
        except Exception as error:
            # A fault of ours. The client must not wait for ever; the loop's exception handler gets to see it.
            self._fail(Malformed("The engine's answer could not be handled.", detail=repr(error)))
            raise

    async def _answer(self) -> None:
        call, service = self._call, self._service
        layout = await service.layout()
        plan = plan_call(call, layout, service.settings.template, service.settings.max_tokens)
        name = service.request_id(call)
        request = Request(
            model=layout.model, id=name, inputs=plan.inputs, outputs=layout.outputs, headers=self._trace_headers()
        )
        try:
            self._replies = replies = service.transport.infer(request)
            async with replies:
                await self._relay(replies, plan, layout)
        except EngineError:
            self._complete = True  # the engine itself ended it, or is not there to be told
            raise
        finally:
            if not self._complete and self._replies is not None and self._replies.sent and layout.stopper:
                await self._stop_inner(layout, name)

    async def _relay(self, replies: Replies, plan: Plan, layout: Layout) -> None:
        reader = AnswerReader(plan, layout, self._service.settings.count)
        pen = _Pen(writer_of(self._call, int(time.time())), CallReader(plan.tool) if plan.tool is not None else None)
        answered = False
        while True:
            reply = await replies.next()
            self._progress()
            if reply is None:
                break
            answered = True
            await self._write(pen.write(reader.feed(reply)))
            if reply.final or reader.abandoned or self._aborted:
                break
        if self._aborted:
            return
        if not answered:
            raise Lost("The engine's stream ended without a response.")
        self._complete = not reader.abandoned
        rest = reader.close()
        outcome = reader.outcome(self._call.prompt_tokens)
        await self._write(pen.write(rest))
        await self._write(pen.close(complete=outcome.finish != "length"))
        finish = plan.tool.finish if plan.tool is not None and outcome.finish == "stop" else outcome.finish
        shown = outcome.shown or self._service.settings.estimate_usage
        last = pen.writer.finish(finish, outcome.usage, derived=outcome.derived, show=shown)
        if not self._aborted:
            self._head()
            self._sink.data(*last)
            self._end()

    async def _write(self, blocks: list[tuple[bytes, Mark] | None]) -> None:
        if self._call.stream and not self._aborted:
            self._head()
        for block in blocks:
            if block is None or self._aborted:
                continue
            if not self._sink.data(*block):
                # The engine is not the one who is slow: its clock stands still.
                self._deadline.reschedule(None)
                await self._sink.writable()
                self._progress()

    async def _stop_inner(self, layout: Layout, name: str) -> None:
        """Cancelling an ensemble does not reach the model inside: it is told to stop the request of this id."""
        given = {"stop": True, "input_ids": 0, "input_lengths": 1, "request_output_len": 1}
        inputs = [
            fill(one.name, one.datatype, [given[one.name]], batched=layout.batched)
            for one in layout.stop_inputs
            if one.name in given
        ]
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                async with self._service.transport.infer(
                    Request(model=layout.stopper, id=name, inputs=inputs)
                ) as replies:
                    while (reply := await replies.next()) is not None and not reply.final:
                        pass
        except (EngineError, TimeoutError):
            pass  # it was told as well as can be; the call itself is over for its client

    def _progress(self) -> None:
        idle = self._service.settings.idle
        self._deadline.reschedule(None if idle is None else self._loop.time() + idle)

    def _trace_headers(self) -> Headers:
        return [(name, value) for name, value in self._call.headers if name in _TRACE and value.isascii()]

    def _out_of_time(self) -> EngineError:
        if self._replies is None or not self._replies.sent:
            return Unreached("The engine could not be reached: no connection in time.")
        return TimedOut("The engine stayed silent for too long.")

    def _head(self) -> None:
        if not self._headed:
            self._headed = True
            kind = "text/event-stream" if self._call.stream else "application/json"
            self._sink.head(200, (("content-type", kind),))

    def _end(self) -> None:
        if not self._aborted and not self._said:
            self._said = True
            self._sink.end()

    def _fail(self, error: EngineError) -> None:
        if not self._aborted and not self._said:
            self._said = True
            self._sink.fail(error)


class _Pen:
    """Writes text as content, or as a tool call where the answer is held to one."""

    def __init__(self, writer: AnswerWriter, call: CallReader | None) -> None:
        self.writer = writer
        self._call = call
        self._named = False

    def write(self, text: str) -> list[tuple[bytes, Mark] | None]:
        if self._call is None:
            return [self.writer.text(text)]
        return self._tool(self._call.feed(text))

    def close(self, *, complete: bool) -> list[tuple[bytes, Mark] | None]:
        return [] if self._call is None else self._tool(self._call.close(complete=complete))

    def _tool(self, arguments: str) -> list[tuple[bytes, Mark] | None]:
        assert self._call is not None
        if not self._call.name:
            return []
        blocks = [] if self._named else [self.writer.tool(self._call.name)]
        self._named = True
        return [*blocks, self.writer.arguments(arguments)]
