"""B12 and B36 through the whole gateway: a second try never shows, and calls spread evenly over equal endpoints."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from tests.e2e.inside import FAKES, Home, chat, house, pool, settled
from tests.e2e.scripts import HEAD, ROLE, chunk, dropping, events, payloads, streaming, text_of, token
from tests.fakes.engine import FakeEngine
from tests.fakes.llamacpp import FakeLlamaCpp
from tests.fakes.server import Peer, Script, chunked, response
from tests.fakes.vllm import FakeVllm

# B12: retries


@asynccontextmanager
async def two(folder: Path, **settings: Any) -> AsyncIterator[tuple[Home, FakeEngine, FakeEngine]]:
    """Two equal engines that take turns."""
    async with AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(FakeVllm(text="Hello world!")) for _ in range(2)]
        both = pool("m", first, second, policy="round_robin", **settings)
        yield await stack.enter_async_context(house(folder, both)), first, second


def posts(*fakes: FakeEngine) -> int:
    """Calls that these engines were sent."""
    return sum(request.method == "POST" for fake in fakes for request in fake.requests)


def killed(fake: FakeEngine, *parts: bytes) -> Script:
    """Stream these parts, then do what a killed engine does."""

    async def script(peer: Peer) -> None:
        await peer.send(HEAD)
        for part in parts:
            await peer.send(chunked(part))
        await fake.die()

    return script


ARGUMENTS = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "run", "arguments": '{"code":"pri'}}
BEGUN: dict[str, bytes] = {
    "content": token("Hello wor"),
    "reasoning": events(chunk({"reasoning_content": "Hmm"})),
    "a tool call": events(chunk({"tool_calls": [ARGUMENTS]})),
    "a refusal": events(chunk({"refusal": "I will not"})),
}


@pytest.mark.parametrize("ends", ["drop", "killed", "error", "overload"])
@pytest.mark.parametrize("begun", BEGUN)
async def test_b12_what_has_begun_to_reach_the_client_is_never_begun_again(
    tmp_path: Path, begun: str, ends: str
) -> None:
    said = {"error": {"message": "queue full", "type": "overloaded", "code": 429 if ends == "overload" else 500}}
    async with two(tmp_path) as (home, first, second), home.sdk() as sdk:
        for fake in (first, second):
            parts = (ROLE, BEGUN[begun])
            if ends == "drop":
                fake.script = dropping(*parts)
            elif ends == "killed":
                fake.script = killed(fake, *parts)
            else:
                fake.script = streaming(*parts, events(said))
        chunks: list[ChatCompletionChunk] = []
        stream = await sdk.chat.completions.create(**chat(stream=True))
        with pytest.raises(openai.APIError):
            async for each in stream:
                chunks.append(each)
        assert posts(first, second) == 1
        assert len(chunks) == 2, "the role and what had begun, once"
        assert len({each.id for each in chunks}) == 1
        assert [seen.outcome for seen in (await home.told(1)).observations] in (["error"], ["overload"])


PREFIXES: dict[str, tuple[bytes, ...]] = {
    "the head alone": (),
    "a role": (ROLE,),
    "a role and an empty delta": (ROLE, token("")),
    "comments": (b": hello\n\n", ROLE, b": hello\n\n"),
}


@pytest.mark.parametrize("prefix", PREFIXES)
async def test_b12_where_only_a_role_had_come_a_killed_engine_does_not_show(tmp_path: Path, prefix: str) -> None:
    async with two(tmp_path) as (home, first, second):
        for fake in (first, second):
            fake.script = _killed_once(fake, (first, second), *PREFIXES[prefix])
        async with home.ask(chat(stream=True)) as reply:
            assert reply.status == 200
            out = await reply.rest()
        assert posts(first, second) == 2
        assert text_of(out) == "Hello world!"
        assert len({each["id"] for each in payloads(out)}) == 1
        assert out.count(b'"role":"assistant"') == 1
        assert out.count(b"[DONE]") == 1
        assert [seen.outcome for seen in (await home.told(1)).observations] == ["error", "ok"]
        assert (await home.metrics()).total("enginehouse_failovers_total") == 1


def _killed_once(fake: FakeEngine, fakes: tuple[FakeEngine, FakeEngine], *parts: bytes) -> Script:
    async def script(peer: Peer) -> None:
        for each in fakes:
            each.script = None
        await killed(fake, *parts)(peer)

    return script


async def test_b12_where_only_a_role_had_come_an_overloaded_engine_does_not_show(tmp_path: Path) -> None:
    full = {"error": {"message": "queue full", "type": "overloaded", "code": 429}}
    async with two(tmp_path) as (home, first, second):

        async def script(peer: Peer) -> None:
            first.script = second.script = None
            await streaming(ROLE, events(full))(peer)

        first.script = second.script = script
        async with home.ask(chat(stream=True)) as reply:
            out = await reply.rest()
        assert text_of(out) == "Hello world!" and out.count(b'"role":"assistant"') == 1


async def test_b12_an_engine_that_lives_on_may_still_be_at_work_so_its_call_is_not_run_again(tmp_path: Path) -> None:
    """`rerun: gone`: one clean error, and nothing of what had come."""
    async with two(tmp_path) as (home, first, second):
        first.script = second.script = dropping(ROLE)
        async with home.ask(chat(stream=True)) as reply:
            assert reply.status == 502
            assert (await reply.json())["error"]["code"] == "engine_lost"
        assert posts(first, second) == 1


@pytest.mark.parametrize("kind", FAKES)
async def test_b12_a_stream_has_one_id_whatever_the_engine_says(tmp_path: Path, kind: str) -> None:
    async with FAKES[kind](text="Hello world!") as fake, house(tmp_path, pool("m", fake)) as home:
        async with home.ask(chat(stream=True, stream_options={"include_usage": True})) as reply:
            said = payloads(await reply.rest())
        assert len({each["id"] for each in said}) == 1 and said[0]["id"]


# B36: even load


@asynccontextmanager
async def three(folder: Path, policy: str) -> AsyncIterator[tuple[Home, list[FakeLlamaCpp]]]:
    async with AsyncExitStack() as stack:
        fakes = [await stack.enter_async_context(FakeLlamaCpp()) for _ in range(3)]
        yield await stack.enter_async_context(house(folder, pool("m", *fakes, policy=policy))), fakes


@pytest.mark.parametrize("policy", ["least_requests", "adaptive"])
async def test_b36_sequential_calls_of_every_route_spread_over_idle_engines(tmp_path: Path, policy: str) -> None:
    asks: list[tuple[dict[str, Any], str]] = [
        (chat(), "/v1/chat/completions"),
        (chat(stream=True), "/v1/chat/completions"),
        ({"model": "m", "input": "hi"}, "/v1/embeddings"),
        ({"model": "m", "prompt": "hi"}, "/v1/completions"),
        # Answered without an engine, so that nothing may be counted at any.
        (chat(temperature="hot"), "/v1/chat/completions"),
        (chat("unknown"), "/v1/chat/completions"),
    ]
    async with three(tmp_path, policy) as (home, fakes), home.wire() as reply:
        for number in range(1500):
            body, path = asks[number % len(asks)]
            await reply.send(home.request(body, path))
            await reply.head()
            await reply.rest()
            reply.again()
        await home.told(1500)
        taken = [posts(fake) for fake in fakes]
        assert sum(taken) == 1000
        assert all(250 <= count <= 420 for count in taken), taken
        assert set(home.loads()["m"].values()) == {0}


@pytest.mark.parametrize("ends", ["answered", "left", "failed"])
async def test_b36_slow_calls_of_every_route_spread_evenly_and_leave_no_count_behind(tmp_path: Path, ends: str) -> None:
    async with three(tmp_path, "least_requests") as (home, fakes), AsyncExitStack() as stack:
        gate = asyncio.Event()
        for fake in fakes:
            fake.script = _held(fake, gate, fails=ends == "failed")
        replies = [await stack.enter_async_context(home.wire()) for _ in range(90)]
        for number, reply in enumerate(replies):
            request = home.request(chat(stream=number % 2 == 0))
            if number % 3 == 0:
                request = home.request({"model": "m", "input": "hi"}, "/v1/embeddings")
            await reply.send(request)
        await settled("every call is at an engine", lambda: posts(*fakes) >= 90)
        assert list(home.loads()["m"].values()) == [30, 30, 30]
        assert [posts(fake) for fake in fakes] == [30, 30, 30]
        if ends == "left":
            for reply in replies:
                reply.leave()
        gate.set()
        await home.told(90)
        assert list(home.loads()["m"].values()) == [0, 0, 0]
        outcomes = Counter(served.outcome for served in home.served)
        assert set(outcomes) == {{"answered": "ok", "left": "cancelled", "failed": "error"}[ends]}


def _held(fake: FakeLlamaCpp, gate: asyncio.Event, *, fails: bool) -> Script:
    async def script(peer: Peer) -> None:
        await gate.wait()
        if fails:
            await peer.send(response(400, {"error": {"message": "no", "code": 400}}))
            return
        body = peer.request.json
        if "input" in body:
            await peer.send(fake.embedding_answer(body))
        elif body.get("stream"):
            await streaming(*fake.chat_events(body))(peer)
        else:
            await peer.send(response(200, fake.chat_answer(body)))

    return script
