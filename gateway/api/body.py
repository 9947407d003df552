"""Reads a request's body, within its limits of size and time, whatever its framing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from litestar.types import Receive

from gateway.contract import ClientGone
from gateway.errors import TooLarge, TooSlow, UnsupportedEncoding

__all__ = ["read_body"]

IDLE = 30.0  # seconds between two pieces
WHOLE = 600.0  # seconds for the body


async def read_body(receive: Receive, headers: Mapping[str, str], limit: int, *, idle: float = IDLE) -> bytes:
    """Read the body to its end.

    Nothing is asked of the server before the headers were judged, so that `100 Continue` is never sent for a body
    that is refused. After a refusal the rest stays unread; the protocol closes the connection.

    Raises:
        UnsupportedEncoding: it is compressed.
        TooLarge: it is over `limit` bytes, as announced or as counted.
        TooSlow: `idle` seconds passed without a byte, or ten minutes altogether.
        ClientGone: the connection was lost.
    """
    encoding = headers.get("content-encoding", "identity")
    if encoding.strip().lower() not in ("", "identity"):
        raise UnsupportedEncoding("Compressed bodies are not taken; send the body without `Content-Encoding`.")
    announced = headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > limit:
        raise _too_large(limit)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + WHOLE
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(idle) as timer:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                piece = message.get("body", b"")
                pieces.append(piece)  # type: ignore[arg-type] # ASGI: `body` is bytes
                size += len(pieces[-1])
                if size > limit:
                    raise _too_large(limit)
                if not message.get("more_body", False):
                    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
                timer.reschedule(min(loop.time() + idle, deadline))
    except TimeoutError:
        raise TooSlow(f"The body did not arrive in time: {size} bytes came, then none for too long.") from None


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"The body is over this gateway's limit of {limit:,} bytes.")
