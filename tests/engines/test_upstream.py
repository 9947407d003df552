"""What came of a request is judged by whether it was given a connection, over real sockets."""

from __future__ import annotations

import asyncio
import gc
import os
import ssl

import pytest

from engines.errors import Lost, Malformed, Unreached
from engines.upstream import Exchange, Upstream
from tests.fakes.server import FakeServer, Peer, chunked, response

_CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n"


async def _ask(upstream: Upstream, method: str = "POST", body: bytes = b"{}") -> tuple[Exchange, bytes]:
    exchange = upstream.exchange(method, "/x", [("content-type", "application/json")], body)
    async with exchange:
        data, complete = await exchange.read(1 << 20)
    assert complete
    return exchange, data


async def test_a_request_arrives_as_it_was_given(fake: FakeServer, upstream: Upstream) -> None:
    async def script(peer: Peer) -> None:
        await peer.send(response(418, b"hello", "Text/Plain; charset=utf-8", headers="retry-after: 7\r\n"))

    fake.route("POST", "/x", script)
    exchange, data = await _ask(upstream, body=b'{"a": 1}')

    assert (exchange.status, exchange.content_type, exchange.header("retry-after"), data) == (
        418,
        "text/plain",
        "7",
        b"hello",
    )
    assert fake.requests[0].body == b'{"a": 1}'
    assert fake.requests[0].header("content-length") == "8"


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (1 << 20) + 1, 5_000_001])
async def test_b45_a_body_of_any_size_arrives_whole_and_with_its_length(
    fake: FakeServer, upstream: Upstream, size: int
) -> None:
    async def script(peer: Peer) -> None:
        await peer.send(response(200, b"{}"))

    fake.route("POST", "/x", script)
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    await _ask(upstream, body=body)

    assert fake.requests[0].body == body
    assert fake.requests[0].header("transfer-encoding") is None
    assert fake.requests[0].header("content-length") == str(size)


async def test_connections_are_used_again_and_closed_in_the_end(fake: FakeServer, upstream: Upstream) -> None:
    async def script(peer: Peer) -> None:
        await peer.send(_CHUNKED + chunked(b"data") + chunked(b""))

    fake.route("POST", "/x", script)
    for _ in range(5):
        await _ask(upstream)
    assert fake.accepted == 1

    await upstream.aclose()
    await fake.empty()


async def test_the_base_path_stands_before_every_route(fake: FakeServer) -> None:
    async def script(peer: Peer) -> None:
        await peer.send(response(200, b"{}"))

    fake.route("POST", "/base/path/x", script)
    upstream = Upstream(fake.url + "/base/path/")
    exchange, _ = await _ask(upstream)
    assert exchange.status == 200
    await upstream.aclose()


async def test_no_cookie_is_kept(fake: FakeServer, upstream: Upstream) -> None:
    async def script(peer: Peer) -> None:
        await peer.send(response(200, b"{}", headers="set-cookie: session=1; path=/\r\n"))

    fake.route("POST", "/x", script)
    await _ask(upstream)
    await _ask(upstream)
    assert fake.requests[1].header("cookie") is None
    assert upstream._client is not None and not upstream._client.cookies


async def test_no_proxy_of_the_environment_is_used(
    fake: FakeServer, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    async def script(peer: Peer) -> None:
        await peer.send(response(200, b"{}"))

    fake.route("POST", "/x", script)
    exchange, _ = await _ask(upstream)
    assert exchange.status == 200


async def test_b35_a_redirect_is_an_answer_and_not_followed(fake: FakeServer, upstream: Upstream) -> None:
    async with FakeServer() as elsewhere:

        async def script(peer: Peer) -> None:
            await peer.send(response(307, b"", headers=f"location: {elsewhere.url}/x\r\n"))

        fake.route("POST", "/x", script)
        exchange, _ = await _ask(upstream)
        assert exchange.status == 307
        assert elsewhere.accepted == 0


async def test_refused_is_unreached(fake: FakeServer, upstream: Upstream) -> None:
    await fake.refuse()
    with pytest.raises(Unreached, match="connection refused"):
        await _ask(upstream)


async def test_an_unknown_name_is_unreached() -> None:
    upstream = Upstream("http://no-such-host.invalid:1")
    with pytest.raises(Unreached, match="does not resolve"):
        await _ask(upstream)
    await upstream.aclose()


async def test_a_failed_tls_handshake_is_unreached() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    upstream = Upstream(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    with pytest.raises(Unreached, match="TLS failed"):
        await _ask(upstream)
    await upstream.aclose()
    server.close()


async def test_tls_certificates_are_checked_unless_told_not_to() -> None:
    checked = Upstream("https://127.0.0.1:1")
    unchecked = Upstream("https://127.0.0.1:1", verify_tls=False)
    assert checked._tls.verify_mode == ssl.CERT_REQUIRED and checked._tls.check_hostname
    assert unchecked._tls.verify_mode == ssl.CERT_NONE


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_connection_that_breaks_after_the_request_was_taken_is_lost(
    fake: FakeServer, upstream: Upstream, how: str
) -> None:
    async def script(peer: Peer) -> None:
        getattr(peer, how)()

    fake.route("POST", "/x", script)
    with pytest.raises(Lost) as caught:
        await _ask(upstream)
    assert type(caught.value) is Lost
    assert len(fake.requests) == 1, "a POST is never repeated"


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_an_answer_that_breaks_off_is_lost(fake: FakeServer, upstream: Upstream, how: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.send(_CHUNKED + chunked(b"some"))
        getattr(peer, how)()

    fake.route("POST", "/x", script)
    with pytest.raises(Lost):
        await _ask(upstream)


async def test_what_is_no_http_is_malformed(fake: FakeServer, upstream: Upstream) -> None:
    async def script(peer: Peer) -> None:
        await peer.send(b"SSH-2.0-OpenSSH_9.2p1\r\n")
        peer.close()

    fake.route("POST", "/x", script)
    with pytest.raises(Malformed):
        await _ask(upstream)


async def test_leaving_an_answer_unread_closes_its_connection(fake: FakeServer, upstream: Upstream) -> None:
    async def script(peer: Peer) -> None:
        await peer.send(_CHUNKED + chunked(b"some"))
        await peer.hang()

    fake.route("POST", "/x", script)
    async with upstream.exchange("POST", "/x", [], b"{}") as exchange:
        assert await exchange.chunk() == b"some"
    await fake.peer_gone.wait()
    await fake.empty()


async def test_b09_cancelled_requests_leave_no_connection_and_no_descriptor(
    fake: FakeServer, upstream: Upstream
) -> None:
    async def script(peer: Peer) -> None:
        await peer.hang()

    fake.route("POST", "/x", script)
    before: int | None = None
    for number in range(60):
        task = asyncio.get_running_loop().create_task(_ask(upstream))
        await fake.arrived(number + 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await fake.peer_gone.wait()
        await fake.empty()
        if number == 9:
            before = len(os.listdir("/proc/self/fd"))
    gc.collect()
    assert before is not None and len(os.listdir("/proc/self/fd")) <= before
    assert len(asyncio.all_tasks()) == 1


async def test_b34_no_text_holds_the_url_of_the_engine(fake: FakeServer) -> None:
    await fake.refuse()
    upstream = Upstream(f"http://127.0.0.1:{fake.port}/canary-in-path")
    with pytest.raises(Unreached) as caught:
        await _ask(upstream)
    assert "canary" not in caught.value.message and "127.0.0.1" not in caught.value.message
    assert "canary" not in caught.value.detail
    await upstream.aclose()


async def test_after_closing_nothing_is_sent(fake: FakeServer, upstream: Upstream) -> None:
    await upstream.aclose()
    with pytest.raises(Unreached):
        upstream.exchange("GET", "/x", [])
    assert fake.accepted == 0
