"""The embedded engine's answers, through its real worker process around a scripted model."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from engines import build
from engines.embedded import Embedded, Options
from engines.errors import ContextTooLong, Faulted, Refused, Unsupported
from tests.engines.embedded_house import House, calling, house, prompt
from tests.engines.harness import PUBLIC, RecordingSink
from tests.engines.test_contract import HARD

SAID = 'The "quick" brown 🦊 jumps'


@pytest.mark.parametrize("kind", ["chat", "completions"])
async def test_b01_characters_split_over_tokens_arrive_whole(tmp_path: Path, kind: str) -> None:
    async with house(tmp_path) as here:
        sink = await here.ask(prompt(HARD), kind=kind)
    assert sink.error is None
    assert sink.text == HARD
    assert "\ufffd" not in sink.body.decode()


@pytest.mark.parametrize("kind", ["chat", "completions"])
async def test_a_stream_has_one_head_one_id_the_public_name_and_ends_with_done(tmp_path: Path, kind: str) -> None:
    async with house(tmp_path) as here:
        sink = await here.ask(SAID, kind=kind)
    assert sink.heads == [(200, (("content-type", "text/event-stream"),))]
    assert sink.payloads[-1] == b"[DONE]" and sink.payloads.count(b"[DONE]") == 1
    assert {chunk["model"] for chunk in sink.chunks} == {PUBLIC}
    assert len({chunk["id"] for chunk in sink.chunks}) == 1 and sink.chunks[0]["id"]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in sink.chunks]
    assert [reason for reason in reasons if reason] == ["stop"] and reasons[-1] == "stop"
    assert {chunk["object"] for chunk in sink.chunks} == {
        "chat.completion.chunk" if kind == "chat" else "text_completion"
    }
    if kind == "chat":
        assert sink.chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize("kind", ["chat", "completions"])
async def test_marks_say_what_blocks_mean(tmp_path: Path, kind: str) -> None:
    async with house(tmp_path) as here:
        sink = await here.ask("abc", kind=kind)
    assert sum(mark.token for mark in sink.marks) == 3
    assert [mark.finish for mark in sink.marks if mark.finish] == ["stop"]
    assert sink.marks[-1].terminal
    assert not any(mark.derived or mark.error for mark in sink.marks)
    (timings,) = [mark.timings for mark in sink.marks if mark.timings]
    assert timings.prefill is not None and timings.decode is not None


@pytest.mark.parametrize("kind", ["chat", "completions"])
@pytest.mark.parametrize("asked", [True, False])
async def test_b08_the_usage_chunk_is_counted_always_and_shown_once_only_where_asked(
    tmp_path: Path, kind: str, asked: bool
) -> None:
    async with house(tmp_path) as here:
        sink = await here.ask("abc", kind=kind, include_usage=asked)
    counted = [mark.usage for mark in sink.marks if mark.usage is not None][-1]
    assert (counted.prompt_tokens, counted.completion_tokens) == (4, 4)
    empty = [chunk for chunk in sink.chunks if not chunk["choices"]]
    assert len(empty) == (1 if asked else 0)
    assert all(not chunk.get("usage") for chunk in sink.chunks if chunk["choices"])
    if asked:
        assert json.loads(sink.payloads[-2]) == empty[0]


@pytest.mark.parametrize("kind", ["chat", "completions"])
async def test_a_whole_answer_is_exact_and_carries_the_public_name(tmp_path: Path, kind: str) -> None:
    async with house(tmp_path) as here:
        sink = await here.ask(prompt(HARD), kind=kind, stream=False)
    assert sink.error is None and sink.heads == [(200, (("content-type", "application/json"),))]
    answer = json.loads(sink.body)
    choice = answer["choices"][0]
    assert (choice["message"]["content"] if kind == "chat" else choice["text"]) == HARD
    assert answer["model"] == PUBLIC and answer["id"] and choice["finish_reason"] == "stop"
    (mark,) = sink.marks
    assert mark.terminal and mark.finish == "stop" and mark.usage is not None
    assert mark.usage.completion_tokens == len(HARD.encode()) + 1


@pytest.mark.parametrize("stream", [True, False])
async def test_the_answer_ends_at_the_cap_with_length(tmp_path: Path, stream: bool) -> None:
    async with house(tmp_path) as here:
        sink = await here.ask("abcdef", max_tokens=3, stream=stream)
    assert sink.marks[-1 if not stream else -3].finish == "length" or sink.finish == "length"
    text = sink.text if stream else json.loads(sink.body)["choices"][0]["message"]["content"]
    assert text == "abc"


async def test_the_answer_ends_where_the_context_is_full(tmp_path: Path) -> None:
    async with house(tmp_path, context=64) as here:
        sink = await here.ask("x" * 40, include_usage=True)
    assert sink.finish == "length"
    assert sink.chunks[-1]["usage"]["total_tokens"] == 64


@pytest.mark.parametrize("stop", ["wn", ["never", "own f", "zzz"], "brown 🦊"])
async def test_a_stop_sequence_ends_the_answer_before_it(tmp_path: Path, stop: Any) -> None:
    async with house(tmp_path) as here:
        sink = await here.ask("the brown fox. the brown 🦊 jumps", stop=stop)
    text = "the brown fox. the brown 🦊 jumps"
    first = min(text.find(one) for one in ([stop] if isinstance(stop, str) else stop) if one in text)
    assert (sink.text, sink.finish) == (text[:first], "stop")


@pytest.mark.parametrize("stream", [True, False])
async def test_the_beginning_of_a_stop_sequence_is_shown_where_it_did_not_go_on(tmp_path: Path, stream: bool) -> None:
    async with house(tmp_path) as here:
        sink = await here.ask("abcab", stop="abd", stream=stream)
    text = sink.text if stream else json.loads(sink.body)["choices"][0]["message"]["content"]
    assert text == "abcab"


async def test_logprobs_stand_beside_the_text_of_their_tokens(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        streamed = await here.ask("né", logprobs=True, top_logprobs=2)
        whole = await here.ask("né", logprobs=True, stream=False)
        older = await here.ask("ab", kind="completions", logprobs=1, stream=False)
    entries = [
        entry for chunk in streamed.chunks for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert [entry["bytes"] for entry in entries] == [[byte] for byte in "né".encode()]
    assert [len(entry["top_logprobs"]) for entry in entries] == [2, 2, 2]
    content = json.loads(whole.body)["choices"][0]["logprobs"]["content"]
    assert [(entry["logprob"], entry["top_logprobs"]) for entry in content] == [(-0.5, [])] * 3
    assert json.loads(older.body)["choices"][0]["logprobs"] == {
        "tokens": ["a", "b"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"a": -0.5}, {"b": -0.5}],
        "text_offset": [0, 1],
    }


async def test_a_format_that_is_at_its_end_ends_the_answer(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        sink = await here.ask("abc", seed=7)
    assert (sink.error, sink.text, sink.finish) == (None, "", "stop")


async def test_the_next_turn_of_a_conversation_computes_only_what_is_new(tmp_path: Path) -> None:
    async with house(tmp_path, slots=2) as here:
        await here.ask("one two")
        await here.ask("entirely else")
        sink = await here.ask("one two three", include_usage=True)
    assert sink.chunks[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 7}
    assert sink.text == "one two three"


async def test_a_model_that_cannot_drop_parts_computes_all_anew(tmp_path: Path) -> None:
    async with house(tmp_path, "forgetful.gguf") as here:
        await here.ask("one two")
        sink = await here.ask("one two three", include_usage=True)
    assert sink.chunks[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert sink.text == "one two three"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs"),
        ({"kind": "completions", "echo": True}, "echo"),
        ({"kind": "completions", "suffix": "end"}, "suffix"),
        ({"kind": "completions", "best_of": 2}, "best_of"),
        ({"kind": "completions", "prompt": ["one", "two"]}, "prompt"),
        ({"kind": "completions", "prompt": [1, 99999]}, "prompt"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"65": 101}}, "logit_bias"),
        ({"top_k": 2**40}, "top_k"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"min_p": "much"}, "min_p"),
        ({"response_format": {"type": "regex"}}, "response_format"),
        ({"messages": [{"role": "nobody", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages"),
        ({"kind": "embeddings", "stream": False}, "model"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_with_the_fields_name(
    shared: House, fields: dict[str, Any], param: str
) -> None:
    sink = await shared.ask("abc", **fields)
    assert isinstance(sink.error, Refused), sink.error
    assert (sink.error.param, sink.error.status) == (param, 400)
    assert not sink.heads


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1, "tools": [], "user": "me", "parallel_tool_calls": True, "tool_choice": "none"},
        {"temperature": 0.5, "top_p": 1, "top_k": 10, "min_p": 0.1, "typical_p": 1, "seed": -3},
        {"frequency_penalty": 1, "presence_penalty": -1, "repetition_penalty": 1.1, "logit_bias": {"65": -100}},
        {"response_format": {"type": "text"}, "ignore_eos": True, "stop": []},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}},
        {"messages": [{"role": "developer", "content": "abc"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "abc"}]}]},
        {"messages": [{"role": "assistant", "content": None}, {"role": "user", "content": "abc"}]},
        {"kind": "completions", "prompt": [97, 98, 99, 0]},
        {"kind": "completions", "prompt": [[97, 98, 99, 0]]},
    ],
)
async def test_what_can_be_honoured_is_taken(shared: House, fields: dict[str, Any]) -> None:
    sink = await shared.ask("abc", **fields)
    assert (sink.error, sink.text) == (None, "abc")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_prompt_over_the_context_is_too_long_and_says_by_how_much(shared: House, stream: bool) -> None:
    sink = await shared.ask("x" * 5000, stream=stream)
    assert isinstance(sink.error, ContextTooLong)
    assert "4096 tokens" in sink.error.message and "5001" in sink.error.message


async def test_a_batch_that_fails_is_the_engines_fault_and_the_worker_serves_on(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        sink = await here.ask(prompt("abc", fail=2))
        after = await here.ask("abc")
        assert here.engine.supervisor.restarts == 0
    assert isinstance(sink.error, Faulted) and sink.text == "ab"
    assert after.text == "abc"


async def test_embeddings_are_served_by_a_model_that_makes_them(tmp_path: Path) -> None:
    async with house(tmp_path, embeddings=True) as here:
        sink = await here.ask("ab", kind="embeddings", stream=False)
        several = await here.ask(kind="embeddings", stream=False, input=["a", "bc"], encoding_format="base64")
        tokens = await here.ask(kind="embeddings", stream=False, input=[[1, 2], [3]])
        chat = await here.ask("abc")
        late = await here.ask("x" * 5000, kind="embeddings", stream=False)
    answer = json.loads(sink.body)
    assert answer["model"] == PUBLIC and answer["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    assert answer["data"] == [{"object": "embedding", "index": 0, "embedding": [1.0, 3.0]}]
    assert [one["embedding"] for one in json.loads(several.body)["data"]] == ["AACAPwAAAEA=", "AACAPwAAQEA="]
    assert [one["embedding"] for one in json.loads(tokens.body)["data"]] == [[1.0, 2.0], [1.0, 1.0]]
    assert isinstance(chat.error, Unsupported) and "embeddings only" in chat.error.message
    assert isinstance(late.error, ContextTooLong) and late.error.param == "input"


@pytest.mark.parametrize("slots", [1, 2, 5])
async def test_streams_side_by_side_do_not_mix(tmp_path: Path, slots: int) -> None:
    async with house(tmp_path, slots=slots, batch=32) as here:
        texts = [f"{number} {HARD} {number * 'x'}" for number in range(12)]
        sinks = [RecordingSink() for _ in texts]
        attempts = [here.engine.open(calling(prompt(text)), sink) for text, sink in zip(texts, sinks, strict=True)]
        await asyncio.gather(*(attempt.closed() for attempt in attempts))
    assert [sink.error for sink in sinks] == [None] * 12
    assert [sink.text for sink in sinks] == texts


async def test_two_slots_compute_two_streams_at_once(tmp_path: Path) -> None:
    async with house(tmp_path, slots=2) as here:
        held = RecordingSink(room=1)
        attempt = here.engine.open(calling("x" * 500), held)
        await held.full.wait()
        other = await here.ask("abc")  # while the first is under way
        assert other.text == "abc" and not held.over.is_set()
        held.reopen()
        await attempt.closed()
    assert held.text == "x" * 500


def test_it_is_built_by_its_name() -> None:
    engine = build("embedded", "emb-0", {"model": "m.gguf", "slots": 2})
    assert isinstance(engine, Embedded) and (engine.kind, engine.slots) == ("embedded", 2)
    with pytest.raises(ValueError, match="did you mean `context`"):
        build("embedded", "emb-0", {"model": "m.gguf", "contxt": 2})
    assert Options(model="m.gguf").slots == 1
