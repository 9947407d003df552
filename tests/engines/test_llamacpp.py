"""What is llama.cpp's own way, against its fake."""

from __future__ import annotations

import pytest

from engines.errors import Faulted, Loading, Unsupported
from tests.engines.harness import RecordingSink, run, serve
from tests.fakes.engine import FakeEngine, captured, captured_events, compact
from tests.fakes.llamacpp import FakeLlamaCpp
from tests.fakes.server import Peer, response

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


async def test_while_it_loads_every_route_is_loading_and_free_to_retry() -> None:
    async def loading(peer: Peer) -> None:
        await peer.send(FakeLlamaCpp().loading())

    async with serve("llamacpp") as (fake, engine):
        fake.script = loading
        sink = await run(engine, RecordingSink())
    assert isinstance(sink.error, Loading) and sink.error.retry == "free"


@pytest.mark.parametrize("stream", [True, False])
async def test_its_own_timings_are_in_the_marks(stream: bool) -> None:
    async with serve("llamacpp") as (_, engine):
        sink = await run(engine, RecordingSink(), stream=stream)
    timings = [mark.timings for mark in sink.marks if mark.timings is not None]
    assert timings and timings[-1].prefill and timings[-1].decode


async def test_a_failed_stream_without_done_is_the_error_that_it_says() -> None:
    async with serve("llamacpp", text="abcdef", piece=2, error_at=2) as (fake, engine):
        assert b"[DONE]" not in b"".join(fake.broken() or [])
        sink = await run(engine, RecordingSink())
    assert isinstance(sink.error, Faulted) and sink.error.status == 500


async def test_b19_embeddings_that_it_was_not_started_for_are_unsupported() -> None:
    status, media, raw = captured("llamacpp/err_embeddings")

    async def refuse(peer: Peer) -> None:
        await peer.send(response(status, raw, media))

    async with serve("llamacpp") as (fake, engine):
        fake.script = refuse
        sink = await run(engine, RecordingSink(), kind="embeddings", stream=False)
    assert isinstance(sink.error, Unsupported)


async def test_an_ordered_close_after_a_refusal_costs_the_next_call_nothing() -> None:
    async with serve("llamacpp", text="abc") as (fake, engine):

        async def refuse(peer: Peer) -> None:
            await peer.send(fake.too_long())
            peer.close()

        fake.script = refuse
        await run(engine, RecordingSink())
        fake.script = None
        sink = await run(engine, RecordingSink())
    assert sink.error is None and fake.accepted == 2


def test_the_fake_streams_what_llamacpp_was_seen_to_stream() -> None:
    for name in ("llamacpp/chat_stream", "llamacpp/chat_stream_usage", "llamacpp/completions_stream"):
        framed = b"".join(b"data: " + compact(event) + b"\n\n" for event in captured_events(name))
        assert (framed + b"data: [DONE]").strip() == captured(name)[2].strip()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_call_right_after_a_stream_is_not_lost_to_the_connection_that_it_closes(stream: bool) -> None:
    async with serve("llamacpp", text="abc") as (_, engine):
        for _ in range(3):
            await run(engine, RecordingSink())
            sink = await run(engine, RecordingSink(), stream=stream)
            assert sink.error is None


def knows(fake: FakeEngine, tools: bool, prompt: str = "Hello") -> None:
    """Make the fake say that its template knows tools or not, and what prompt it makes of a call with some."""

    async def props(peer: Peer) -> None:
        await peer.send(response(200, {"total_slots": 4, "chat_template_caps": {"supports_tools": tools}}))

    async def apply(peer: Peer) -> None:
        offered = [tool["function"]["name"] for tool in peer.request.json["tools"]]
        await peer.send(response(200, {"prompt": prompt.format(tools=" ".join(offered))}))

    fake.route("GET", "/props", props)
    fake.route("POST", "/apply-template", apply)


async def test_tools_that_the_models_template_would_leave_out_are_refused() -> None:
    async with serve("llamacpp") as (fake, engine):
        knows(fake, tools=False)
        assert (await engine.probe()).state == "ready"
        sink = await run(engine, RecordingSink(), tools=[TOOL])
        assert isinstance(sink.error, Unsupported) and sink.error.param == "tools"
        assert "template" in sink.error.message
        assert (await run(engine, RecordingSink())).error is None


async def test_what_comes_up_is_asked_for_its_template_anew_and_what_stays_is_not() -> None:
    async with serve("llamacpp") as (fake, engine):
        knows(fake, tools=False)
        await engine.probe()
        fake.health = FakeLlamaCpp().loading()
        assert (await engine.probe()).state == "loading"
        fake.health = None
        knows(fake, tools=True)
        await engine.probe()
        await engine.probe()
        assert (await run(engine, RecordingSink(), tools=[TOOL])).error is None
        assert sum(request.path == "/props" for request in fake.requests) == 2


async def test_tools_that_llamacpp_tells_the_model_in_words_of_its_own_go_out() -> None:
    async with serve("llamacpp") as (fake, engine):
        knows(fake, tools=False, prompt="You can call {tools}. Hello")
        await engine.probe()
        assert (await run(engine, RecordingSink(), tools=[TOOL])).error is None


@pytest.mark.parametrize("route", ["/props", "/apply-template"])
@pytest.mark.parametrize("said", [response(404), response(500, b"{}"), response(200, b"no JSON"), None])
async def test_tools_go_out_where_llamacpp_does_not_say_what_its_template_does(said: bytes | None, route: str) -> None:
    async def answer(peer: Peer) -> None:
        if said is None:
            peer.reset()
        else:
            await peer.send(said)

    async with serve("llamacpp") as (fake, engine):
        knows(fake, tools=False)
        fake.route("GET" if route == "/props" else "POST", route, answer)
        assert (await engine.probe()).state == "ready"
        assert (await run(engine, RecordingSink(), tools=[TOOL])).error is None
        assert fake.requests[-1].json["tools"] == [TOOL]


async def test_questions_for_the_template_carry_the_engines_key() -> None:
    async with serve("llamacpp", {"api_key": "sk-own"}) as (fake, engine):
        knows(fake, tools=False)
        await engine.probe()
        asked = {request.path: request.header("authorization") for request in fake.requests}
        assert asked["/props"] == asked["/apply-template"] == "Bearer sk-own"
