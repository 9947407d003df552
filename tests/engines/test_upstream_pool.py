"""When connections are closed, and when they are not used again, over real sockets."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import cast

import pytest

from engines.upstream import Exchange, Upstream
from tests.fakes.server import FakeServer, Peer, chunked, response

_CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n"


async def _ask(upstream: Upstream) -> Exchange:
    exchange = upstream.exchange("POST", "/x", [], b"{}")
    async with exchange:
        await exchange.read(1 << 20)
    return exchange


class _Deaf(asyncio.Protocol):
    """This is a fake: takes the beginning of a request, says `answer`, and reads nothing more."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.taken = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if not self.taken.is_set():
            self.transport.pause_reading()
            self.transport.write(self.answer)
            self.taken.set()


@pytest.mark.parametrize("answered", [False, True])
async def test_leaving_closes_even_while_the_engine_takes_none_of_the_request(answered: bool) -> None:
    deaf = _Deaf(_CHUNKED + chunked(b"some") if answered else b"")
    server = await asyncio.get_running_loop().create_server(lambda: deaf, "127.0.0.1", 0)
    upstream = Upstream(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    exchange = upstream.exchange("POST", "/x", [], bytes(30_000_000))

    async def send() -> None:
        async with exchange:
            await exchange.chunk()

    task = asyncio.get_running_loop().create_task(send())
    await deaf.taken.wait()
    connection = exchange._connection
    assert connection is not None and connection.transport is not None
    sock = connection.transport.get_extra_info("socket")
    if answered:
        await task
    else:
        exchange.abort()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await asyncio.sleep(0)  # asyncio closes an aborted transport in its next turn
    await asyncio.sleep(0)
    assert sock.fileno() == -1, "closed now, although bytes of the request are still unsent"
    deaf.transport.abort()
    server.close()
    await upstream.aclose()


@pytest.mark.parametrize("word", [b"", b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n"])
async def test_a_pooled_connection_that_was_just_closed_loses_no_call(
    fake: FakeServer, upstream: Upstream, word: bytes
) -> None:
    """The engine's FIN lies in the kernel and the loop has not heard of it: nothing is awaited in between."""

    async def script(peer: Peer) -> None:
        await peer.send(response(200, b"{}"))
        closing.append(peer)

    closing: list[Peer] = []
    fake.route("POST", "/x", script)
    await _ask(upstream)
    if word:
        closing[0]._connection._transport.write(word)  # type: ignore[union-attr]
    sock = closing[0]._connection._transport.get_extra_info("socket")  # type: ignore[union-attr]
    with socket.socket(fileno=os.dup(sock.fileno())) as same:
        same.shutdown(socket.SHUT_RDWR)
    exchange = await _ask(upstream)
    assert exchange.status == 200 and fake.accepted == 2
