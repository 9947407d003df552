"""Reads the recorded answers in `tests/fixtures`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from engines.answer import StreamEditor
from engines.contract import Call, Kind, Mark, Usage
from engines.dialect import Dialect
from engines.sse import Framer

__all__ = [
    "Recorded",
    "calling",
    "chunks",
    "edit",
    "event",
    "feed_all",
    "recorded",
    "stream",
    "stream_through",
    "text_of",
    "usage_of",
]

_FIXTURES = Path(__file__).parents[1] / "fixtures"


class Recorded(NamedTuple):
    status: int
    content_type: str
    body: bytes


def recorded(name: str) -> Recorded:
    """The answer in `tests/fixtures/<name>.txt`."""
    data = (_FIXTURES / f"{name}.txt").read_bytes()
    data = re.sub(rb"^(#[^\n]*\n)+", b"", data)
    head, _, body = data.partition(b"\r\n\r\n")
    content_type = re.search(rb"(?im)^content-type: *([^\r\n]*)", head)
    return Recorded(int(head.split()[1]), content_type.group(1).decode() if content_type else "", body.strip(b"\r\n"))


def calling(kind: Kind = "chat", model: str = "public", body: dict[str, Any] | None = None, **more: Any) -> Call:
    """A call of a client whose JSON body has these members."""
    raw = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in (body or {}).items()}
    return Call(id="call1", request_id="r1", kind=kind, model=model, fields=raw, **more)


def feed_all(editor: Any, data: bytes) -> tuple[bytes, list[Mark]]:
    """Everything that `editor` makes of the stream `data` that ends in order."""
    framer = Framer()
    results = [editor.feed(payload) for payload in framer.feed(data) + framer.close()]
    results.append(editor.close())
    some = [result for result in results if result is not None]
    return b"".join(block for block, _ in some), [mark for _, mark in some]


def stream_through(name: str, call: Call, dialect: Dialect | None = None) -> tuple[bytes, list[Mark]]:
    return feed_all(StreamEditor(call, dialect or Dialect()), recorded(name).body + b"\n\n")


def chunks(stream: bytes) -> list[Any]:
    """The decoded JSON of each event; "[DONE]" for the last. Checks that nothing but `data:` lines is there."""
    events = []
    for block in stream.split(b"\n\n")[:-1]:
        assert block.startswith(b"data: ") and b"\n" not in block, block
        payload = block.removeprefix(b"data: ")
        events.append("[DONE]" if payload == b"[DONE]" else msgspec.json.decode(payload))
    return events


def event(delta: Any, finish: Any = None, index: int = 0, **more: Any) -> bytes:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    data = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return msgspec.json.encode({**data, **more})


def stream(*payloads: bytes) -> bytes:
    return b"".join(b"data: " + payload + b"\n\n" for payload in payloads)


def edit(call: Call, *payloads: bytes) -> tuple[list[Any], list[Mark]]:
    out, marks = feed_all(StreamEditor(call, Dialect()), stream(*payloads))
    return chunks(out), marks


def text_of(events: list[Any]) -> str:
    deltas = [choice for item in events[:-1] for choice in item["choices"]]
    return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in deltas)


def usage_of(marks: list[Mark]) -> Usage | None:
    known = [mark.usage for mark in marks if mark.usage is not None]
    return known[-1] if known else None
