"""This is a fake's HTTP: requests read from bytes, responses made into bytes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

__all__ = ["Received", "chunked", "parsed", "response"]


class Received:
    """One request as it came, and what became of its client.

    Attributes:
        method, path: of the request line; the path with its query.
        headers: (name in lower case, value), in order. body: without transfer coding.
        gone: set when the client closed the connection before the script had ended.
        done: set when the script has ended, for whatever reason.
        blocked: set when the client stopped reading and the socket took no more.
        sent: bytes handed to the socket so far.
    """

    def __init__(self, method: str, path: str, headers: list[tuple[str, str]], body: bytes) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.body = body
        self.gone = asyncio.Event()
        self.done = asyncio.Event()
        self.blocked = asyncio.Event()
        self.sent = 0

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def response(
    status: int,
    body: bytes | Any = b"",
    content_type: str = "application/json",
    *,
    headers: str = "",
    reason: str = "X",
) -> bytes:
    """A whole HTTP response with its length; a body that is no bytes is sent as JSON. `headers`: "a: b\\r\\n..."."""
    data = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    head = f"HTTP/1.1 {status} {reason}\r\ncontent-type: {content_type}\r\ncontent-length: {len(data)}\r\n{headers}\r\n"
    return head.encode() + data


def chunked(data: bytes) -> bytes:
    """`data` as one chunk of the chunked coding; b"" gives the last one."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def parsed(buffer: bytearray) -> Received | None:
    """The first whole request in `buffer`, taken out of it; None where there is none yet."""
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        return None
    lines = buffer[:end].decode("latin-1").split("\r\n")
    method, path, _ = lines[0].split(" ")
    pairs = [line.partition(":") for line in lines[1:]]
    headers = [(name.lower(), value.strip()) for name, _, value in pairs]
    length = int(dict(headers).get("content-length", "0"))
    start = end + 4
    if len(buffer) < start + length:
        return None
    body = bytes(buffer[start : start + length])
    del buffer[: start + length]
    return Received(method, path, headers, body)
