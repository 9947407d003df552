"""This is a fake: a small HTTP/1.1 server on a real loopback socket that does, byte for byte, what a script says.

It knows no engine. A script is a coroutine over a `Peer`; while it runs, the server watches whether the client
leaves, records it, and ends the script. What tests wait for are events, so that no test needs to sleep.

    async with FakeServer() as fake:
        fake.route("POST", "/v1/chat/completions", script)
        ... fake.url, fake.requests[-1].headers, await fake.requests[-1].gone.wait()
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self, cast

from tests.fakes.http import Received, chunked, parsed, response

__all__ = ["FakeServer", "Peer", "Received", "Script", "chunked", "response"]

Script = Callable[["Peer"], Awaitable[None]]


class Peer:
    """What a script can do to its client. `request` is what the client sent."""

    def __init__(self, connection: _Connection, request: Received) -> None:
        self._connection = connection
        self.request = request

    async def send(self, data: bytes, cut: int = 0) -> None:
        """Write `data`, in pieces of `cut` bytes when cut > 0, each a write of its own; waits for the socket."""
        for start in range(0, len(data), cut or len(data) or 1):
            await self._connection.write(data[start : start + cut] if cut else data, self.request)

    def close(self) -> None:
        """Close in order (FIN)."""
        self._connection.close()

    def reset(self) -> None:
        """Break off (RST), as a killed process's peer sees it."""
        self._connection.reset()

    def close_on_next(self) -> None:
        """Take no further request on this connection: it breaks off when one comes, as one that was just closing."""
        self._connection.closing = True

    async def hang(self) -> None:
        """Say nothing more; ends when the client leaves."""
        await self.request.gone.wait()


class FakeServer:
    """The server. Enter it to listen on a free loopback port.

    Attributes:
        requests: every request, in order. connections: connections open now. accepted: connections ever.
    """

    def __init__(self) -> None:
        self.requests: list[Received] = []
        self.accepted = 0
        self.connections: set[_Connection] = set()
        self._routes: dict[tuple[str, str], Script] = {}
        self._server: asyncio.Server | None = None
        self._arrival = asyncio.Event()
        self._knock = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._faults: list[Exception] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def peer_gone(self) -> asyncio.Event:
        """`gone` of the last request."""
        return self.requests[-1].gone

    def route(self, method: str, path: str, script: Script) -> None:
        """Run `script` for every request of this method and path (without query)."""
        self._routes[method, path] = script

    async def arrived(self, count: int = 1) -> Received:
        """Wait until `count` requests have been read whole; the last of them."""
        while len(self.requests) < count:
            self._arrival.clear()
            await self._arrival.wait()
        return self.requests[count - 1]

    async def connected(self, count: int = 1) -> None:
        """Wait until `count` connections have ever been accepted."""
        while self.accepted < count:
            self._knock.clear()
            await self._knock.wait()

    async def empty(self) -> None:
        """Wait until no connection is open."""
        await self._idle.wait()

    async def refuse(self) -> None:
        """Stop listening: from now on the port refuses. Open connections stay."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def die(self) -> None:
        """What killing the process does: the port refuses and every connection is reset."""
        await self.refuse()
        self.drop()

    def drop(self) -> None:
        """Reset every connection and go on listening."""
        for connection in list(self.connections):
            connection.reset()

    async def listen(self) -> None:
        """Listen; again on the same port after `die`."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self), "127.0.0.1", self.port, reuse_address=True, backlog=512
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.die()
        await self.empty()
        if self._faults and exc is None:
            raise self._faults[0]

    async def answer(self, peer: Peer) -> None:
        """Runs the script for a request. Engines' fakes extend it."""
        path = peer.request.path.partition("?")[0]
        script = self._routes.get((peer.request.method, path))
        if script is None:
            await peer.send(response(404, {"detail": "Not Found"}))
        else:
            await script(peer)

    def faults(self, exc: Exception) -> None:
        """A script failed: leaving the server raises it."""
        self._faults.append(exc)

    def _opened(self, connection: _Connection) -> None:
        self.accepted += 1
        self._knock.set()
        self.connections.add(connection)
        self._idle.clear()

    def _closed(self, connection: _Connection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self._idle.set()

    def _received(self, request: Received) -> None:
        self.requests.append(request)
        self._arrival.set()


class _Connection(asyncio.Protocol):
    """One client's connection: requests one after another, a script for each."""

    def __init__(self, server: FakeServer) -> None:
        self._server = server
        self._buffer = bytearray()
        self._request: Received | None = None
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._transport: asyncio.Transport | None = None
        self.closing = False
        self._ours = False  # it was the script that broke off

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are of another family
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Small buffers, so that a client that does not read is soon noticed.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 15)
        self._transport.set_write_buffer_limits(high=0)
        self._server._opened(self)

    def data_received(self, data: bytes) -> None:
        if self.closing:
            self.reset()
            return
        self._buffer += data
        self._next()

    def eof_received(self) -> bool:
        self._left()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._left()
        self._transport = None
        self._server._closed(self)

    def pause_writing(self) -> None:
        self._writable.clear()
        if self._request is not None:
            self._request.blocked.set()

    def resume_writing(self) -> None:
        self._writable.set()

    async def write(self, data: bytes, request: Received) -> None:
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError
        self._transport.write(data)
        request.sent += len(data)
        await asyncio.sleep(0)  # lets the client read what was written before the next piece
        await self._writable.wait()

    def close(self) -> None:
        self._ours = True
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        self._ours = True
        if self._transport is not None:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()

    def _left(self) -> None:
        request, self._request = self._request, None
        if request is not None and not self._ours:
            request.gone.set()
        self._writable.set()
        if self._task is not None:
            self._task.cancel()

    def _next(self) -> None:
        if self._request is not None:
            return
        request = parsed(self._buffer)
        if request is None:
            return
        self._request = request
        self._server._received(request)
        self._task = asyncio.get_running_loop().create_task(self._run(request))
        self._task.add_done_callback(lambda _: request.done.set())

    async def _run(self, request: Received) -> None:
        try:
            await self._server.answer(Peer(self, request))
        except ConnectionResetError:
            return  # the client left, or the script broke the connection off
        except Exception as exc:
            self._server.faults(exc)
            self.reset()
            return
        self._request = None
        self._next()
