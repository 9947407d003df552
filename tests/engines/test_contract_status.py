"""The contract of every engine over HTTP, over a real socket: what a status or a body says is its error."""

from __future__ import annotations

from typing import Any

import pytest

from engines.errors import (
    ContextTooLong,
    EngineError,
    Faulted,
    Loading,
    Lost,
    Malformed,
    Misconfigured,
    Overloaded,
    Refused,
)
from tests.engines.harness import RecordingSink, Serving, run
from tests.fakes.server import FakeServer, Peer, Script, response

HTML = b"<html><head><title>502 Bad Gateway</title></head><body>nginx sk-canary</body></html>"


def _answering(data: bytes) -> Script:
    async def script(peer: Peer) -> None:
        await peer.send(data)

    return script


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


async def test_b05_an_error_with_status_200_is_the_error_that_it_says(serving: Serving) -> None:
    body = {"error": {"message": "queue full", "type": "overloaded", "code": 429}}
    sink = await _failing(serving, _answering(response(200, body)))
    assert isinstance(sink.error, Overloaded)


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
