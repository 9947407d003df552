"""What an engine's fake is told to say, byte for byte, and readings of what came out."""

from __future__ import annotations

import json
from typing import Any

from tests.fakes.server import Peer, Script, chunked, response

__all__ = [
    "DONE",
    "HEAD",
    "ROLE",
    "answering",
    "chunk",
    "completion",
    "dropping",
    "events",
    "finish",
    "framed",
    "payloads",
    "streaming",
    "text_of",
    "token",
]

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def chunk(delta: dict[str, Any], finish_reason: str | None = None, **changes: Any) -> dict[str, Any]:
    """A chunk of a chat stream."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    frame = {"id": "chatcmpl-e1", "object": "chat.completion.chunk", "created": 7, "model": "engine-own-name"}
    return {**frame, "choices": [choice], **changes}


def framed(payload: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


ROLE = framed(chunk({"role": "assistant", "content": ""}))


def token(text: str, **changes: Any) -> bytes:
    return framed(chunk({"content": text}, **changes))


def finish(reason: str | None = "stop", **changes: Any) -> bytes:
    return framed(chunk({}, reason, **changes))


def events(*chunks: dict[str, Any]) -> bytes:
    return b"".join(framed(each) for each in chunks)


def completion(message: dict[str, Any], finish_reason: str = "stop", **changes: Any) -> dict[str, Any]:
    """A whole chat answer."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    frame = {"id": "chatcmpl-e1", "object": "chat.completion", "created": 7, "model": "engine-own-name"}
    return {**frame, "choices": [choice], "usage": usage, **changes}


def answering(answer: bytes | dict[str, Any], *, close: bool = False) -> Script:
    """Say this whole response, or a 200 with this JSON."""

    async def script(peer: Peer) -> None:
        await peer.send(answer if isinstance(answer, bytes) else response(200, answer))
        if close:
            peer.close()

    return script


def streaming(*parts: bytes, cut: int = 0) -> Script:
    """Stream these parts, each a chunk and a write of its own, or in writes of `cut` bytes."""

    async def script(peer: Peer) -> None:
        await peer.send(HEAD)
        for part in parts:
            await peer.send(chunked(part), cut)
        await peer.send(chunked(b""))

    return script


def dropping(*parts: bytes) -> Script:
    """Stream these parts, then break the connection off; the engine goes on listening."""

    async def script(peer: Peer) -> None:
        await peer.send(HEAD)
        for part in parts:
            await peer.send(chunked(part))
        peer.reset()

    return script


def payloads(body: bytes) -> list[dict[str, Any]]:
    """The JSON events of a stream as a client got it; comments and `[DONE]` left out."""
    blocks = body.split(b"\n\n")
    assert blocks[-1] == b"", f"the stream ends within an event: {blocks[-1]!r}"
    said = [block.removeprefix(b"data: ") for block in blocks[:-1] if not block.startswith(b":")]
    return [json.loads(payload) for payload in said if payload != b"[DONE]"]


def text_of(body: bytes) -> str:
    """The content of all chunks of a stream."""
    parts = []
    for each in payloads(body):
        for choice in each.get("choices", ()):
            parts.append(choice.get("text") or choice.get("delta", {}).get("content") or "")
    return "".join(parts)
