"""The contract of every engine over HTTP, over a real socket: what goes wrong reaches `fail`, once, by its cause."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engines.errors import (
    ContextTooLong,
    EngineError,
    Faulted,
    Gone,
    Loading,
    Lost,
    Malformed,
    Misconfigured,
    Overloaded,
    Refused,
    TimedOut,
    Unreached,
)
from tests.engines.harness import RecordingSink, Serving, make_call, run
from tests.fakes.engine import FakeEngine
from tests.fakes.server import FakeServer, Peer, Script, chunked, response

HTML = b"<html><head><title>502 Bad Gateway</title></head><body>nginx sk-canary</body></html>"


def _answering(data: bytes, *, close: bool = False) -> Script:
    async def script(peer: Peer) -> None:
        await peer.send(data)
        if close:
            peer.close()

    return script


def _streaming(fake: FakeEngine, *parts: bytes) -> Script:
    return _answering(fake.sse_head + b"".join(chunked(part) for part in parts) + chunked(b""))


async def _failing(serving: Serving, script: Script | None, **call: Any) -> RecordingSink:
    async with serving() as (fake, engine):
        fake.script = script
        return await run(engine, RecordingSink(), **call)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_prompt_that_does_not_fit_is_context_too_long(serving: Serving, stream: bool) -> None:
    async with serving() as (fake, engine):
        fake.script = _answering(fake.too_long())
        sink = await run(engine, RecordingSink(), stream=stream)
    assert isinstance(sink.error, ContextTooLong) and sink.error.status == 400
    assert not sink.heads and not sink.blocks


@pytest.mark.parametrize(
    ("answer", "error", "status"),
    [
        (response(401, {"error": "Unauthorized"}), Misconfigured, None),
        (response(403, b"", "text/plain"), Misconfigured, None),
        (response(404, {"detail": "Not Found"}), Misconfigured, None),
        (response(400, {"error": {"message": "bad", "type": "BadRequestError", "code": 400}}), Refused, 400),
        (response(429, {"error": {"message": "full"}}), Overloaded, 429),
        (response(503, {"error": {"message": "Loading model", "type": "unavailable_error"}}), Loading, 503),
        (response(500, {"error": {"message": "broke", "code": 500}}), Faulted, 500),
        (response(502, HTML, "text/html"), Faulted, 502),
        (response(503, ["a", "list"]), Overloaded, 503),
        (response(503, b'"a string"'), Overloaded, 503),
        (response(500, b"", "text/plain"), Faulted, 500),
        (response(200, HTML, "text/html"), Malformed, None),
        (response(200, b"", "application/json"), Malformed, None),
        (response(200, b"", "text/event-stream"), Lost, None),
        (response(200, b"data: [DONE]\n\n", "text/event-stream"), Malformed, None),
        (response(200, b"\x1f\x8b\x08\x00\x00", headers="content-encoding: gzip\r\n"), Malformed, None),
        (response(200, b'{"choices":', "application/json"), Malformed, None),
        (response(204), Malformed, None),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", Malformed, None),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_b42_whatever_is_no_answer_is_classified(
    serving: Serving, answer: bytes, error: type[EngineError], status: int | None, stream: bool
) -> None:
    sink = await _failing(serving, _answering(answer), stream=stream)
    if not stream and b"text/event-stream" in answer:
        error = Malformed
    assert type(sink.error) is error, sink.error
    assert status is None or sink.error.status == status
    assert not sink.blocks
    assert "canary" not in sink.error.message and "<" not in sink.error.message


async def test_a_stream_is_no_whole_answer_and_a_whole_answer_no_stream(serving: Serving) -> None:
    async with serving() as (fake, engine):
        whole = json.dumps(fake.chat_answer({})).encode()
        fake.script = _answering(response(200, whole))
        sink = await run(engine, RecordingSink())
        assert isinstance(sink.error, Malformed) and not sink.heads
        fake.script = _streaming(fake, *fake.chat_events({}))
        sink = await run(engine, RecordingSink(), stream=False)
        assert isinstance(sink.error, Malformed) and not sink.heads


async def test_b05_an_error_with_status_200_is_the_error_that_it_says(serving: Serving) -> None:
    body = {"error": {"message": "queue full", "type": "overloaded", "code": 429}}
    sink = await _failing(serving, _answering(response(200, body)))
    assert isinstance(sink.error, Overloaded)


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


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ("retry-after: 30\r\n", 30),
        ("retry-after: 0\r\n", 0),
        (
            "date: Mon, 30 Nov 2026 19:12:55 GMT\r\nretry-after: Mon, 30 Nov 2026 19:13:25 GMT\r\n",
            30,
        ),
        ("date: Mon, 30 Nov 2026 19:12:55 GMT\r\nretry-after: Mon, 30 Nov 2026 19:12:25 GMT\r\n", 0),
        ("retry-after: soon\r\n", None),
        ("retry-after: -5\r\n", None),
        ("", None),
    ],
)
async def test_b13_retry_after_is_passed_on_in_seconds(serving: Serving, headers: str, seconds: float | None) -> None:
    sink = await _failing(serving, _answering(response(429, {"error": {"message": "full"}}, headers=headers)))
    assert isinstance(sink.error, Overloaded) and sink.error.retry_after == seconds


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_b35_a_redirect_is_misconfigured_and_goes_nowhere(serving: Serving, status: int) -> None:
    async with FakeServer() as elsewhere:
        answer = response(status, b"", headers=f"location: {elsewhere.url}/v1/chat/completions\r\n")
        sink = await _failing(serving, _answering(answer))
        assert isinstance(sink.error, Misconfigured)
        assert elsewhere.accepted == 0


async def test_a_parameter_that_the_engine_cannot_honour_is_refused_before_anything_is_sent(serving: Serving) -> None:
    async with serving() as (fake, engine):
        refused = {
            "vllm": ("guided_json", {"type": "object"}),
            "tgi": ("n", 2),
            "llamacpp": ("suffix", "end"),
            "tensorrt_llm": ("suffix", "end"),
        }
        name, value = refused[fake.kind]
        kind = "completions" if name == "suffix" else "chat"
        sink = await run(engine, RecordingSink(), kind=kind, **{name: value})
        assert isinstance(sink.error, Refused) and sink.error.param == name
        assert fake.accepted == 0


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
