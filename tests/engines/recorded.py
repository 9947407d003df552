"""Reads the recorded answers in `tests/fixtures`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from engines.contract import Call, Kind, Mark
from engines.dialect import Dialect
from engines.sse import Framer

__all__ = ["Recorded", "calling", "chunks", "feed_all", "recorded", "stream_through"]

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
    from engines.answer import StreamEditor

    return feed_all(StreamEditor(call, dialect or Dialect()), recorded(name).body + b"\n\n")


def chunks(stream: bytes) -> list[Any]:
    """The decoded JSON of each event; "[DONE]" for the last. Checks that nothing but `data:` lines is there."""
    events = []
    for block in stream.split(b"\n\n")[:-1]:
        assert block.startswith(b"data: ") and b"\n" not in block, block
        payload = block.removeprefix(b"data: ")
        events.append("[DONE]" if payload == b"[DONE]" else msgspec.json.decode(payload))
    return events
