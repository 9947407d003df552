"""B06, B07 and B08 through the whole gateway: large events, no buffering, and the usage chunk."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import Gateway
from tests.e2e.inside import FAKES, WAIT, chat, house, pool
from tests.e2e.scripts import DONE, HEAD, ROLE, chunk, events, finish, framed, payloads, streaming, text_of, token
from tests.fakes.server import Peer, chunked
from tests.fakes.vllm import FakeVllm

MB = 2**20

# B06: one huge event


@pytest.mark.parametrize("size", [300_000, 4 * MB], ids=["300 KB", "4 MB"])
@pytest.mark.parametrize("delta", ["content", "reasoning_content", "arguments"])
async def test_b06_a_huge_event_passes_byte_for_byte_and_in_order(tmp_path: Path, size: int, delta: str) -> None:
    text = "안녕 \U0001f980 " * (size // 12)
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": text}}
    huge = chunk({"tool_calls": [call]} if delta == "arguments" else {delta: text}, model="m")
    reason = "tool_calls" if delta == "arguments" else "stop"
    async with FakeVllm() as fake, house(tmp_path, pool("m", fake)) as home:
        small = (token("small", model="m"), finish(reason, model="m"))
        fake.script = streaming(ROLE, events(huge), *small, DONE, cut=16 * 1024)
        async with home.ask(chat(stream=True)) as reply:
            await reply.event()
            assert await reply.event() == framed(huge)
            assert await reply.rest() == b"".join(small) + DONE


async def test_b06_a_line_without_end_stops_at_the_cap_and_harms_no_other_stream(
    gateway_with: Callable[..., Gateway],
) -> None:
    """The cap is the default of 8 MB; the line has 64 MB."""
    async with FakeVllm() as endless, FakeVllm(pause_at=3) as steady:

        async def script(peer: Peer) -> None:
            await peer.send(HEAD + chunked(ROLE) + chunked(token("begun")))
            piece = chunked(b"x" * 16_384)
            await peer.send(chunked(b"data: "))
            for _ in range(64 * MB // 16_384):
                await peer.send(piece)
            peer.close()

        endless.script = script
        pools = [
            pool(name, each) | {"endpoints": [{"name": name, "engine": "vllm", "url": each.url, "model": each.model}]}
            for name, each in (("endless", endless), ("steady", steady))
        ]
        gateway = await asyncio.to_thread(gateway_with, pools)
        other = await _open(gateway.port, chat("steady", stream=True))
        async with asyncio.timeout(60):
            await steady.paused.wait()
            before = _peak(gateway)
            reader, writer = await _open(gateway.port, chat("endless", stream=True))
            out = await reader.read()
            writer.close()
            grown = _peak(gateway) - before
            steady.gate.set()
            rest = await other[0].read()
            other[1].close()
        assert b"begun" in out
        assert b'{"error":{"message":"The engine sent an event of more than 8388608 bytes."' in out
        assert b"[DONE]" not in out
        async with asyncio.timeout(WAIT):
            await endless.requests[-1].gone.wait()
        assert endless.requests[-1].sent < 32 * MB, "the engine is told at the cap"
        assert grown < 24 * MB, f"the gateway grew by {grown / MB:.0f} MB"
        assert rest.count(b"[DONE]") == 1 and b"error" not in rest


async def _open(port: int, body: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    return reader, writer


def _peak(gateway: Gateway) -> int:
    """The most memory in bytes that the gateway ever held at once."""
    file = Path(f"/proc/{gateway.process.pid}/status")
    if not file.exists():
        pytest.skip("the peak of a process's memory is read from Linux's /proc")
    status = file.read_text()
    (line,) = [each for each in status.splitlines() if each.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


# B07: buffering


@pytest.mark.parametrize("encoding", ["identity", "gzip", "gzip, br, zstd, deflate"])
@pytest.mark.parametrize("kind", FAKES)
async def test_b07_each_event_arrives_before_the_engine_makes_the_next(
    tmp_path: Path, kind: str, encoding: str
) -> None:
    """The engine makes an event only when the client has the one before: a gateway that holds one back hangs."""
    async with FAKES[kind]() as fake, house(tmp_path, pool("m", fake)) as home:
        taken = asyncio.Semaphore(0)

        async def script(peer: Peer) -> None:
            await peer.send(HEAD + chunked(ROLE))
            for word in ("one ", "two ", "three "):
                await peer.send(chunked(token(word)))
                await taken.acquire()
            await peer.send(chunked(finish()) + chunked(DONE) + chunked(b""))

        fake.script = script
        async with home.ask(chat(stream=True), accept_encoding=encoding) as reply:
            assert reply.headers["content-type"].startswith("text/event-stream")
            assert reply.headers["cache-control"] == "no-cache, no-transform"
            assert reply.headers["x-accel-buffering"] == "no"
            assert "content-encoding" not in reply.headers
            assert "content-length" not in reply.headers
            assert b'"role":"assistant"' in await reply.event()
            for word in (b"one ", b"two ", b"three "):
                assert word in await reply.event()
                taken.release()
            assert (await reply.rest()).endswith(DONE)


async def test_b07_headers_go_out_no_later_than_the_first_event(tmp_path: Path) -> None:
    """`ask` returns with the head; the engine is held at its second token all the while."""
    async with (
        FakeVllm(pause_at=2) as fake,
        house(tmp_path, pool("m", fake)) as home,
        home.ask(chat(stream=True)) as reply,
    ):
        assert reply.status == 200
        await reply.event()
        assert fake.text[:3].encode() in await reply.event()
        assert not fake.gate.is_set()
        fake.gate.set()
        assert text_of(await reply.rest()) == fake.text[3:]


# B08: the usage chunk


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("asked", [None, False, True])
@pytest.mark.parametrize("kind", FAKES)
async def test_b08_usage_is_seen_once_where_asked_and_counted_always(
    tmp_path: Path, kind: str, asked: bool | None, path: str
) -> None:
    body: dict[str, Any] = {"model": "m", "stream": True}
    body |= {"prompt": "hi"} if path == "/v1/completions" else {"messages": chat()["messages"]}
    if asked is not None:
        body["stream_options"] = {"include_usage": asked}
    async with FAKES[kind]() as fake, house(tmp_path, pool("m", fake)) as home:
        async with home.ask(body, path) as reply:
            said = payloads(await reply.rest())
        empty = [each for each in said if not each.get("choices")]
        counts = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
        if asked:
            assert len(empty) == 1 and empty[0] is said[-1]
            assert empty[0]["choices"] == []
            assert {name: empty[0]["usage"][name] for name in counts} == counts
            assert all(not each.get("usage") for each in said[:-1])
        else:
            assert empty == []
            assert all("usage" not in each or each["usage"] is None for each in said)
        page = await home.metrics()
        assert page.total("enginehouse_tokens_total", type="input") == 7
        assert page.total("enginehouse_tokens_total", type="output") == 5
        sent = fake.requests[-1].json
        knows = kind != "tgi" or path != "/v1/completions"
        assert sent.get("stream_options") == ({"include_usage": True} if knows else None)


@pytest.mark.parametrize("changes", [{"choices": []}, {}], ids=["no choices", "no key"])
@pytest.mark.parametrize("asked", [False, True])
async def test_b08_a_usage_chunk_with_or_without_choices_is_read_alike(
    tmp_path: Path, changes: dict[str, Any], asked: bool
) -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
    last = {"id": "x", "object": "chat.completion.chunk", **changes, "usage": usage}
    body = chat(stream=True) | ({"stream_options": {"include_usage": True}} if asked else {})
    async with FakeVllm() as fake, house(tmp_path, pool("m", fake)) as home:
        fake.script = streaming(ROLE, token("hi"), finish(), events(last), DONE)
        async with home.ask(body) as reply:
            said = payloads(await reply.rest())
        assert [each["usage"] for each in said if each["choices"] == []] == ([usage] if asked else [])
        seen = (await home.told(1)).observations[0]
        assert (seen.prompt_tokens, seen.output_tokens, seen.tokens_estimated) == (3, 5, False)


@pytest.mark.parametrize("stream", [None, False])
@pytest.mark.parametrize("kind", FAKES)
async def test_b08_no_stream_options_go_out_without_a_stream(tmp_path: Path, kind: str, stream: bool | None) -> None:
    body = chat() if stream is None else chat(stream=stream)
    async with FAKES[kind]() as fake, house(tmp_path, pool("m", fake)) as home, asyncio.timeout(WAIT):
        async with home.ask(body) as reply:
            answer = await reply.json()
        assert reply.status == 200 and answer["usage"]["completion_tokens"] == 5
        assert "stream_options" not in fake.requests[-1].json and not fake.requests[-1].json.get("stream")
