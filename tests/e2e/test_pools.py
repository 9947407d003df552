"""Several engines behind one door: every character arrives, each pool is seen, and a killed engine fails nobody."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from openai import APIError, AsyncOpenAI

from tests.e2e.harness import Gateway
from tests.fakes.engine import FakeEngine
from tests.fakes.llamacpp import FakeLlamaCpp
from tests.fakes.tensorrt_llm import FakeTensorRtLlm
from tests.fakes.tgi import FakeTgi
from tests.fakes.vllm import FakeVllm

# Each kind of UTF-8 length, a joined emoji, a flag, and what ends lines elsewhere than in SSE.
TEXT = 'Grüße, 你好世界！안녕 🦀 👩‍👩‍👧 🇩🇪 \u2028 {"data": "[DONE]"}\n\ndata: no event'
FAKES: dict[str, type[FakeEngine]] = {
    "vllm": FakeVllm,
    "tgi": FakeTgi,
    "llamacpp": FakeLlamaCpp,
    "tensorrt_llm": FakeTensorRtLlm,
}


def pool(model: str, *endpoints: dict[str, Any], **settings: Any) -> dict[str, Any]:
    return {"model": model, "endpoints": list(endpoints), **settings}


def sdk(gateway: Gateway) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=gateway.base_url, api_key="none", max_retries=0, timeout=60)


def ask(model: str, **changes: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 64} | changes


async def streamed(client: AsyncOpenAI, **body: Any) -> str:
    stream = await client.chat.completions.create(**body, stream=True)
    return "".join([choice.delta.content or "" async for chunk in stream for choice in chunk.choices])


async def test_b01_text_cut_at_every_byte_arrives_whole_from_each_engine_and_shows_in_the_metrics(
    gateway_with: Callable[..., Gateway],
) -> None:
    async with AsyncExitStack() as stack:
        pools = []
        for kind, fake_type in FAKES.items():
            fake = await stack.enter_async_context(fake_type(text=TEXT, cut=1))
            pools.append(
                pool(f"on-{kind}", {"name": f"{kind}-0", "engine": kind, "url": fake.url, "model": fake.model})
            )
        # The gateway waits for its engines, which run on this loop.
        gateway = await asyncio.to_thread(gateway_with, pools)
        async with sdk(gateway) as client:
            for kind in FAKES:
                model = f"on-{kind}"
                assert await streamed(client, **ask(model)) == TEXT, kind
                whole = await client.chat.completions.create(**ask(model))
                assert whole.choices[0].message.content == TEXT, kind
                assert whole.model == model
        for kind in FAKES:
            where = {"model": f"on-{kind}", "engine": kind, "endpoint": f"{kind}-0", "outcome": "ok"}
            assert await asyncio.to_thread(gateway.metric, "enginehouse_attempts_total", **where) == 2
            named = {"gen_ai_request_model": f"on-{kind}", "gen_ai_provider_name": kind}
            ttft = "gen_ai_server_time_to_first_token_seconds_count"
            assert await asyncio.to_thread(gateway.metric, ttft, **named) == 1, "B26: one stream, one sample"


async def test_b29_junk_models_do_not_grow_the_metrics(gateway_with: Callable[..., Gateway]) -> None:
    async with FakeVllm() as fake:
        endpoint = {"name": "vllm-0", "engine": "vllm", "url": fake.url, "model": fake.model}
        gateway = await asyncio.to_thread(gateway_with, [pool("m", endpoint)])
        async with sdk(gateway) as client:
            await client.chat.completions.create(**ask("m"))
            for index in range(50):
                with pytest.raises(APIError):
                    await client.chat.completions.create(**ask(f"gpt-mimi-{index}"))
        page = await asyncio.to_thread(gateway.metrics)
        assert "mimi" not in page
        assert await asyncio.to_thread(gateway.metric, "enginehouse_requests_total", model="other") == 50


@pytest.mark.real
async def test_killing_one_of_two_engines_under_load_fails_no_call_that_had_not_begun_to_answer(
    gateway_with: Callable[..., Gateway], tiny_gguf: Path
) -> None:
    launch = {"model": str(tiny_gguf), "slots": 4, "threads": 1}
    endpoints = [{"name": f"cpu-{index}", "engine": "llamacpp", "launch": launch} for index in range(2)]
    gateway = await asyncio.to_thread(gateway_with, [pool("tiny", *endpoints, policy="round_robin")])
    await asyncio.to_thread(
        gateway.wait_until,
        "both engines are ready",
        lambda: gateway.metric("enginehouse_endpoint_health", model="tiny", state="ready") == 2,
    )
    engines = serving(gateway)
    assert len(engines) == 2, engines
    victim = engines[0]
    begun: set[int] = set()
    failed: dict[int, APIError] = {}
    half_way = asyncio.Event()

    async with sdk(gateway) as client:

        async def one(number: int) -> None:
            body = ask("tiny", max_tokens=400, logit_bias={"4": -100}, stream=True)
            try:
                stream = await client.chat.completions.create(**body)
                async for chunk in stream:
                    if chunk.choices and chunk.choices[0].delta.content:
                        begun.add(number)
                        if len(begun) >= 6:
                            half_way.set()
            except APIError as error:
                failed[number] = error

        async with asyncio.TaskGroup() as calls:
            for number in range(24):
                calls.create_task(one(number))
            await half_way.wait()
            victim.kill()  # by its process, found below the gateway: SIGKILL, no word of farewell
        assert set(failed) <= begun, {number: str(failed[number]) for number in set(failed) - begun}

        # And the house stands: the next calls go to the one that is left.
        for _ in range(4):
            assert await streamed(client, **ask("tiny"))


def serving(gateway: Gateway) -> list[psutil.Process]:
    """The engines' own processes: those that listen."""
    return [
        process
        for process in gateway.engines()
        if any(each.status == psutil.CONN_LISTEN for each in process.net_connections("inet"))
    ]


async def test_a_call_leaves_one_line_in_the_log_and_none_of_its_prompt(
    gateway_with: Callable[..., Gateway],
) -> None:
    async with FakeVllm() as fake:
        endpoint = {"name": "vllm-0", "engine": "vllm", "url": fake.url, "model": fake.model}
        gateway = await asyncio.to_thread(gateway_with, [pool("m", endpoint)])
        async with sdk(gateway) as client:
            headers = {"x-request-id": "why-there"}
            await client.chat.completions.create(**ask("m"), extra_headers=headers)

    def lines() -> list[dict[str, Any]]:
        said = [json.loads(line) for line in gateway.log_text().splitlines() if line.startswith("{")]
        return [line for line in said if line["event"] == "call"]

    await asyncio.to_thread(gateway.wait_until, "a line of the call", lambda: bool(lines()))
    (line,) = lines()
    assert (line["request_id"], line["endpoint"], line["status"]) == ("why-there", "vllm-0", 200)
    assert "Hello there" not in gateway.log_text()
