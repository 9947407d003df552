"""A load client on raw asyncio protocols: keep-alive connections, one request after another on each.

    python load.py URL plain|stream --connections C --requests N [--chunks K --interval-us U] [--model M]

Prints one JSON object: errors, requests and chunks seen, reads, and milliseconds to the first token (streams) or to the
first byte of the answer. Run as a program of its own, pinned to the other core than the gateway.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import cast
from urllib.parse import urlsplit

import uvloop

__all__ = ["main"]

TOKEN = b'"content":" tok'
"""What a token-bearing event of the mock engine holds. Its role event does not count, here as in the gateway."""

PROMPT = "lorem ipsum dolor sit amet " * 56  # about 1.5 KB


class Connection(asyncio.Protocol):
    """One keep-alive connection. `ask` sends a request and returns when its answer is whole."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._whole: asyncio.Future[None] | None = None
        self.status = 0
        self.events = 0
        self.reads = 0
        self.first: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none of asyncio's classes

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self._whole is not None and not self._whole.done():
            self._whole.set_exception(ConnectionError(f"closed in the middle of an answer: {exc}"))

    async def ask(self, request: bytes) -> None:
        assert self.transport is not None
        self._whole = asyncio.get_running_loop().create_future()
        self._head = b""
        self._in_body = False
        self._tail = b""
        self.status = self.events = self.reads = 0
        self.first = None
        self.transport.write(request)
        await self._whole

    def data_received(self, data: bytes) -> None:
        self.reads += 1
        if not self._in_body:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            head, data = self._head[:end].lower(), self._head[end + 4 :]
            self._in_body = True
            self.status = int(head[9:12])
            at = head.find(b"content-length:")
            self._left = -1 if at < 0 else int(head[at + 15 :].split(b"\r\n", 1)[0])
        if self.first is None and (TOKEN in data if self._left < 0 else data):
            self.first = time.perf_counter()
        self.events += data.count(b"data: {")
        if self._left >= 0:
            self._left -= len(data)
            whole = self._left <= 0
        else:
            self._tail = (self._tail + data)[-5:]
            whole = self._tail == b"0\r\n\r\n"
        if whole and self._whole is not None and not self._whole.done():
            self._whole.set_result(None)


def _request(options: argparse.Namespace) -> bytes:
    where = urlsplit(options.url)
    body: dict[str, object] = {
        "model": options.model,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": options.chunks,
    }
    if options.mode == "stream":
        body |= {"stream": True, "seed": options.interval_us, "stream_options": {"include_usage": True}}
    content = json.dumps(body, separators=(",", ":")).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {where.netloc}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


async def _run(options: argparse.Namespace) -> dict[str, object]:
    where = urlsplit(options.url)
    request = _request(options)
    left = iter(range(options.requests))
    waits: list[float] = []
    seen = {"errors": 0, "events": 0, "reads": 0}
    why = ""

    async def worker() -> None:
        nonlocal why
        connection: Connection | None = None
        for _ in left:
            try:
                if connection is None or connection.transport is None:
                    loop = asyncio.get_running_loop()
                    _, connection = await loop.create_connection(Connection, where.hostname, where.port)
                begun = time.perf_counter()
                async with asyncio.timeout(120):
                    await connection.ask(request)
            except (OSError, TimeoutError) as error:
                seen["errors"] += 1
                why = why or repr(error)
                connection = None
                continue
            streamed = options.mode == "plain" or connection.events >= options.chunks
            if connection.status != 200 or not streamed:
                seen["errors"] += 1
                why = why or f"status {connection.status}, {connection.events} events"
            waits.append((connection.first or time.perf_counter()) - begun)
            seen["events"] += connection.events
            seen["reads"] += connection.reads
        if connection is not None and connection.transport is not None:
            connection.transport.close()

    await asyncio.gather(*(worker() for _ in range(options.connections)))
    waits.sort()
    middle = waits[len(waits) // 2] * 1e3 if waits else None
    return {**seen, "why": why, "requests": len(waits), "first_p50_ms": middle}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("mode", choices=["plain", "stream"])
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--chunks", type=int, default=100)
    parser.add_argument("--interval-us", type=int, default=20000)
    parser.add_argument("--model", default="public")
    print(json.dumps(uvloop.run(_run(parser.parse_args()))))


if __name__ == "__main__":
    main()
