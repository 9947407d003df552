"""What the engines over HTTP share besides answers: headers, health, the model's name, options."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engines import Health, build
from engines.openai_http import Options
from tests.engines.harness import FAKES, PUBLIC, RecordingSink, Serving, make_call, make_engine, run
from tests.fakes.llamacpp import FakeLlamaCpp
from tests.fakes.server import Peer, response
from tests.fakes.vllm import FakeVllm

ALLOWED = {
    "host",
    "accept",
    "accept-encoding",
    "connection",
    "content-length",
    "content-type",
    "traceparent",
    "user-agent",
    "x-request-id",
}


async def test_b33_only_headers_of_the_list_reach_the_engine(serving: Serving) -> None:
    canary = "sk-canary-of-the-client"
    headers = (
        ("authorization", f"Bearer {canary}"),
        ("x-api-key", canary),
        ("cookie", canary),
        ("proxy-authorization", canary),
        ("x-forwarded-host", "canary.example"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    )
    async with serving() as (fake, engine):
        await run(engine, RecordingSink(), headers=headers)
        await engine.probe()
    for request in fake.requests:
        assert "canary" not in str(request.headers)
        assert request.header("authorization") is None
        names = [name for name, _ in request.headers]
        assert set(names) <= ALLOWED and len(names) == len(set(names))
    sent = fake.requests[0]
    assert sent.header("traceparent") == headers[-1][1]
    assert sent.header("x-request-id") == make_call().id, "the client's own label is not unique"
    assert sent.header("accept-encoding") == "identity"
    assert (sent.header("user-agent") or "").startswith("enginehouse")


async def test_b33_the_engines_own_key_is_sent_where_one_is_configured(serving: Serving) -> None:
    async with serving(options={"api_key": "own-key"}, api_key="own-key", text="abc") as (fake, engine):
        sink = await run(engine, RecordingSink())
    assert sink.text == "abc"
    assert fake.requests[0].header("authorization") == "Bearer own-key"


async def test_b34_a_refused_key_is_not_repeated(serving: Serving) -> None:
    async def script(peer: Peer) -> None:
        said = {"error": {"message": "Incorrect API key provided: sk-own-canary", "type": "auth", "code": 401}}
        await peer.send(response(401, said))

    async with serving(options={"api_key": "sk-own-canary"}) as (fake, engine):
        fake.script = script
        sink = await run(engine, RecordingSink())
    assert sink.error is not None and "canary" not in sink.error.message


@pytest.mark.parametrize("value", ["a\r\nx-evil: 1", "ü", "", "x" * 1000])
async def test_a_label_that_is_no_header_value_is_not_sent(value: str) -> None:
    async with FakeVllm() as fake:
        engine = make_engine(fake)
        call = make_call(headers=(("tracestate", value),))
        sink = RecordingSink()
        attempt = engine.open(call, sink)
        await attempt.closed()
        assert sink.error is None
        assert fake.requests[0].header("tracestate") is None
        assert fake.requests[0].header("x-evil") is None
        await engine.aclose()


# Health


async def test_a_healthy_engine_is_ready(serving: Serving) -> None:
    async with serving() as (_, engine):
        assert await engine.probe() == Health("ready")


async def test_b16_an_engine_that_refuses_is_down_and_comes_back_by_itself(serving: Serving) -> None:
    async with serving() as (fake, engine):
        await fake.refuse()
        health = await engine.probe()
        assert health.state == "down" and "refused" in health.why
        await fake.listen()
        assert (await engine.probe()).state == "ready"


async def test_b16_an_engine_that_says_it_is_loading_is_loading_whatever_its_models_route_says(
    serving: Serving,
) -> None:
    async with serving() as (fake, engine):
        fake.health = FakeLlamaCpp().loading()
        assert (await engine.probe()).state == "loading"
        assert [request.path for request in fake.requests] == [fake.health_path]


@pytest.mark.parametrize("status", [500, 503, 404, 401, 302, 204])
async def test_any_other_answer_is_down_and_says_which(serving: Serving, status: int) -> None:
    async with serving() as (fake, engine):
        fake.health = response(status, b"", "text/plain")
        health = await engine.probe()
        assert health.state == "down" and str(status) in health.why


async def test_b16_a_health_route_that_is_slow_is_degraded_not_down(serving: Serving) -> None:
    async with serving(options={"probe_timeout": 0.05}) as (fake, engine):

        async def slow(peer: Peer) -> None:
            await peer.hang()

        fake.route("GET", fake.health_path, slow)
        assert (await engine.probe()).state == "degraded"
        await fake.peer_gone.wait()


async def test_a_probe_that_breaks_off_is_down(serving: Serving) -> None:
    async with serving() as (fake, engine):

        async def reset(peer: Peer) -> None:
            peer.reset()

        fake.route("GET", fake.health_path, reset)
        assert (await engine.probe()).state == "down"


async def test_the_health_route_can_be_another() -> None:
    async with FakeVllm() as fake:
        engine = make_engine(fake, health_path="/v1/models")
        assert (await engine.probe()).state == "ready"
        assert fake.requests[0].path == "/v1/models"
        await engine.aclose()


# The model's own name


async def test_the_models_own_name_is_discovered_once_the_engine_is_ready() -> None:
    async with FakeVllm(model="own", text="abc") as fake:
        engine = build("vllm", "e", {"url": fake.url})
        before = await run(engine, RecordingSink())
        assert before.error is not None, "vLLM knows no public name"
        await engine.probe()
        sink = await run(engine, RecordingSink())
        assert sink.text == "abc" and fake.requests[-1].json["model"] == "own"
        await engine.aclose()


async def test_the_name_is_discovered_anew_after_the_engine_was_down() -> None:
    async with FakeVllm(model="one") as fake:
        engine = build("vllm", "e", {"url": fake.url})
        await engine.probe()
        await fake.die()
        await engine.probe()
        fake.model = "two"
        await fake.listen()
        await engine.probe()
        assert (await run(engine, RecordingSink())).error is None
        assert fake.requests[-1].json["model"] == "two"
        await engine.aclose()


@pytest.mark.parametrize("models", [b"", b"[]", b'{"data":[]}', b'{"data":[{"name":"x"}]}', b"\xff"])
async def test_a_models_route_that_says_nothing_of_use_leaves_the_public_name(models: bytes) -> None:
    async def odd(peer: Peer) -> None:
        await peer.send(response(200, models))

    async with FakeVllm() as fake:
        fake.route("GET", "/v1/models", odd)
        engine = build("vllm", "e", {"url": fake.url})
        assert (await engine.probe()).state == "ready"
        await run(engine, RecordingSink())
        assert fake.requests[-1].json["model"] == PUBLIC
        await engine.aclose()


async def test_a_configured_name_is_sent_and_nothing_is_discovered(serving: Serving) -> None:
    async with serving(model="own") as (fake, engine):
        await engine.probe()
        await run(engine, RecordingSink())
    paths = [request.path for request in fake.requests]
    assert "/v1/models" not in paths and paths[-1] == "/v1/chat/completions"
    assert fake.requests[-1].json["model"] == ("tgi" if fake.kind == "tgi" else "own")


# Options


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "url"),
        ({"url": "ftp://h"}, "http"),
        ({"url": "http://"}, "host"),
        ({"url": "10.0.0.1:8000"}, "http"),
        ({"url": "http://h:99999"}, "URL"),
        ({"url": "http://user:canary@h:1"}, "api_key"),
        ({"url": "http://h:1/?key=canary"}, "query"),
        ({"url": "http://h:1/#canary"}, "query"),
        ({"url": "http://h:1/a/../b"}, ".."),
        ({"url": "http://h:1", "idle_timeout": 0}, "idle_timeout"),
        ({"url": "http://h:1", "connect_timeout": -1}, "connect_timeout"),
        ({"url": "http://h:1", "max_event": 0}, "max_event"),
        ({"url": "http://h:1", "health_path": "health"}, "health_path"),
        ({"url": "http://h:1", "api_key": ""}, "api_key"),
        ({"url": "http://h:1", "api_key": "a\nb"}, "api_key"),
        ({"url": "http://h:1", "model": 3}, "model"),
        ({"url": "http://h:1", "verify_tls": "yes"}, "verify_tls"),
    ],
)
@pytest.mark.parametrize("kind", sorted(FAKES))
def test_wrong_options_are_refused_by_name_and_never_repeat_a_secret(
    kind: str, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=r"endpoint 'e'") as caught:
        build(kind, "e", options)
    assert complaint in str(caught.value) and "canary" not in str(caught.value)


def test_an_https_url_with_a_base_path_is_taken() -> None:
    assert Options(url="https://engine.example:8443/base").url.endswith("/base")


async def test_the_template_may_want_another_empty_content() -> None:
    messages = [
        {
            "role": "assistant",
            "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "a", "content": "1"},
    ]
    async with FakeVllm() as fake:
        engine = make_engine(fake, assistant_content="empty")
        await run(engine, RecordingSink(), messages=messages)
        assert fake.requests[0].json["messages"][0]["content"] == ""
        await engine.aclose()


async def test_closing_twice_and_unused_is_no_fault() -> None:
    engine = build("vllm", "e", {"url": "http://127.0.0.1:1"})
    await engine.aclose()
    await engine.aclose()
    assert (await engine.probe()).state == "down"
    assert asyncio.all_tasks() == {asyncio.current_task()}
