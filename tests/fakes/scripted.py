"""A scripted engine and a recording client: fakes, with observation points, for tests of the line itself.

They stand where an adapter and the HTTP server stand. What crosses a socket is tested with `tests.fakes.server`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from engines import Call, EngineError, Headers, Health, Mark, Sink, Usage
from engines.contract import ORDINARY
from gateway.contract import ClientGone

ROLE = (b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n', Mark())
DONE = (b"data: [DONE]\n\n", Mark(terminal=True))
Step = tuple[bytes, Mark] | EngineError | Callable[[], Awaitable[object]]


def token(text: str) -> tuple[bytes, Mark]:
    return (b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n' % text.encode(), ORDINARY)


def usage(prompt: int, completion: int) -> tuple[bytes, Mark]:
    return (b"", Mark(events=0, usage=Usage(prompt, completion)))


def answer(text: str = "hi", completion: int = 1) -> tuple[bytes, Mark]:
    body = b'{"object":"chat.completion","choices":[{"index":0,"message":{"content":"%s"}}]}' % text.encode()
    return (body, Mark(terminal=True, finish="stop", usage=Usage(3, completion)))


class ScriptedEngine:
    """Plays one script per call, in order; the last script is played for every further call.

    Engines that are given the same `plan` share its order, whichever of them is called.
    """

    kind = "vllm"

    def __init__(self, name: str, *scripts: list[Step], plan: list[list[Step]] | None = None) -> None:
        self.name = name
        self.scripts = list(scripts) if plan is None else plan
        self.calls: list[Call] = []
        self.attempts: list[ScriptedAttempt] = []
        self.opened = asyncio.Event()
        self.health = Health("ready")

    def open(self, call: Call, sink: Sink) -> ScriptedAttempt:
        self.calls.append(call)
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        attempt = ScriptedAttempt(script, sink)
        self.attempts.append(attempt)
        self.opened.set()
        return attempt

    async def probe(self) -> Health:
        return self.health

    async def aclose(self) -> None:
        for attempt in self.attempts:
            attempt.abort("closed")


class ScriptedAttempt:
    def __init__(self, script: list[Step], sink: Sink) -> None:
        self.aborted = asyncio.Event()
        self.blocked = asyncio.Event()
        self.why = ""
        self._task = asyncio.get_running_loop().create_task(self._play(script, sink))

    async def _play(self, script: list[Step], sink: Sink) -> None:
        sink.head(200, ())
        for step in script:
            if isinstance(step, EngineError):
                sink.fail(step)
                return
            if callable(step):
                await step()
                continue
            if not sink.data(*step):
                self.blocked.set()
                await sink.writable()
        sink.end()

    def abort(self, why: str) -> None:
        self.why = self.why or why
        self.aborted.set()
        self._task.cancel()

    async def closed(self) -> None:
        await asyncio.gather(self._task, return_exceptions=True)


async def never() -> None:
    """A step that does not end by itself: an engine that is silent."""
    await asyncio.Event().wait()


class RecordingClient:
    """Keeps what it was sent. `stall` holds every write until it is set, as a client that does not read would."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.began = asyncio.Event()
        self.wrote = asyncio.Event()
        self.ended = False
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body = b""
        self.stall: asyncio.Event | None = None

    async def start(self, status: int, headers: Headers) -> None:
        assert self.status is None, "a second head"
        self.status, self.headers = status, dict(headers)
        self.began.set()

    async def write(self, block: bytes) -> None:
        if self.stall is not None:
            await self.stall.wait()
        if self.gone.is_set():
            raise ClientGone
        assert self.status is not None, "a body before its head"
        self.body += block
        self.wrote.set()

    async def end(self) -> None:
        assert not self.ended, "ended twice"
        self.ended = True
