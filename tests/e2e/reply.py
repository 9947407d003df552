"""A bare HTTP/1.1 client that sees every byte of an answer, and when it came."""

from __future__ import annotations

import asyncio
import json
from typing import Any

__all__ = ["WAIT", "Reply"]

WAIT = 10.0
"""Seconds after which what is awaited will not come: a test then fails rather than hangs."""


class Reply:
    """One answer, read as it comes.

    Attributes:
        status, headers: of the head; names in lower case.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._buffer = b""
        self._ended = False
        self.status = 0
        self.headers: dict[str, str] = {}

    async def head(self) -> None:
        async with asyncio.timeout(WAIT):
            text = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = text.rstrip("\r\n").split("\r\n")
        self.status = int(first.split(" ")[1])
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}

    async def event(self) -> bytes:
        """The next block that ends with a blank line, comments included; b"" at the end."""
        while b"\n\n" not in self._buffer:
            piece = await self._piece()
            if not piece:
                assert not self._buffer, f"the answer ended within an event: {self._buffer[-200:]!r}"
                return b""
            self._buffer += piece
        block, _, self._buffer = self._buffer.partition(b"\n\n")
        return block + b"\n\n"

    async def rest(self) -> bytes:
        """Everything that has not been read yet. Raises IncompleteReadError where the answer was broken off."""
        parts = [self._buffer]
        self._buffer = b""
        while piece := await self._piece():
            parts.append(piece)
        return b"".join(parts)

    async def json(self) -> Any:
        return json.loads(await self.rest())

    async def closed(self) -> bool:
        """Whether the server ends the connection without another byte."""
        async with asyncio.timeout(WAIT):
            try:
                return await self._reader.read(1) == b""
            except ConnectionResetError:
                return True

    def again(self) -> None:
        """Make ready for the next answer on the same connection."""
        self._ended = False

    def leave(self) -> None:
        """Close the connection, whatever is still to come."""
        self._writer.close()

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def _piece(self) -> bytes:
        if self._ended:
            return b""
        async with asyncio.timeout(WAIT):
            if self.headers.get("transfer-encoding") == "chunked":
                size = int(await self._reader.readuntil(b"\r\n"), 16)
                piece = (await self._reader.readexactly(size + 2))[:-2]
            else:
                piece = await self._reader.readexactly(int(self.headers.get("content-length", "0")))
                self._ended = True
        self._ended = self._ended or not piece
        return piece
