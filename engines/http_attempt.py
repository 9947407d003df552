"""One attempt at an OpenAI-speaking engine over HTTP: sends the call, edits the answer on its way into the sink.

An error that the engine puts into a stream it had begun (`Mark.error`) reaches the sink as `fail`, without data: the
gateway writes the client's error event in its own form, or tries elsewhere where nothing was sent yet.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from engines.answer import StreamEditor, edit_answer
from engines.classify import classify
from engines.contract import Call, Headers, Sink
from engines.dialect import Dialect
from engines.errors import EngineError, Malformed, TimedOut, Unreached, Unsupported
from engines.request import build_body
from engines.said import lacks_route
from engines.sse import Framer
from engines.upstream import Exchange, Upstream

__all__ = ["ERROR_BODY", "HttpAttempt", "Patience"]

ERROR_BODY: Final = 1 << 16
"""Bytes that are read of an error answer."""

_PATHS: Final = {"chat": "/v1/chat/completions", "completions": "/v1/completions", "embeddings": "/v1/embeddings"}
_STREAM: Final = "text/event-stream"
_JSON: Final = "application/json"
_DONE: Final = b"[DONE]"
_STEPS: Final = 8


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How long, and how much, an attempt puts up with.

    Attributes:
        first_byte: seconds from dispatch to the first byte of the answer's body; None: no limit. (Headers do not
            count: vLLM sends them before it has looked at the call.)
        idle: seconds without a byte from then on, to within an eighth; comments count as bytes. None: no limit.
        max_event: bytes of one server-sent event. max_answer: bytes of an answer that does not stream.
    """

    first_byte: float | None
    idle: float | None
    max_event: int
    max_answer: int


class HttpAttempt:
    """An `Attempt` that owns its task and its connection. Needs a running event loop.

    The sink hears exactly one of `end` and `fail`; after `abort` it hears nothing more. The connection goes back to
    the pool where the answer was read to its end, and is closed at once in every other case.

    Args:
        closes_after_stream: the engine closes a connection after a stream without having said so.
        secret: the engine's own key; whatever an engine writes into its errors, this is not passed on.

    Attributes:
        task: runs the attempt.
    """

    def __init__(
        self,
        upstream: Upstream,
        dialect: Dialect,
        patience: Patience,
        *,
        model: str,
        headers: Headers,
        call: Call,
        sink: Sink,
        closes_after_stream: bool = False,
        secret: str | None = None,
    ) -> None:
        self._upstream = upstream
        self._dialect = dialect
        self._patience = patience
        self._model = model
        self._headers = headers
        self._call = call
        self._sink = sink
        self._closes_after_stream = closes_after_stream
        self._secret = secret
        self._said = False  # `end` or `fail` was said
        self._aborted = False
        self._exchange: Exchange | None = None
        self._deadline = asyncio.timeout(patience.first_byte)
        self._next_move = 0.0
        self._loop = asyncio.get_running_loop()
        self.task = self._loop.create_task(self._run())

    def abort(self, why: str) -> None:
        """Close the connection now and say nothing more to the sink. `why` goes with the task's cancellation."""
        if self._aborted:
            return
        self._aborted = True
        if self._exchange is not None:
            self._exchange.abort()
        self.task.cancel(why)

    async def closed(self) -> None:
        """Return when the connection was closed or given back, whichever way the attempt ended."""
        await asyncio.wait({self.task})

    async def _run(self) -> None:
        try:
            async with self._deadline:
                await self._send()
        except EngineError as error:
            self._fail(await self._upstream.settle(error))
        except TimeoutError:
            self._fail(self._out_of_time())
        except Exception as error:
            # A fault of ours. The client must not wait for ever; the loop's exception handler gets to see it.
            self._fail(Malformed("The engine's answer could not be handled.", detail=repr(error)))
            raise

    async def _send(self) -> None:
        call = self._call
        body = build_body(call, self._dialect, self._model)
        self._exchange = exchange = self._upstream.exchange("POST", _PATHS[call.kind], self._headers, body)
        exchange.on_bytes = self._bytes_came
        async with exchange:
            if exchange.status == 200 and call.stream and exchange.content_type == _STREAM:
                await self._stream(exchange)
            elif exchange.status == 200 and exchange.content_type == _JSON:
                await self._whole(exchange)
            else:
                raise await self._error(exchange)

    async def _stream(self, exchange: Exchange) -> None:
        if self._closes_after_stream:
            exchange.use_once()
        self._sink.head(200, (("content-type", _STREAM),))
        framer = Framer(self._patience.max_event)
        editor = StreamEditor(self._call, self._dialect)
        ended = False
        while not ended and not self._aborted:
            chunk = await exchange.chunk()
            payloads = framer.feed(chunk) if chunk else framer.close()
            ended = await self._relay(editor, payloads) or not chunk
        if self._aborted:
            return
        last = editor.close()
        if last is not None:
            self._sink.data(*last)
        self._end()
        await exchange.drain()

    async def _relay(self, editor: StreamEditor, payloads: list[bytes]) -> bool:
        """Edit the events into the sink. True: the engine said that the stream is over; later events are dropped."""
        for payload in payloads:
            edited = editor.feed(payload)
            if edited is not None:
                block, mark = edited
                if mark.error is not None:
                    raise mark.error
                if not self._sink.data(block, mark):
                    await self._until_writable()
                if self._aborted:  # from within the sink
                    return True
            if payload.strip() == _DONE:
                return True
        return False

    async def _whole(self, exchange: Exchange) -> None:
        body, complete = await exchange.read(self._patience.max_answer)
        if not complete:
            raise Malformed(f"The engine's answer has more than {self._patience.max_answer} bytes.")
        block, mark = edit_answer(self._call, body, self._dialect)
        if self._call.stream:
            raise Malformed("The engine did not stream its answer, though asked to.", detail=_excerpt(body))
        self._sink.head(200, (("content-type", _JSON),))
        if not self._aborted:
            self._sink.data(block, mark)
        self._end()

    async def _error(self, exchange: Exchange) -> EngineError:
        try:
            body, _ = await exchange.read(ERROR_BODY)
        except EngineError as broken:
            body = broken.detail.encode()  # the status alone has to do
        error = classify(exchange.status, body, exchange.content_type, exchange.retry_after())
        if self._call.kind == "embeddings" and exchange.status == 404 and lacks_route(body):
            # A model that generates has no such route in vLLM. That is no fault of the operator's.
            text = f"{self._dialect.engine} serves no embeddings of this model."
            return Unsupported(text, status=400, param="model", code="unsupported_parameter", detail=error.detail)
        return error

    async def _until_writable(self) -> None:
        # The engine is not the one who is slow: its clock stands still.
        self._deadline.reschedule(None)
        await self._sink.writable()
        self._next_move = 0.0
        self._bytes_came()

    def _bytes_came(self) -> None:
        idle = self._patience.idle
        if idle is None:
            if self._next_move == 0.0:
                self._deadline.reschedule(None)
                self._next_move = float("inf")
            return
        now = self._loop.time()
        if now >= self._next_move:  # moving a timer for every chunk would cost more than the chunk's own check
            self._deadline.reschedule(now + idle)
            self._next_move = now + idle / _STEPS

    def _out_of_time(self) -> EngineError:
        if self._exchange is None or not self._exchange.sent:
            return Unreached("The engine could not be reached: no connection in time.")
        return TimedOut("The engine stayed silent for too long.")

    def _end(self) -> None:
        if not self._aborted and not self._said:
            self._said = True
            self._sink.end()

    def _fail(self, error: EngineError) -> None:
        if not self._aborted and not self._said:
            self._said = True
            error.hide(self._secret)
            self._sink.fail(error)


def _excerpt(body: bytes) -> str:
    return body[:512].decode("utf-8", "replace")
