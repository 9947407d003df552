"""What is TGI's own way, against its fake, which is written from its contract."""

from __future__ import annotations

import asyncio

import pytest

from engines.errors import ContextTooLong, EngineError, Faulted, Overloaded, Refused
from tests.engines.harness import RecordingSink, make_call, run, serve
from tests.fakes.server import Peer, response
from tests.fakes.tgi import FakeTgi


async def test_data_lines_without_a_blank_are_understood_and_the_client_gets_them_with_one() -> None:
    async with serve("tgi", text="abc") as (fake, engine):
        assert all(event.startswith(b"data:") and event[5:6] != b" " for event in fake.chat_events({}))
        sink = await run(engine, RecordingSink())
    assert sink.text == "abc" and all(block.startswith(b"data: ") for block in sink.blocks if block)


async def test_the_empty_id_becomes_one_of_the_call() -> None:
    async with serve("tgi") as (_, engine):
        sink = await run(engine, RecordingSink())
    assert {chunk["id"] for chunk in sink.chunks} == {"chatcmpl-c0ffee"}


@pytest.mark.parametrize(
    ("inside", "error"),
    [
        (FakeTgi().overloaded_inside(), Overloaded),
        (FakeTgi().too_long_inside(), ContextTooLong),
        ([b'{"error":{"message":"Input validation error: `inputs` cannot be empty","http_status_code":422}}'], Refused),
        ([b'{"error":"Request failed during generation: x","error_type":"generation"}'], Faulted),
    ],
)
async def test_b05_errors_inside_a_200_stream_are_told_apart_by_their_text(
    inside: list[bytes], error: type[EngineError]
) -> None:
    async with serve("tgi") as (fake, engine):
        fake.events = inside
        sink = await run(engine, RecordingSink())
    assert type(sink.error) is error and not sink.blocks


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (FakeTgi().overloaded(), Overloaded),
        (response(424, {"error": "Request failed during generation", "error_type": "generation"}), Faulted),
        (response(422, b"Failed to deserialize the JSON body into the target type", "text/plain"), Refused),
    ],
)
async def test_errors_of_whole_answers_are_told_apart_by_status(answer: bytes, error: type[EngineError]) -> None:
    async def script(peer: Peer) -> None:
        await peer.send(answer)

    async with serve("tgi") as (fake, engine):
        fake.script = script
        sink = await run(engine, RecordingSink(), stream=False)
    assert type(sink.error) is error


async def test_an_open_top_p_is_left_out_because_it_would_be_refused() -> None:
    async with serve("tgi", text="abc") as (fake, engine):
        sink = await run(engine, RecordingSink(), top_p=1.0)
        assert sink.text == "abc" and "top_p" not in fake.requests[0].json


@pytest.mark.parametrize("finish", ["stop_sequence", "eos_token"])
async def test_its_finish_reasons_become_openais(finish: str) -> None:
    async with serve("tgi", text="abc") as (fake, engine):
        fake.finish = finish
        for kind in ("chat", "completions"):
            sink = await run(engine, RecordingSink(), kind=kind)
            assert sink.finish == "stop"
            assert finish.encode() not in sink.body


async def test_keep_alive_comments_are_signs_of_life() -> None:
    async with serve("tgi", options={"first_byte_timeout": 0.2}, text="abc") as (fake, engine):
        silence, begun = fake.gate, asyncio.Event()

        async def script(peer: Peer) -> None:
            await peer.send(fake.sse_head + b"3\r\n:\n\n\r\n")
            begun.set()
            await silence.wait()
            await peer.send(b"".join(b"%x\r\n%b\r\n" % (len(e), e) for e in fake.chat_events({})) + b"0\r\n\r\n")

        fake.script = script
        sink = RecordingSink()
        attempt = engine.open(make_call(), sink)
        await begun.wait()
        fake.script = None
        fake.pause_at = "head"
        other = await run(engine, RecordingSink())  # as long as the limit, in silence
        assert other.error is not None and not sink.over.is_set()
        silence.set()
        await attempt.closed()
    assert sink.text == "abc"
