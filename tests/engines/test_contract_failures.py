"""The contract of every engine over HTTP, over a real socket: what goes wrong reaches `fail`, once, by its cause."""

from __future__ import annotations

import asyncio
import json

import pytest

from engines.errors import (
    Faulted,
    Gone,
    Lost,
    Malformed,
    TimedOut,
    Unreached,
)
from tests.engines.harness import RecordingSink, Serving, make_call, run
from tests.fakes.engine import FakeEngine
from tests.fakes.server import Peer, Script, chunked, response


def _answering(data: bytes) -> Script:
    async def script(peer: Peer) -> None:
        await peer.send(data)

    return script


def _streaming(fake: FakeEngine, *parts: bytes) -> Script:
    return _answering(fake.sse_head + b"".join(chunked(part) for part in parts) + chunked(b""))


async def test_a_stream_is_no_whole_answer_and_a_whole_answer_no_stream(serving: Serving) -> None:
    async with serving() as (fake, engine):
        whole = json.dumps(fake.chat_answer({})).encode()
        fake.script = _answering(response(200, whole))
        sink = await run(engine, RecordingSink())
        assert isinstance(sink.error, Malformed) and not sink.heads
        fake.script = _streaming(fake, *fake.chat_events({}))
        sink = await run(engine, RecordingSink(), stream=False)
        assert isinstance(sink.error, Malformed) and not sink.heads


@pytest.mark.parametrize("after", [0, 1, 4])
async def test_b05_an_error_in_a_stream_is_a_fail_and_no_data(serving: Serving, after: int) -> None:
    async with serving(text="abcdefghijklmnop", piece=2, error_at=after) as (fake, engine):
        sink = await run(engine, RecordingSink())
    assert isinstance(sink.error, Lost if fake.kind == "tensorrt_llm" else Faulted)
    assert b"error" not in sink.body and b"[DONE]" not in sink.body
    assert not any(mark.finish or mark.terminal for mark in sink.marks), "no finish is invented"


@pytest.mark.parametrize(("stream", "stops"), [(True, "head"), (True, 0), (True, 3), (False, "head")])
async def test_an_engine_that_drops_the_call_and_still_listens_is_lost(
    serving: Serving, stream: bool, stops: int | str
) -> None:
    async with serving(text="abcdefgh", piece=2, pause_at=stops) as (fake, engine):
        sink = RecordingSink()
        attempt = engine.open(make_call(stream=stream), sink)
        await fake.paused.wait()
        fake.drop()
        await sink.over.wait()
        await attempt.closed()
        assert len(fake.requests) == 1, "paid work is not run twice"
    assert type(sink.error) is Lost and sink.error.retry == "never"
    assert sink.finish is None


@pytest.mark.parametrize("stops", ["head", 0, 3])
async def test_an_engine_that_died_with_the_call_is_gone(serving: Serving, stops: int | str) -> None:
    async with serving(text="abcdefgh", piece=2, pause_at=stops) as (fake, engine):
        sink = RecordingSink()
        attempt = engine.open(make_call(), sink)
        await fake.paused.wait()
        await fake.die()
        await sink.over.wait()
        await attempt.closed()
    assert type(sink.error) is Gone and sink.error.retry == "once"
    assert sink.finish is None


@pytest.mark.parametrize("junk", [b"zz\r\nno chunk\r\n", b"5\r\nmore than five\r\n", b"-1\r\n"])
async def test_framing_that_breaks_in_mid_stream_is_told_at_once_and_not_waited_out(
    serving: Serving, junk: bytes
) -> None:
    async def script(peer: Peer) -> None:
        await peer.send(fake.sse_head + chunked(fake.chat_events({})[0]))
        await begun.wait()
        await peer.send(junk)
        await peer.hang()

    begun = asyncio.Event()
    async with serving(options={"idle_timeout": 60}) as (fake, engine):
        fake.script = script
        sink = RecordingSink(on_data=begun.set)
        attempt = engine.open(make_call(), sink)
        async with asyncio.timeout(20):
            await sink.over.wait()
        await attempt.closed()
    assert isinstance(sink.error, Lost) and sink.error.retry == "never"
    assert sink.finish is None


_DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_nested_too_deeply_to_be_read_is_bad_output_and_no_fault_of_ours(
    serving: Serving, stream: bool
) -> None:
    async with serving() as (fake, engine):
        deep = b'{"choices": [{"index": 0, "delta": %s, "message": %s}]}' % (_DEEP, _DEEP)
        frame = b"data: " + deep + b"\n\n"
        fake.script = _streaming(fake, frame) if stream else _answering(response(200, deep))
        sink = await run(engine, RecordingSink(), stream=stream)
        assert isinstance(sink.error, Malformed) and "RecursionError" not in sink.error.detail

        fake.script = _answering(response(500, _DEEP))
        sink = await run(engine, RecordingSink(), stream=stream)
        assert isinstance(sink.error, Faulted) and sink.error.status == 500


@pytest.mark.parametrize("status", [200, 400, 429, 500, 503])
async def test_the_engines_own_key_is_not_in_what_is_told_of_its_errors(serving: Serving, status: int) -> None:
    key = "no-marks-of-a-key"
    said = {"error": {"message": f"{key} may not", "type": "x", "param": key, "code": key}}
    async with serving(options={"api_key": key}) as (fake, engine):
        fake.script = _answering(response(status, said))
        sink = await run(engine, RecordingSink())
        error = sink.error
        assert error is not None
        assert key not in f"{error} {error.message} {error.param} {error.code} {error.detail} {error.args}"
        assert "[redacted]" in error.detail


async def test_an_engine_that_refuses_is_unreached_and_free_to_retry(serving: Serving) -> None:
    async with serving() as (fake, engine):
        await fake.refuse()
        sink = await run(engine, RecordingSink())
    assert isinstance(sink.error, Unreached) and sink.error.retry == "free"
    assert not sink.heads


async def test_an_engine_that_died_between_two_calls_is_unreached_in_spite_of_the_pool(serving: Serving) -> None:
    async with serving() as (fake, engine):
        await run(engine, RecordingSink())
        await fake.die()
        await fake.empty()
        sink = await run(engine, RecordingSink())
    assert isinstance(sink.error, Unreached)


async def test_an_engine_that_came_back_serves_in_spite_of_the_pool(serving: Serving) -> None:
    async with serving() as (fake, engine):
        await run(engine, RecordingSink())
        await fake.die()
        await fake.empty()
        await fake.listen()
        sink = await run(engine, RecordingSink())
    assert sink.error is None


async def test_a_stream_that_ends_without_a_finish_is_lost(serving: Serving) -> None:
    async with serving(text="abcdef", piece=2) as (fake, engine):
        fake.script = _streaming(fake, *fake.chat_events({})[:2])
        sink = await run(engine, RecordingSink())
    assert type(sink.error) is Lost and sink.finish is None


async def test_an_event_that_was_cut_off_is_never_shown(serving: Serving) -> None:
    async with serving(text="abcdef", piece=2) as (fake, engine):
        first, second, *_ = fake.chat_events({})
        fake.script = _streaming(fake, first, second[: len(second) // 2])
        sink = await run(engine, RecordingSink())
    assert sink.error is not None and len([block for block in sink.blocks if block]) == 1


async def test_an_event_that_is_no_json_is_malformed(serving: Serving) -> None:
    async with serving() as (fake, engine):
        fake.script = _streaming(fake, *fake.chat_events({})[:2], b"data: {not json}\n\n")
        sink = await run(engine, RecordingSink())
    assert isinstance(sink.error, Malformed)


async def test_b06_a_line_without_end_stops_at_the_cap_and_the_engine_is_told(serving: Serving) -> None:
    async with serving(options={"max_event": 100_000}) as (fake, engine):

        async def script(peer: Peer) -> None:
            await peer.send(fake.sse_head)
            while True:
                await peer.send(chunked(b"data: " + b"x" * 60_000))

        fake.script = script
        sink = RecordingSink()
        attempt = engine.open(make_call(), sink)
        await sink.over.wait()
        await fake.peer_gone.wait()
        await attempt.closed()
        assert fake.requests[0].sent < 2_000_000
    assert isinstance(sink.error, Malformed)


async def test_b45_a_whole_answer_over_its_cap_is_malformed_and_not_read_on(serving: Serving) -> None:
    async with serving(options={"max_answer": 100_000}) as (fake, engine):
        fake.script = _answering(response(200, b'{"a":"' + b"x" * 5_000_000 + b'"}'))
        sink = RecordingSink()
        attempt = engine.open(make_call(stream=False), sink)
        await sink.over.wait()
        await attempt.closed()
        assert fake.requests[0].sent <= 5_100_000
    assert isinstance(sink.error, Malformed) and "100000 bytes" in sink.error.message


async def test_an_error_body_without_end_is_read_to_64_kb(serving: Serving) -> None:
    async with serving() as (fake, engine):

        async def script(peer: Peer) -> None:
            await peer.send(b"HTTP/1.1 500 X\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n")
            while True:
                await peer.send(chunked(b"x" * 10_000))

        fake.script = script
        sink = await run(engine, RecordingSink())
        await fake.peer_gone.wait()
    assert isinstance(sink.error, Faulted)


@pytest.mark.parametrize(
    ("options", "stops"),
    [({"first_byte_timeout": 0.05}, "head"), ({"first_byte_timeout": 0.05}, 0), ({"idle_timeout": 0.05}, 3)],
)
async def test_an_engine_that_falls_silent_is_timed_out_and_told(
    serving: Serving, options: dict[str, float], stops: int | str
) -> None:
    async with serving(options=options, text="abcdefgh", piece=2, pause_at=stops) as (fake, engine):
        sink = await run(engine, RecordingSink())
        await fake.peer_gone.wait()
    assert type(sink.error) is TimedOut and sink.error.retry == "never"


async def test_a_slow_client_is_not_the_engines_silence(serving: Serving) -> None:
    async with serving(options={"idle_timeout": 0.05}, text="abcdefgh", piece=2, pause_at=4) as (fake, engine):
        sink = RecordingSink(room=1)
        attempt = engine.open(make_call(), sink)
        await sink.full.wait()
        # The same time passes for an engine that is silent, next to it.
        other = await run(engine, RecordingSink())
        assert isinstance(other.error, TimedOut)
        assert not sink.over.is_set()
        fake.gate.set()
        sink.reopen()
        await sink.over.wait()
        await attempt.closed()
    assert sink.error is None and sink.text == "abcdefgh"


async def test_a_fault_of_the_gateway_itself_still_ends_the_attempt(serving: Serving) -> None:
    def broken() -> None:
        raise RuntimeError("sink")

    async with serving(pause_at=3) as (fake, engine):
        sink = RecordingSink(on_data=broken)
        attempt = engine.open(make_call(), sink)
        await sink.over.wait()
        await attempt.closed()
        assert isinstance(attempt.task.exception(), RuntimeError)  # type: ignore[attr-defined]
        await fake.peer_gone.wait()
    assert isinstance(sink.error, Malformed)
