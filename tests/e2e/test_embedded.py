"""The embedded engine behind the whole gateway: its real worker process around a scripted model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from engines import embedded
from tests.e2e.inside import WAIT, Home, chat, house, settled
from tests.engines.embedded_house import MODEL, prompt

Serve = Callable[..., AbstractAsyncContextManager[Home]]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Starts a gateway with one embedded endpoint: `serve(slots=2)`."""

    def build(name: str, options: embedded.Options) -> embedded.Embedded:
        return embedded.Embedded(name, options, model=MODEL, backoff=(0.01, 0.05))

    monkeypatch.setattr("engines.embedded.build", build)

    @asynccontextmanager
    async def start(name: str = "model.gguf", ready: bool = True, **options: Any) -> AsyncIterator[Home]:
        (tmp_path / name).write_bytes(b"GGUF\x03\x00\x00\x00")
        endpoint = {"name": "emb-0", "engine": "embedded", "model": f"./{name}", "threads": 1, **options}
        async with house(tmp_path, {"model": "m", "endpoints": [endpoint]}, ready=ready) as home:
            yield home

    return start


def saying(text: str, **fields: Any) -> dict[str, Any]:
    return chat(**fields) | {"messages": [{"role": "user", "content": text}]}


async def test_a_stream_and_a_whole_answer_pass_through_the_gateway(serve: Serve) -> None:
    async with serve() as home:
        async with home.ask(saying("안녕, 세계! 🦊", stream=True)) as reply:
            assert reply.status == 200 and reply.headers["x-enginehouse-endpoint"] == "emb-0"
            assert (await reply.rest()).endswith(b"data: [DONE]\n\n")
        async with home.ask(saying("안녕, 세계! 🦊")) as reply:
            assert (await reply.json())["choices"][0]["message"]["content"] == "안녕, 세계! 🦊"
        first = await home.told(1)
    (row,) = first.observations
    assert (row.engine, row.outcome, row.finish) == ("embedded", "ok", "stop")
    assert row.attempt_ttft is not None and row.engine_prefill is not None and row.output_tokens


async def test_the_process_is_watched_like_one_that_the_gateway_launched(serve: Serve) -> None:
    async with serve(slots=3) as home:
        supervisor = home.gateway.supervisors["emb-0"]
        assert supervisor.state.state == "ready" and supervisor.deployment_time is not None
        state = home.gateway.pools["m"].router.states(0.0)["emb-0"]
        assert state.health == "ready"
    assert supervisor.is_gone()


async def test_more_calls_than_slots_wait_at_the_router_and_all_are_served(serve: Serve) -> None:
    async with serve(slots=2) as home:

        async def one(number: int) -> str:
            async with home.ask(saying(f"call {number}")) as reply:
                answer = await reply.json()
            return str(answer["choices"][0]["message"]["content"])

        assert await asyncio.gather(*(one(number) for number in range(9))) == [f"call {n}" for n in range(9)]
        assert home.inflight() == 0


async def test_a_crash_is_an_error_to_its_client_and_the_next_call_is_served(serve: Serve) -> None:
    async with serve() as home:
        async with home.ask(saying(prompt("abcdef", crash=3), stream=True)) as reply:
            body = await reply.rest()
            assert b'"content":"c"' in body and b'"error"' in body and b"[DONE]" not in body
        supervisor = home.gateway.supervisors["emb-0"]
        async with asyncio.timeout(WAIT):
            while supervisor.state.state != "ready" or supervisor.restarts != 1:
                await supervisor.changed()
        async with home.ask(saying("abc")) as reply:
            assert reply.status == 200


async def test_b09_a_client_that_leaves_frees_its_place_at_once(serve: Serve) -> None:
    async with serve() as home:
        async with home.ask(saying("x" * 2000, stream=True)) as reply:
            await reply.event()
            reply.leave()
            await settled("the call is over", lambda: home.inflight() == 0)
        async with home.ask(saying("abc")) as reply:
            assert (await reply.json())["choices"][0]["message"]["content"] == "abc"


async def test_an_endpoint_that_loads_is_not_ready_and_says_why_one_cannot_load(serve: Serve) -> None:
    async with serve("broken.gguf", ready=False) as home:
        await settled("the endpoint is down", lambda: home.gateway.supervisors["emb-0"].state.state == "down")
        status, _ = await home.get("/ready")
        assert status == 503
        async with home.ask(saying("abc")) as reply:
            assert reply.status == 503


async def test_what_it_cannot_honour_is_400_with_the_fields_name(serve: Serve) -> None:
    async with serve() as home:
        for fields, param in (({"n": 2}, "n"), ({"logit_bias": {"99999": 1}}, "logit_bias")):
            async with home.ask(saying("abc", **fields)) as reply:
                answer = await reply.json()
            assert (reply.status, answer["error"]["param"]) == (400, param)
