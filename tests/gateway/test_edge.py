"""The server's edge, byte by byte: framing, limits, refusals before a body's end, loss of the connection."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from gateway.api.protocol import EdgeProtocol
from gateway.contract import Client, ClientGone, Pool, Request
from tests.gateway.door import chat, echo, on_both_loops, open_door, request

MB = 1024 * 1024


class Quick(EdgeProtocol):
    linger = 0.2


@on_both_loops
async def test_b45_twelve_megabytes_pass() -> None:
    body = json.dumps(chat(messages=[{"role": "user", "content": "x" * (12 * MB)}])).encode()
    async with open_door() as door:
        answer = await door.ask(body=body)
        assert (answer.status, answer.json["bytes_in"]) == (200, len(body))
        chunks = (
            b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[: 5 * MB], body[5 * MB :])) + b"0\r\n\r\n"
        )
        async with door.wire() as wire:
            await wire.send(request(transfer_encoding="chunked") + chunks)
            answer = await wire.answer()
        assert (answer.status, answer.json["bytes_in"]) == (200, len(body))


@on_both_loops
async def test_b45_the_limit_itself_passes_and_one_byte_more_is_413_for_both_framings() -> None:
    base = json.dumps(chat()).encode()
    exact = base + b" " * (1000 - len(base))
    async with open_door(limit=1000) as door:
        for data, status in ((exact, 200), (exact + b" ", 413)):
            assert (await door.ask(body=data)).status == status
            async with door.wire() as wire:
                await wire.send(request(transfer_encoding="chunked") + b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data))
                answer = await wire.answer()
                assert answer.status == status
        assert answer.error["code"] == "request_too_large"
        assert "1,000 bytes" in answer.error["message"]
        assert [(seen.status, seen.outcome) for seen in door.observed] == [(413, "rejected")] * 2


@pytest.mark.parametrize("framing", ["length", "chunked"])
@on_both_loops
async def test_b45_after_a_413_the_rest_is_not_read_and_the_connection_ends(framing: str) -> None:
    async with open_door(limit=1000, protocol=Quick) as door, door.wire() as wire:
        if framing == "length":
            await wire.send(request(content_length=str(16 * 1024 * MB)))
        else:
            await wire.send(request(transfer_encoding="chunked") + b"fffffffff\r\n" + b"x" * 2000)
        status, headers = await wire.head()
        assert (status, headers["connection"]) == (413, "close")
        await wire.reader.readexactly(int(headers["content-length"]))
        assert await wire.closed()
        sent = 0
        with pytest.raises(OSError):  # the server's kernel refuses what comes now
            while True:
                wire.writer.write(b"x" * MB)
                await wire.writer.drain()
                sent += MB
                assert sent < 256 * MB, "the rest of the body is being swallowed"


@on_both_loops
async def test_after_a_refusal_a_client_may_send_on_for_a_while_without_a_reset() -> None:
    loop = asyncio.get_running_loop()
    async with open_door(limit=1000) as door:
        with socket.socket() as raw:
            raw.setblocking(False)
            await loop.sock_connect(raw, ("127.0.0.1", door.port))
            await loop.sock_sendall(raw, request(content_length="200000"))
            answer = b""
            while piece := await loop.sock_recv(raw, 65536):  # to the end: the server's half is closed
                answer += piece
            assert answer.startswith(b"HTTP/1.1 413")
            for _ in range(20):  # a reset would fail the second of these
                await loop.sock_sendall(raw, b"x" * 10_000)
                await asyncio.sleep(0)


@on_both_loops
async def test_continue_is_sent_only_for_a_body_that_will_be_taken() -> None:
    body = json.dumps(chat()).encode()
    async with open_door(limit=1000) as door:
        async with door.wire() as wire:
            await wire.send(request(expect="100-continue", content_length=str(len(body))))
            assert (await wire.head())[0] == 100
            await wire.send(body)
            assert (await wire.answer()).status == 200
        for head, status in (
            (request(expect="100-continue", content_length="1001"), 413),
            (request(path="/v1/nothing", expect="100-continue", content_length="10"), 404),
            (request("PUT", expect="100-continue", content_length="10"), 405),
            (request(expect="100-continue", content_length="10", content_encoding="gzip"), 415),
        ):
            async with door.wire() as wire:
                await wire.send(head)
                answer = await wire.answer()
                assert (answer.status, answer.headers["connection"]) == (status, "close")
                assert answer.error
                assert await wire.closed()


@pytest.mark.parametrize(
    ("head", "status", "code"),
    [
        (b"GARBAGE\r\n\r\n", 400, "malformed_http"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "malformed_http"),
        (b"GET / HTTP/9.9\r\n\r\n", 400, "malformed_http"),
        (b"GET /\xff HTTP/1.1\r\n\r\n", 400, "malformed_http"),
        (b"GET / HTTP/1.1\r\nhost: x\r\nbad header\r\n\r\n", 400, "malformed_http"),
        (b"GET / HTTP/1.1\r\nhost: x\r\na: b\r\n folded\r\n\r\n", 400, "malformed_http"),
        (b"GET / HTTP/1.1\r\nhost : x\r\n\r\n", 400, "malformed_http"),
        (b"GET / HTTP/1.1\r\na: \x00\r\n\r\n", 400, "malformed_http"),
        (b"CONNECT example.org:443 HTTP/1.1\r\nhost: x\r\n\r\n", 400, "malformed_http"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "malformed_http"),
        (b"POST / HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n", 400, "malformed_http"),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n", 400, "malformed_http"),
        (b"POST / HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n", 400, "malformed_http"),
        (b"POST / HTTP/1.1\r\ncontent-length: 5, 6\r\n\r\n", 400, "malformed_http"),
        (b"POST / HTTP/1.1\r\ncontent-length: -5\r\n\r\n", 400, "malformed_http"),
        (b"POST / HTTP/1.1\r\ncontent-length: 99999999999999999999999\r\n\r\n", 400, "malformed_http"),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: gzip, chunked\r\n\r\n", 400, "malformed_http"),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: identity\r\n\r\n", 400, "malformed_http"),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n", 400, "malformed_http"),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: xchunked\r\n\r\n", 400, "malformed_http"),
        (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\n\r\n", 414, "url_too_long"),
        (b"GET / HTTP/1.1\r\na: " + b"x" * 70_000 + b"\r\n\r\n", 431, "headers_too_large"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 12_000 + b"\r\n", 431, "headers_too_large"),
    ],
)
@on_both_loops
async def test_broken_http_gets_the_envelope_and_the_end_of_the_connection(head: bytes, status: int, code: str) -> None:
    async with open_door() as door, door.wire() as wire:
        await wire.send(head)
        answer = await wire.answer()
        assert (answer.status, answer.error["code"], answer.headers["connection"]) == (status, code, "close")
        assert answer.error["type"] == "invalid_request_error"
        assert await wire.closed()


@on_both_loops
async def test_a_header_that_never_ends_is_cut_off_while_it_arrives() -> None:
    async with open_door() as door, door.wire() as wire:
        await wire.send(b"GET / HTTP/1.1\r\na: ")
        for _ in range(10):  # more than the limit and one read of the server's (256 KB)
            await wire.send(b"x" * 50_000)
        assert (await wire.answer()).error["code"] == "headers_too_large"
        assert await wire.closed()


@on_both_loops
async def test_a_trailer_that_never_ends_is_cut_off_while_it_arrives() -> None:
    async with open_door(protocol=Quick) as door, door.wire() as wire:
        await wire.send(request(transfer_encoding="chunked") + b"2\r\n{}\r\n0\r\na: ")
        with pytest.raises(OSError):  # reset once the bound of the lingering is passed, too
            for _ in range(200):
                await wire.send(b"x" * 100_000)


@on_both_loops
async def test_a_trailer_is_no_header() -> None:
    body = json.dumps(chat()).encode()
    async with open_door() as door, door.wire() as wire:
        await wire.send(
            request(transfer_encoding="chunked")
            + b"%x\r\n%b\r\n0\r\nx-enginehouse-explain: 1\r\nx-request-id: late\r\n\r\n" % (len(body), body)
        )
        answer = await wire.answer()
        assert answer.json["explain"] is False
        assert answer.headers["x-request-id"] != "late"


@on_both_loops
async def test_a_head_that_dribbles_is_told_408_and_a_silent_connection_is_closed() -> None:
    class Hasty(EdgeProtocol):
        head_timeout = 0.1

    async with open_door(protocol=Hasty) as door:
        async with door.wire() as wire:
            await wire.send(b"GET /health HTTP/1.1\r\nho")
            answer = await wire.answer()
            assert (answer.status, answer.error["code"]) == (408, "request_timeout")
            assert await wire.closed()
        async with door.wire() as wire:
            assert await wire.closed()
        async with door.wire() as wire:  # a second head on a connection that was used
            await wire.send(request("GET", "/health"))
            assert (await wire.answer()).status == 200
            await wire.send(b"GET /hea")
            assert (await wire.answer()).status == 408
        async with door.wire() as wire:  # blank lines are no sign of life
            await wire.send(request("GET", "/health"))
            assert (await wire.answer()).status == 200
            await wire.send(b"\r\n")
            assert await wire.closed()


@on_both_loops
async def test_a_head_limit_does_not_end_a_call_that_takes_longer() -> None:
    class Hasty(EdgeProtocol):
        head_timeout = 0.05

    async def slow(pool: Pool, request: Request, client: Client) -> None:
        await asyncio.sleep(0.2)
        await echo(pool, request, client)

    async with open_door(slow, protocol=Hasty) as door, door.wire() as wire:
        for _ in range(2):
            await wire.send(request(body=chat()))
            assert (await wire.answer()).status == 200


@on_both_loops
async def test_pipelined_requests_are_answered_in_turn_on_one_connection() -> None:
    async with open_door() as door, door.wire() as wire:
        ids = [f"r{number}" for number in range(12)]
        await wire.send(b"".join(request(body=chat(), x_request_id=name) for name in ids))
        assert [(await wire.answer()).json["request_id"] for _ in ids] == ids
        await wire.send(request("GET", "/health"))
        assert (await wire.answer()).status == 200


@on_both_loops
async def test_garbage_behind_a_request_never_becomes_its_answer() -> None:
    release = asyncio.Event()

    async def held(pool: Pool, request: Request, client: Client) -> None:
        await client.start(200, [("content-type", "text/event-stream")])
        await client.write(b"data: 1\n\n")
        await release.wait()

    async with open_door(held) as door, door.wire() as wire:
        await wire.send(request(body=chat(stream=True)))
        assert (await wire.head())[0] == 200
        assert await wire.chunk() == b"data: 1\n\n"
        await wire.send(b"NONSENSE\r\n\r\n")
        assert await wire.closed()
        release.set()


@on_both_loops
async def test_a_broken_chunk_in_a_body_is_400_and_its_reader_is_told() -> None:
    async with open_door() as door, door.wire() as wire:
        await wire.send(request(transfer_encoding="chunked") + b"5\r\nhello\r\nzz\r\n")
        assert (await wire.answer()).error["code"] == "malformed_http"
        assert await wire.closed()
    assert [(seen.status, seen.outcome) for seen in door.observed] == [(499, "cancelled")]


@pytest.mark.parametrize("pipelined", ["no", "at once", "later"])
@on_both_loops
async def test_a_lost_connection_is_told_at_once_to_the_call_being_served(pipelined: str) -> None:
    serving, told = asyncio.Event(), asyncio.Event()

    async def wait(pool: Pool, request: Request, client: Client) -> None:
        serving.set()
        await client.gone.wait()
        told.set()
        with pytest.raises(ClientGone):
            await client.write(b"data: 1\n\n")

    async with open_door(wait) as door, asyncio.timeout(10):
        async with door.wire() as wire:
            await wire.send(request(body=chat()) * (2 if pipelined == "at once" else 1))
            await serving.wait()
            if pipelined == "later":
                await wire.send(request(body=chat()))
        await told.wait()


@on_both_loops
async def test_gone_stays_unset_for_a_client_that_waits_and_after_a_whole_answer() -> None:
    clients: list[Client] = []

    async def serve(pool: Pool, request: Request, client: Client) -> None:
        clients.append(client)
        await echo(pool, request, client)
        for _ in range(10):  # the server says `disconnect` of the request now
            await asyncio.sleep(0)

    async with open_door(serve) as door, door.wire() as wire:
        await wire.send(request(body=chat()))
        await wire.answer()
        await wire.send(request("GET", "/health"))
        await wire.answer()
        assert not clients[0].gone.is_set()


@on_both_loops
async def test_a_client_that_leaves_within_its_body_is_observed_as_cancelled() -> None:
    async with open_door() as door:
        async with door.wire() as wire:
            await wire.send(request(content_length="100") + b"{")
        async with door.wire() as wire:  # the loop has seen the loss when this is answered
            await wire.send(request("GET", "/health"))
            await wire.answer()
    assert [(seen.status, seen.outcome, seen.code) for seen in door.observed] == [(499, "cancelled", None)]


@on_both_loops
async def test_an_http_1_0_client_gets_a_stream_without_chunks() -> None:
    async def stream(pool: Pool, request: Request, client: Client) -> None:
        await client.start(200, [("content-type", "text/event-stream")])
        for number in range(3):
            await client.write(b"data: %d\n\n" % number)
        await client.end()

    async with open_door(stream) as door, door.wire() as wire:
        await wire.send(request(body=chat(stream=True)).replace(b"HTTP/1.1", b"HTTP/1.0"))
        answer = await wire.answer()
        assert "transfer-encoding" not in answer.headers
        assert answer.body == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"


@on_both_loops
async def test_an_offer_to_upgrade_is_passed_over() -> None:
    offers = (
        {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2_settings": "AAMAAABkAAQAAP__"},
        {"connection": "Upgrade", "upgrade": "websocket", "sec_websocket_key": "eA==", "sec_websocket_version": "13"},
    )
    async with open_door() as door:
        for offer in offers:
            async with door.wire() as wire:
                for _ in range(2):  # and the connection stays what it was
                    await wire.send(request(body=chat(), **offer))
                    assert (await wire.answer()).json["bytes_in"] == len(json.dumps(chat()))
                head, body = request(body=chat(), **offer, transfer_encoding="chunked").split(b"\r\n\r\n")
                await wire.send(head + b"\r\n\r\n")
                await wire.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) + request("GET", "/health", **offer))
                assert (await wire.answer()).json["bytes_in"] == len(body)
                assert (await wire.answer()).status == 200
                await wire.send(request("GET", "/health", **offer) + request("GET", "/health"))
                assert [(await wire.answer()).status for _ in range(2)] == [200, 200]
                await wire.send(request("GET", "/health", **offer) * 1500)
                assert {(await wire.answer()).status for _ in range(1500)} == {200}


@on_both_loops
async def test_a_split_head_and_a_body_byte_by_byte_arrive_whole() -> None:
    async with open_door() as door, door.wire() as wire:
        for byte in request(body=chat()):
            await wire.send(bytes([byte]))
        assert (await wire.answer()).status == 200


@on_both_loops
async def test_an_unread_body_of_a_reading_route_ends_the_connection_and_a_read_one_does_not() -> None:
    async with open_door() as door:
        async with door.wire() as wire:
            await wire.send(request("GET", "/health", content_length="1000000"))
            answer = await wire.answer()
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            assert await wire.closed()
        async with door.wire() as wire:
            await wire.send(request(body=b"not json"))
            assert (await wire.answer()).status == 400
            await wire.send(request(body=chat()))
            assert (await wire.answer()).status == 200
