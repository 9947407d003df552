"""This is a fake: what the fakes of the four engines share. Each states its own bytes and nothing more.

    async with FakeVllm(text="안녕 🦀", cut=1) as fake:      # every byte of the answer is a write of its own
        ... fake.url, fake.requests, await fake.peer_gone.wait()

Knobs may be turned while it runs: `script` replaces every answer; `pause_at` stops before the answer's head
("head") or before event number n, sets `paused`, and waits for `gate`; `error_at` puts the engine's own form of
failure in the place of event n.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from tests.fakes.server import FakeServer, Peer, Script, chunked, response

__all__ = ["FakeEngine", "Json", "captured", "captured_events", "compact"]

Json = dict[str, Any]

_FIXTURES = Path(__file__).parent.parent / "fixtures"


def captured(name: str) -> tuple[int, str, bytes]:
    """A captured response of a real engine: status, media type, body."""
    raw = (_FIXTURES / f"{name}.txt").read_bytes()
    raw = raw[raw.index(b"HTTP/1.1 ") :]
    head, _, body = raw.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    headers = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in lines[1:])}
    length = headers.get("content-length")
    return int(lines[0].split(" ")[1]), headers.get("content-type", ""), body[: int(length)] if length else body


def captured_events(name: str) -> list[Json]:
    """The JSON events of a captured stream, `[DONE]` left out."""
    payloads = [line[5:].strip() for line in captured(name)[2].splitlines() if line.startswith(b"data:")]
    return [json.loads(payload) for payload in payloads if payload != b"[DONE]"]


def compact(value: object) -> bytes:
    """JSON as the engines write it: no blanks, UTF-8 unescaped."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


class FakeEngine(FakeServer):
    """An engine that answers with `text`, `piece` characters to a token."""

    kind: ClassVar[str]
    sse_head: ClassVar[bytes]
    health_path: ClassVar[str] = "/health"
    closes_after_stream: ClassVar[bool] = False
    comment: ClassVar[bytes] = b":\n\n"
    done: ClassVar[bytes] = b"data: [DONE]\n\n"

    def __init__(
        self,
        text: str = "Hello, world.",
        *,
        cut: int = 0,
        piece: int = 3,
        model: str = "engine-own-name",
        api_key: str | None = None,
        pause_at: int | Literal["head"] | None = None,
        error_at: int | None = None,
        delay: float = 0.0,
        comments: bool = False,
    ) -> None:
        super().__init__()
        self.text = text
        self.cut = cut
        self.piece = piece
        self.model = model
        self.api_key = api_key
        self.pause_at = pause_at
        self.error_at = error_at
        self.delay = delay
        self.comments = comments
        self.finish = "stop"
        self.prompt_tokens = 7
        self.script: Script | None = None
        self.events: Sequence[bytes] | None = None
        """Payloads to stream in place of those made from `text`."""
        self.health: bytes | None = None
        """A whole response for the health route in place of the healthy one."""
        self.paused = asyncio.Event()
        self.gate = asyncio.Event()
        self.route("GET", self.health_path, self._health)
        self.route("GET", "/v1/models", self._models)
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings"):
            self.route("POST", path, self._generate)

    # What each engine states

    def chat_events(self, body: Json) -> list[bytes]:
        """The framed events of a chat stream, the last `[DONE]` included."""
        raise NotImplementedError

    def completion_events(self, body: Json) -> list[bytes]:
        raise NotImplementedError

    def chat_answer(self, body: Json) -> Json:
        raise NotImplementedError

    def completion_answer(self, body: Json) -> Json:
        raise NotImplementedError

    def embedding_answer(self, body: Json) -> bytes:
        """A whole response."""
        raise NotImplementedError

    def models(self) -> Json:
        raise NotImplementedError

    def healthy(self) -> bytes:
        """A whole response of the health route when all is well."""
        return response(200, b"")

    def refusal(self, body: Json) -> bytes | None:
        """A whole error response where the engine would refuse this body, else None."""
        return None

    def broken(self) -> list[bytes] | None:
        """The framed events of a failure within a stream; None: the engine breaks the connection off."""
        raise NotImplementedError

    def too_long(self) -> bytes:
        """A whole response: the prompt does not fit."""
        raise NotImplementedError

    def frame(self, payload: bytes) -> bytes:
        return b"data: " + payload + b"\n\n"

    # Shared

    @property
    def pieces(self) -> list[str]:
        return [self.text[i : i + self.piece] for i in range(0, len(self.text), self.piece)]

    def asks_usage(self, body: Json) -> bool:
        return bool((body.get("stream_options") or {}).get("include_usage"))

    def usage(self, template: Json) -> Json:
        """`template` with this answer's counts."""
        tokens = len(self.pieces)
        counts: Json = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": tokens,
            "total_tokens": self.prompt_tokens + tokens,
        }
        if template.get("prompt_tokens_details"):
            counts["prompt_tokens_details"] = {"cached_tokens": 0}
        return {**template, **counts}

    async def _health(self, peer: Peer) -> None:
        await peer.send(self.health or self.healthy())

    async def _models(self, peer: Peer) -> None:
        await peer.send(response(200, self.models()))

    async def _generate(self, peer: Peer) -> None:
        if self.script is not None:
            await self.script(peer)
            return
        if self.api_key and peer.request.header("authorization") != f"Bearer {self.api_key}":
            await peer.send(response(401, {"error": "Unauthorized"}))
            return
        body = peer.request.json
        refusal = self.refusal(body)
        if refusal is not None:
            await peer.send(refusal)
        elif body.get("stream"):
            await self._stream(peer, body)
        else:
            await self._pause("head")
            await peer.send(self._answer(peer.request.path, body), self.cut)

    def _answer(self, path: str, body: Json) -> bytes:
        if path == "/v1/embeddings":
            return self.embedding_answer(body)
        answer = self.chat_answer(body) if path == "/v1/chat/completions" else self.completion_answer(body)
        return response(200, compact(answer))

    async def _stream(self, peer: Peer, body: Json) -> None:
        if self.events is not None:
            events = [*(self.frame(event) for event in self.events), self.done]
        elif peer.request.path == "/v1/chat/completions":
            events = self.chat_events(body)
        else:
            events = self.completion_events(body)
        await self._pause("head")
        await peer.send(self.sse_head, self.cut)
        for number, event in enumerate(events):
            await self._pause(number)
            if number == self.error_at:
                last = self.broken()
                if last is None:
                    peer.reset()
                    return
                await peer.send(b"".join(chunked(line) for line in last), self.cut)
                break
            if self.comments:
                await peer.send(chunked(self.comment), self.cut)
            await peer.send(chunked(event), self.cut)
            if self.delay:
                await asyncio.sleep(self.delay)
        if self.closes_after_stream:
            peer.close_on_next()
        await peer.send(chunked(b""), self.cut)

    async def _pause(self, at: int | str) -> None:
        if self.pause_at == at:
            self.paused.set()
            await self.gate.wait()
