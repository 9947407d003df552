"""The contract of every engine over HTTP, over a real socket: what a whole answer looks like to the sink."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engines import available, options_type
from engines.openai_http import Options
from tests.engines.harness import FAKES, PUBLIC, RecordingSink, Serving, make_call, run
from tests.fakes.server import Peer, chunked, response

HARD = '안녕, 세계! 🦀 naïve "quotes" \\ back\\nslash\nnew line \u2028 end'
"""Characters of one to four bytes, and all that JSON escapes."""


def test_every_engine_over_http_has_a_fake_here() -> None:
    over_http = {kind for kind in available() if issubclass(options_type(kind), Options)}
    assert over_http == set(FAKES)


@pytest.mark.parametrize("kind", ["chat", "completions"])
@pytest.mark.parametrize("piece", [1, 3, 1000])
async def test_b01_a_stream_cut_at_every_byte_gives_the_exact_text(serving: Serving, kind: str, piece: int) -> None:
    async with serving(text=HARD, cut=1, piece=piece) as (_, engine):
        sink = await run(engine, RecordingSink(), kind=kind)
    assert sink.error is None
    assert sink.text == HARD
    assert "\ufffd" not in sink.body.decode()


@pytest.mark.parametrize("kind", ["chat", "completions"])
async def test_a_stream_has_one_head_one_id_the_public_name_and_ends_with_done(serving: Serving, kind: str) -> None:
    async with serving(text="one two three", model="own-name") as (_, engine):
        sink = await run(engine, RecordingSink(), kind=kind)
    assert sink.heads == [(200, (("content-type", "text/event-stream"),))]
    assert sink.payloads[-1] == b"[DONE]" and sink.payloads.count(b"[DONE]") == 1
    assert {chunk["model"] for chunk in sink.chunks} == {PUBLIC}
    assert len({chunk["id"] for chunk in sink.chunks}) == 1 and sink.chunks[0]["id"]
    assert b"own-name" not in sink.body
    assert sink.finish == "stop"
    assert [chunk["choices"][0]["finish_reason"] for chunk in sink.chunks if _finish(chunk)] == ["stop"]


async def test_the_model_is_renamed_in_its_field_and_never_in_content(serving: Serving) -> None:
    text = 'say "model":"own-name" and own-name'
    async with serving(text=text, model="own-name", piece=1000) as (_, engine):
        sink = await run(engine, RecordingSink())
    assert sink.text == text
    assert {chunk["model"] for chunk in sink.chunks} == {PUBLIC}


@pytest.mark.parametrize("kind", ["chat", "completions"])
async def test_marks_say_what_blocks_mean(serving: Serving, kind: str) -> None:
    async with serving(text="abcdef", piece=2) as (_, engine):
        sink = await run(engine, RecordingSink(), kind=kind)
    with_text = [mark for mark, block in zip(sink.marks, sink.blocks, strict=True) if _has_text(block)]
    assert len(with_text) == 3 and all(mark.token for mark in with_text)
    assert sum(mark.token for mark in sink.marks) == 3
    assert [mark.finish for mark in sink.marks if mark.finish] == ["stop"]
    assert sink.marks[-1].terminal
    assert not any(mark.derived or mark.error for mark in sink.marks)


@pytest.mark.parametrize("kind", ["chat", "completions"])
@pytest.mark.parametrize("asked", [True, False])
async def test_b08_the_usage_chunk_is_counted_always_and_shown_once_only_where_asked(
    serving: Serving, kind: str, asked: bool
) -> None:
    async with serving(text="abcdef", piece=2) as (_, engine):
        sink = await run(engine, RecordingSink(), kind=kind, include_usage=asked)
    counted = [mark.usage for mark in sink.marks if mark.usage is not None][-1]
    assert (counted.prompt_tokens, counted.completion_tokens) == (7, 3)
    empty = [chunk for chunk in sink.chunks if not chunk["choices"]]
    assert len(empty) == (1 if asked else 0)
    assert all(not chunk.get("usage") for chunk in sink.chunks if chunk["choices"])
    if asked:
        assert json.loads(sink.payloads[-2]) == empty[0]
        assert (empty[0]["usage"]["prompt_tokens"], empty[0]["usage"]["completion_tokens"]) == (7, 3)


@pytest.mark.parametrize("kind", ["chat", "completions"])
async def test_b08_usage_is_not_asked_for_where_the_call_does_not_stream(serving: Serving, kind: str) -> None:
    async with serving() as (fake, engine):
        await run(engine, RecordingSink(), kind=kind, stream=False)
    assert "stream_options" not in fake.requests[0].json


async def test_b03_comments_are_no_events(serving: Serving) -> None:
    async with serving(text=HARD, comments=True, cut=7) as (_, engine):
        sink = await run(engine, RecordingSink())
    assert sink.text == HARD
    assert all(block.startswith((b"data: {", b"data: [DONE]")) for block in sink.blocks if block)


@pytest.mark.parametrize("kind", ["chat", "completions"])
async def test_a_whole_answer_is_exact_and_carries_the_public_name(serving: Serving, kind: str) -> None:
    async with serving(text=HARD, model="own-name", cut=11) as (_, engine):
        sink = await run(engine, RecordingSink(), kind=kind, stream=False)
    assert sink.error is None and sink.heads == [(200, (("content-type", "application/json"),))]
    answer = json.loads(sink.body)
    choice = answer["choices"][0]
    assert (choice["message"]["content"] if kind == "chat" else choice["text"]) == HARD
    assert answer["model"] == PUBLIC and answer["id"]
    (mark,) = sink.marks
    assert mark.terminal and mark.finish == "stop" and mark.usage is not None and mark.usage.prompt_tokens == 7


async def test_connections_are_used_again_after_whole_answers_streams_and_refusals(serving: Serving) -> None:
    async with serving() as (fake, engine):
        await run(engine, RecordingSink())
        await run(engine, RecordingSink(), stream=False)

        async def refuse(peer: Peer) -> None:
            await peer.send(response(400, {"error": {"message": "no", "type": "x", "code": 400}}))

        fake.script = refuse
        await run(engine, RecordingSink())
        fake.script = None
        await run(engine, RecordingSink())
        assert len(fake.requests) == 4 and not [request for request in fake.requests if request.gone.is_set()]
        assert fake.accepted == (2 if fake.closes_after_stream else 1)


async def test_a_stream_that_closes_in_order_without_done_after_its_finish_is_whole(serving: Serving) -> None:
    async with serving(text="abc") as (fake, engine):
        fake.done = b""  # type: ignore[misc] # an empty chunk is the end of the body
        sink = await run(engine, RecordingSink())
    assert sink.error is None and sink.text == "abc" and sink.payloads[-1] == b"[DONE]"


@pytest.mark.parametrize("size", [300_000, 4_000_000])
async def test_b06_a_huge_event_passes_whole(serving: Serving, size: int) -> None:
    text = "é🦀x" * (size // 7)
    async with serving(text=text, piece=size, cut=16_384) as (_, engine):
        sink = await run(engine, RecordingSink())
        again = await run(engine, RecordingSink())
    assert sink.text == text and again.text == text


async def test_backpressure_stops_the_reading_and_loses_nothing(serving: Serving) -> None:
    text = "x" * 8_000_000
    async with serving(text=text, piece=8_000) as (fake, engine):
        sink = RecordingSink(room=1)
        attempt = engine.open(make_call(), sink)
        await sink.full.wait()
        request = fake.requests[0]
        await request.blocked.wait()
        assert len(sink.blocks) == 1
        assert request.sent < 4_000_000, "what was sent lies in buffers; all of it would be no back-pressure"
        sink.reopen()
        await sink.over.wait()
        await attempt.closed()
    assert sink.text == text


async def test_streams_side_by_side_do_not_mix(serving: Serving) -> None:
    async with serving(text=HARD, cut=5, piece=2) as (_, engine):
        sinks = [RecordingSink() for _ in range(12)]
        attempts = [engine.open(make_call(), sink) for sink in sinks]
        for attempt in attempts:
            await attempt.closed()
    assert all(sink.error is None and sink.text == HARD for sink in sinks)


async def test_embeddings_pass_or_are_refused_aloud(serving: Serving) -> None:
    async with serving() as (fake, engine):
        sink = await run(engine, RecordingSink(), kind="embeddings", stream=False)
    if fake.kind == "llamacpp":
        answer = json.loads(sink.body)
        assert answer["model"] == PUBLIC and len(answer["data"][0]["embedding"]) == 64
    else:
        assert sink.error is not None and not sink.heads


async def test_an_engine_that_streams_on_after_done_is_not_listened_to(serving: Serving) -> None:
    async with serving(text="abc") as (fake, engine):
        events = fake.chat_events({})

        async def script(peer: Peer) -> None:
            await peer.send(fake.sse_head + chunked(b"".join(events)))
            while True:
                await peer.send(chunked(b": and on\n\n" * 1000))

        fake.script = script
        sink = RecordingSink()
        attempt = engine.open(make_call(), sink)
        await sink.over.wait()
        await fake.peer_gone.wait()
        await attempt.closed()
    assert sink.text == "abc" and sink.error is None


def _finish(chunk: dict[str, Any]) -> str | None:
    return next((choice["finish_reason"] for choice in chunk["choices"] if choice.get("finish_reason")), None)


def _has_text(block: bytes) -> bool:
    if not block.startswith(b"data: {"):
        return False
    choices = json.loads(block.split(b"\n\n")[0][6:])["choices"]
    return any(choice.get("text") or choice.get("delta", {}).get("content") for choice in choices)
