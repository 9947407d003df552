"""The asking side of a call over ASGI, and what every answer of the API carries."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

from litestar.types import Receive, Scope, Send

from engines.contract import Headers
from gateway.contract import ClientGone
from gateway.errors import error_event, render

__all__ = ["AsgiClient", "header_map", "label", "new_id"]

REQUEST_ID_MAX = 128
PARTING = 1.0  # seconds for a client to take the last word, where it may not be reading at all

# Of this connection or set here; an engine's own never reach the client.
_OURS = frozenset({"connection", "keep-alive", "transfer-encoding", "upgrade", "x-request-id"})

_STREAM_HEADERS = (
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-cache, no-transform"),
    ("x-accel-buffering", "no"),
)


def new_id() -> str:
    """Make an id of 24 hex digits."""
    return secrets.token_hex(12)


def header_map(scope: Scope) -> dict[str, str]:
    """The request's headers by lower-case name. Of a header sent twice the first counts."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(list(scope["headers"]))}


def label(headers: Mapping[str, str], otherwise: str | None = None) -> str:
    """The client's `x-request-id` where it is short printable ASCII, else `otherwise`, else a new id."""
    given = headers.get("x-request-id", "")
    if 0 < len(given) <= REQUEST_ID_MAX and given.isascii() and given.isprintable() and given == given.strip():
        return given
    return otherwise or new_id()


class AsgiClient:
    """A `gateway.contract.Client`.

    Args:
        receive, send: ASGI's, with the request's body read to its end before `watching` is entered.
        request_id: goes out as `x-request-id`.

    Attributes:
        gone: see `Client`; set while `watching` is entered.
        started, ended: how far the answer is.
    """

    def __init__(self, receive: Receive, send: Send, request_id: str) -> None:
        self.gone = asyncio.Event()
        self.started = False
        self.ended = False
        self.request_id = request_id
        self._streams = False
        self._receive = receive
        self._send = send
        self._watcher: asyncio.Task[None] | None = None

    async def start(self, status: int, headers: Headers) -> None:
        """Send the status line and headers. Event streams get what keeps proxies from holding them back."""
        if self.gone.is_set():
            raise ClientGone
        stream = any(name == "content-type" and value.startswith("text/event-stream") for name, value in headers)
        kept = [(name, value) for name, value in headers if name not in _OURS]
        if stream:
            ours = {name for name, _ in _STREAM_HEADERS}
            kept = [(name, value) for name, value in kept if name not in ours and name != "content-length"]
            kept.extend(_STREAM_HEADERS)
        kept.append(("x-request-id", self.request_id))
        self.started = True
        self._streams = stream
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in kept]
        await self._pass({"type": "http.response.start", "status": status, "headers": encoded})

    async def write(self, block: bytes) -> None:
        """Send bytes; returns when the transport takes more. Raises ClientGone."""
        await self._pass({"type": "http.response.body", "body": block, "more_body": True})

    async def end(self) -> None:
        """The answer is whole."""
        self.ended = True
        await self._pass({"type": "http.response.body", "body": b"", "more_body": False})

    async def refuse(self, exc: BaseException, call: str | None = None) -> None:
        """Answer with an error and nothing else. A client that is gone by now need not be told."""
        status, headers, body = render(exc, call)
        with suppress(ClientGone):
            await self.start(status, headers)
            await self.write(body)
            await self.end()

    async def part(self, exc: BaseException, call: str | None = None) -> None:
        """Tell why nothing more will come: a refusal where nothing was sent, an event at the end of a stream.

        An answer that is no stream stays without its end, so that it cannot be taken for whole.
        """
        with suppress(ClientGone, TimeoutError):
            async with asyncio.timeout(PARTING):
                if not self.started:
                    await self.refuse(exc, call)
                elif self._streams and not self.ended:
                    await self.write(error_event(exc, call))
                    await self.end()

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Set `gone` at the moment that the connection is lost, for as long as this is entered."""
        self._watcher = asyncio.get_running_loop().create_task(self._watch())
        try:
            yield
        finally:
            self._watcher.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self.ended:  # a server says `disconnect` after a whole answer, too
            self.gone.set()

    async def _pass(self, message: object) -> None:
        if self.gone.is_set():
            raise ClientGone
        try:
            await self._send(message)  # type: ignore[arg-type] # built above, in ASGI's shape
        except OSError:  # ASGI servers of the 2.4 specification raise it for a lost connection
            self.gone.set()
            raise ClientGone from None
        if self.gone.is_set() and not self.ended:
            raise ClientGone
