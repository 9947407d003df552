"""What is trtllm-serve's own way, against its fake, which is written from its contract."""

from __future__ import annotations

import pytest

from engines.errors import ContextTooLong, Lost, Refused
from tests.engines.harness import RecordingSink, run, serve
from tests.fakes.server import Peer, response


@pytest.mark.parametrize("kind", ["chat", "completions"])
@pytest.mark.parametrize("stream", [True, False])
async def test_fields_that_it_forbids_are_not_sent(kind: str, stream: bool) -> None:
    async with serve("tensorrt_llm", text="abc") as (fake, engine):
        sink = await run(
            engine, RecordingSink(), kind=kind, stream=stream, store=False, metadata={"a": "b"}, max_tokens=5
        )
    assert sink.error is None, sink.error.detail
    assert not {"store", "metadata"} & set(fake.requests[0].json)


@pytest.mark.parametrize("kind", ["chat", "completions"])
async def test_an_id_per_chunk_becomes_one_for_the_stream(kind: str) -> None:
    async with serve("tensorrt_llm", text="abcdef", piece=2) as (_, engine):
        sink = await run(engine, RecordingSink(), kind=kind)
    assert len({chunk["id"] for chunk in sink.chunks}) == 1


async def test_the_blank_before_the_first_events_line_end_is_no_harm() -> None:
    async with serve("tensorrt_llm", text="abc") as (fake, engine):
        assert fake.chat_events({})[0].endswith(b"} \n\n")
        sink = await run(engine, RecordingSink())
    assert sink.text == "abc" and sink.chunks[0]["choices"][0]["delta"]["role"] == "assistant"


async def test_a_failure_in_a_stream_comes_without_a_word_and_is_lost() -> None:
    async with serve("tensorrt_llm", text="abcdef", piece=2, error_at=3) as (_, engine):
        sink = await run(engine, RecordingSink())
    assert type(sink.error) is Lost and sink.finish is None and b"[DONE]" not in sink.body


@pytest.mark.parametrize(
    "text",
    [
        "`default_max_tokens` (-152) must be greater than 0, `default_max_tokens` (-152) = max_seq_len (8192)",
        "The sum of prompt length (9000.0), query length (0) should not exceed max_num_tokens (8192)",
    ],
)
async def test_a_prompt_that_does_not_fit_is_known_by_its_text(text: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.send(response(400, {"object": "error", "message": text, "type": "BadRequestError", "code": 400}))

    async with serve("tensorrt_llm") as (fake, engine):
        fake.script = script
        sink = await run(engine, RecordingSink())
    assert type(sink.error) is ContextTooLong


async def test_a_string_for_an_error_is_understood() -> None:
    async def script(peer: Peer) -> None:
        await peer.send(response(400, {"error": "1 validation error: Extra inputs are not permitted"}))

    async with serve("tensorrt_llm") as (fake, engine):
        fake.script = script
        sink = await run(engine, RecordingSink())
    assert type(sink.error) is Refused and "Extra inputs" in sink.error.message


async def test_usage_is_asked_for_in_so_many_words_because_its_default_differs() -> None:
    async with serve("tensorrt_llm") as (fake, engine):
        await run(engine, RecordingSink())
        assert fake.requests[0].json["stream_options"] == {"include_usage": True}
        await run(engine, RecordingSink(), stream=False)
        assert "stream_options" not in fake.requests[1].json
