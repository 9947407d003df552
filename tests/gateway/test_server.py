"""The server as a process, and the body reader's clock."""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest

from gateway.api.body import read_body
from gateway.contract import ClientGone
from gateway.errors import TooLarge, TooSlow, UnsupportedEncoding

SERVED = """
import asyncio
from gateway.server import run, serve_until_stopped, uvicorn_config

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        print("lifespan over", flush=True)
        await send({"type": "lifespan.shutdown.complete"})
        return
    if scope["path"] == "/endless":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            print("call over", flush=True)
            await send({"type": "http.response.body", "body": b"ended"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})

config = uvicorn_config(app, port=0)
run(serve_until_stopped(config, listening=lambda bound: print(bound[0][1], flush=True)))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_that_was_asked_for_ends_the_lifespan_and_exits_with_0(number: signal.Signals) -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", SERVED, stdout=pipe, stderr=pipe)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            port = int(await process.stdout.readline())
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            assert b"server:" not in head.lower()
            process.send_signal(number)
            out, err = await process.communicate()
            writer.close()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert (process.returncode, out, err) == (0, b"lifespan over\n", b"")


async def test_a_second_signal_ends_calls_at_once_and_the_lifespan_in_order() -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", SERVED, stdout=pipe, stderr=pipe)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(20):  # well under the time that calls get after a first signal
            port = int(await process.stdout.readline())
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /endless HTTP/1.1\r\nhost: x\r\n\r\n")
            await reader.readuntil(b"begun")
            process.send_signal(signal.SIGTERM)
            while not await refused(port):
                pass  # the first signal has not been heard yet, and a second would merge with it
            process.send_signal(signal.SIGTERM)
            assert (await reader.read()).endswith(b"ended\r\n0\r\n\r\n")
            out, err = await process.communicate()
            writer.close()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert (process.returncode, out, err) == (0, b"call over\nlifespan over\n", b"")


async def refused(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionError:  # reset: it was in the line of a socket that has closed meanwhile
        return True
    writer.close()
    return False


def script(*messages: dict[str, object]) -> object:
    left = list(messages)

    async def receive() -> dict[str, object]:
        if not left:
            await asyncio.Event().wait()
        return left.pop(0)

    return receive


async def test_a_body_that_stops_coming_is_given_up() -> None:
    receive = script({"type": "http.request", "body": b"12345", "more_body": True})
    with pytest.raises(TooSlow, match="5 bytes"):
        await read_body(receive, {}, 100, idle=0.05)  # type: ignore[arg-type]


async def test_a_body_is_refused_by_its_head_before_anything_is_received() -> None:
    for headers, kind in (({"content-length": "101"}, TooLarge), ({"content-encoding": "zstd"}, UnsupportedEncoding)):
        with pytest.raises(kind):
            await read_body(script(), headers, 100, idle=0.05)  # type: ignore[arg-type]


async def test_a_loss_within_a_body_is_told() -> None:
    receive = script({"type": "http.request", "body": b"1", "more_body": True}, {"type": "http.disconnect"})
    with pytest.raises(ClientGone):
        await read_body(receive, {"content-encoding": "identity"}, 100)  # type: ignore[arg-type]
