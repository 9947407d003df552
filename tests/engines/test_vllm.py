"""What is vLLM's own way, against its fake."""

from __future__ import annotations

from engines.errors import Faulted, Misconfigured, Overloaded, Unsupported
from tests.engines.harness import RecordingSink, run, serve
from tests.fakes.engine import captured, captured_events, compact
from tests.fakes.server import Peer, response


async def test_a_name_that_is_not_its_own_is_misconfigured() -> None:
    async with serve("vllm", options={"model": "wrong"}) as (_, engine):
        sink = await run(engine, RecordingSink())
    assert isinstance(sink.error, Misconfigured)


async def test_its_admission_limit_is_overload() -> None:
    status, media, raw = captured("vllm/err_overloaded_503")

    async def busy(peer: Peer) -> None:
        await peer.send(response(status, raw, media))

    async with serve("vllm") as (fake, engine):
        fake.script = busy
        sink = await run(engine, RecordingSink())
    assert isinstance(sink.error, Overloaded) and sink.error.retry == "free"


async def test_done_after_an_error_event_is_no_success() -> None:
    async with serve("vllm", text="abcdef", piece=2, error_at=2) as (fake, engine):
        assert (fake.broken() or [])[-1] == b"data: [DONE]\n\n"
        sink = await run(engine, RecordingSink())
    assert isinstance(sink.error, Faulted) and sink.error.status == 500
    assert b"[DONE]" not in sink.body


async def test_usage_is_asked_for_on_both_routes() -> None:
    async with serve("vllm") as (fake, engine):
        for kind in ("chat", "completions"):
            await run(engine, RecordingSink(), kind=kind)
            assert fake.requests[-1].json["stream_options"]["include_usage"] is True


async def test_b17_a_stream_of_tool_calls_passes_as_it_came() -> None:
    template = captured_events("vllm/chat_stream_usage")[1]
    deltas = [
        {"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"x":1}'}}]},
    ]
    async with serve("vllm") as (fake, engine):
        events = [{**template, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
        events.append({**template, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
        fake.events = [compact(event) for event in events]
        sink = await run(engine, RecordingSink())
    assert sink.error is None and sink.finish == "tool_calls"
    assert [chunk["choices"][0]["delta"] for chunk in sink.chunks[:2]] == deltas
    assert [mark.token for mark in sink.marks[:2]] == [True, True]


def test_the_fake_streams_what_vllm_was_seen_to_stream() -> None:
    """Every event of the capture, re-made by the fake's way of making JSON, is the captured bytes."""
    for name in ("vllm/chat_stream_usage", "vllm/completions_stream"):
        events = captured_events(name)
        framed = b"".join(b"data: " + compact(event) + b"\n\n" for event in events) + b"data: [DONE]\n\n"
        assert framed.strip() == captured(name)[2].strip()


async def test_b19_a_vllm_without_the_embeddings_route_is_unsupported_and_no_fault_of_the_operators() -> None:
    async with serve("vllm") as (_, engine):
        sink = await run(engine, RecordingSink(), kind="embeddings", stream=False)
    assert isinstance(sink.error, Unsupported) and (sink.error.status, sink.error.param) == (400, "model")
    assert "embeddings" in sink.error.message


async def test_an_unknown_model_is_the_operators_matter_for_embeddings_too() -> None:
    status, media, raw = captured("vllm/err_unknown_model")

    async def refuse(peer: Peer) -> None:
        await peer.send(response(status, raw, media))

    async with serve("vllm") as (fake, engine):
        fake.route("POST", "/v1/embeddings", refuse)
        sink = await run(engine, RecordingSink(), kind="embeddings", stream=False)
    assert isinstance(sink.error, Misconfigured)
