"""What the engines' tests share: calls, a sink that watches over its protocol, and the fake of each engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import msgspec

from engines import Attempt, Call, Engine, EngineError, Headers, Mark, build
from tests.fakes.engine import FakeEngine
from tests.fakes.llamacpp import FakeLlamaCpp
from tests.fakes.tensorrt_llm import FakeTensorRtLlm
from tests.fakes.tgi import FakeTgi
from tests.fakes.vllm import FakeVllm

__all__ = ["FAKES", "PUBLIC", "RecordingSink", "Serving", "make_call", "make_engine", "run", "serve"]

FAKES: dict[str, type[FakeEngine]] = {fake.kind: fake for fake in (FakeVllm, FakeTgi, FakeLlamaCpp, FakeTensorRtLlm)}

PUBLIC = "public/name"
"""What clients call the model."""


def make_call(
    kind: str = "chat", *, stream: bool = True, include_usage: bool = False, headers: Headers = (), **fields: object
) -> Call:
    """A call as the gateway would make it from a body with these fields."""
    prompts: dict[str, dict[str, object]] = {
        "chat": {"messages": [{"role": "user", "content": "Hi"}]},
        "completions": {"prompt": "Hi"},
        "embeddings": {"input": "Hi"},
    }
    body: dict[str, object] = {"model": PUBLIC, **prompts[kind], **fields}
    if stream:
        body["stream"] = True
    if include_usage:
        body["stream_options"] = {"include_usage": True}
    return Call(
        id="c0ffee",
        request_id="client-label-1",
        kind=kind,  # type: ignore[arg-type]
        model=PUBLIC,
        fields={name: msgspec.Raw(msgspec.json.encode(value)) for name, value in body.items()},
        stream=stream,
        max_tokens=fields.get("max_tokens"),  # type: ignore[arg-type]
        include_usage=include_usage,
        headers=headers,
    )


def make_engine(fake: FakeEngine, **options: object) -> Engine:
    """The real adapter, told of the fake's address and model."""
    return build(fake.kind, "endpoint-0", {"url": fake.url, "model": fake.model, **options})


Serving = Callable[..., AbstractAsyncContextManager[tuple[FakeEngine, Engine]]]
"""Starts the fake of one kind, with these knobs, and its adapter: `serving(options={...}, text=...)`."""


@asynccontextmanager
async def serve(
    kind: str, options: dict[str, Any] | None = None, **knobs: Any
) -> AsyncIterator[tuple[FakeEngine, Engine]]:
    """The fake and its adapter; in the end nothing may be left open: no connection, no task."""
    async with FAKES[kind](**knobs) as fake:
        engine = make_engine(fake, **(options or {}))
        attempts: list[Any] = []
        plain = engine.open

        def watched(call: Call, sink: Any) -> Attempt:
            attempts.append(plain(call, sink))
            return attempts[-1]  # type: ignore[no-any-return]

        engine.open = watched  # type: ignore[method-assign]
        try:
            yield fake, engine
        finally:
            await engine.aclose()
        await fake.empty()
        for attempt in attempts:
            # What a sink found wrong with the order of words ends up here.
            if not attempt.task.cancelled() and isinstance(attempt.task.exception(), AssertionError):
                raise attempt.task.exception()
        for request in fake.requests:
            await request.done.wait()
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def run(engine: Engine, sink: RecordingSink, **call: Any) -> RecordingSink:
    """One call to its end."""
    attempt = engine.open(make_call(**call), sink)
    await sink.over.wait()
    await attempt.closed()
    return sink


class RecordingSink:
    """Keeps what an engine says, and fails the test where that breaks the protocol of `Sink`.

    Args:
        room: blocks after which `data` says False, until `reopen`. on_data: called from within `data`.
    """

    def __init__(self, room: int | None = None, on_data: Callable[[], None] | None = None) -> None:
        self.heads: list[tuple[int, Headers]] = []
        self.blocks: list[bytes] = []
        self.marks: list[Mark] = []
        self.error: EngineError | None = None
        self.over = asyncio.Event()
        self.full = asyncio.Event()
        self.silent = False  # set by a test after an abort: from then on any word is a fault
        self._room = room
        self._open = asyncio.Event()
        self._came = asyncio.Event()
        self._on_data = on_data

    def head(self, status: int, headers: Headers) -> None:
        self._may_speak()
        assert not self.heads and not self.blocks
        self.heads.append((status, headers))

    def data(self, block: bytes, mark: Mark) -> bool:
        self._may_speak()
        assert self.heads, "data before head"
        self.blocks.append(block)
        self.marks.append(mark)
        self._came.set()
        if self._on_data is not None:
            self._on_data()
        if self._room is not None and len(self.blocks) >= self._room and not self._open.is_set():
            self.full.set()
            return False
        return True

    def on_resume(self, callback: Callable[[], None]) -> None:
        raise AssertionError("an engine over HTTP is a pull source")

    async def writable(self) -> None:
        await self._open.wait()

    def end(self) -> None:
        self._may_speak()
        self.over.set()

    def fail(self, error: EngineError) -> None:
        self._may_speak()
        assert isinstance(error, EngineError)
        self.error = error
        self.over.set()

    def reopen(self) -> None:
        self._open.set()

    async def got(self, count: int) -> None:
        """Wait for the first `count` blocks."""
        while len(self.blocks) < count:
            self._came.clear()
            await self._came.wait()

    @property
    def body(self) -> bytes:
        return b"".join(self.blocks)

    @property
    def payloads(self) -> list[bytes]:
        """The payloads of the events, as a plain client would split them."""
        events = self.body.split(b"\n\n")
        assert events[-1] == b"" and all(event.startswith(b"data: ") for event in events[:-1])
        return [event[6:] for event in events[:-1]]

    @property
    def chunks(self) -> list[dict[str, Any]]:
        return [json.loads(payload) for payload in self.payloads if payload != b"[DONE]"]

    @property
    def text(self) -> str:
        """The generated text of a stream, of either route."""
        parts = []
        for chunk in self.chunks:
            for choice in chunk["choices"]:
                parts.append(choice.get("text") or choice.get("delta", {}).get("content") or "")
        return "".join(parts)

    @property
    def finish(self) -> str | None:
        return next((mark.finish for mark in self.marks if mark.finish), None)

    def _may_speak(self) -> None:
        assert not self.silent, "a word after abort"
        assert not self.over.is_set(), "a word after the end"
