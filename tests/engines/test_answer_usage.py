"""Streams on their way to the client: ids, usage and timings."""

from __future__ import annotations

import msgspec
import pytest

from engines.contract import Call, Timings, Usage
from tests.engines.recorded import (
    calling,
    chunks,
    edit,
    event,
    stream_through,
    usage_of,
)

CHAT = calling("chat", stream=True)
ASKED = calling("chat", stream=True, include_usage=True)
TEXT = calling("completions", stream=True)


@pytest.mark.parametrize(
    ("name", "call", "expected"),
    [
        ("tgi/chat_stream", CHAT, "chatcmpl-call1"),
        ("tgi/completions_stream", TEXT, "cmpl-call1"),
        ("tensorrt_llm/chat_stream_new_ids", CHAT, "chatcmpl-7"),
        ("tensorrt_llm/chat_stream", CHAT, "chatcmpl-7"),
        ("llamacpp/completions_stream", TEXT, "chatcmpl-1W31uPkgPz7jdawecF7oY5qPcWn6kSUC"),
    ],
)
def test_b12_a_stream_has_one_id(name: str, call: Call, expected: str) -> None:
    for asked in (call, msgspec.structs.replace(call, include_usage=True)):
        events = chunks(stream_through(name, asked)[0])
        assert {item["id"] for item in events[:-1]} == {expected}


def test_b12_the_id_is_made_one_where_the_model_name_needs_no_change() -> None:
    events = chunks(stream_through("tgi/chat_stream", calling("chat", "m/Llama", stream=True))[0])
    assert {item["id"] for item in events[:-1]} == {"chatcmpl-call1"}


# Usage


ENGINES = [
    ("vllm/chat_stream_usage", CHAT, Usage(18, 8)),
    ("vllm/completions_stream", TEXT, Usage(4, 6)),
    ("llamacpp/chat_stream_usage", CHAT, Usage(34, 8, 33)),
    ("llamacpp/completions_stream", TEXT, Usage(4, 6, 3)),
    ("tgi/chat_stream", CHAT, Usage(3, 3)),
    ("tgi/completions_stream", TEXT, Usage(4, 4)),
    ("tgi/completions_two_prompts_stream", msgspec.structs.replace(TEXT, sequences=2), Usage(11, 4)),
    ("tensorrt_llm/chat_stream", CHAT, Usage(5, 2, 4)),
    ("tensorrt_llm/completions_stream", TEXT, Usage(5, 2)),
]


@pytest.mark.parametrize(("name", "call", "usage"), ENGINES, ids=[row[0] for row in ENGINES])
def test_b08_without_the_option_no_usage_is_seen_and_yet_counted(name: str, call: Call, usage: Usage) -> None:
    out, marks = stream_through(name, call)
    events = chunks(out)
    assert all(item["choices"] for item in events[:-1])
    assert not any(item.get("usage") for item in events[:-1])
    assert usage_of(marks) == usage
    assert sum(mark.events for mark in marks) == len(events)


@pytest.mark.parametrize(("name", "call", "usage"), ENGINES, ids=[row[0] for row in ENGINES])
def test_b08_with_the_option_usage_is_seen_once_just_before_the_end(name: str, call: Call, usage: Usage) -> None:
    out, marks = stream_through(name, msgspec.structs.replace(call, include_usage=True))
    *before, last, done = chunks(out)
    assert done == "[DONE]"
    assert last["choices"] == [] and last["model"] == "public"
    assert last["usage"]["prompt_tokens"] == usage.prompt_tokens
    assert last["usage"]["completion_tokens"] == usage.completion_tokens
    assert last["usage"]["total_tokens"] == (usage.prompt_tokens or 0) + (usage.completion_tokens or 0)
    assert all(item["choices"] and not item.get("usage") for item in before)
    assert usage_of(marks) == usage
    assert sum(mark.events for mark in marks) == len(before) + 2


def test_b08_a_usage_chunk_that_lacks_choices_is_given_empty_ones() -> None:
    bare = b'{"id":"chatcmpl-1","object":"chat.completion.chunk","usage":{"prompt_tokens":3,"completion_tokens":5}}'
    payloads = (event({"content": "a"}, "stop"), bare, b"[DONE]")
    events, marks = edit(ASKED, *payloads)
    assert events[1]["choices"] == [] and events[1]["usage"]["completion_tokens"] == 5
    events, marks = edit(CHAT, *payloads)
    assert len(events) == 2 and usage_of(marks) == Usage(3, 5)


def test_b08_usage_that_comes_early_still_goes_out_last() -> None:
    usage = event({}, choices=[], usage={"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8})
    events, _ = edit(ASKED, usage, event({"content": "a"}), event({}, "stop"), b"[DONE]")
    assert [bool(item.get("usage")) for item in events[:-1]] == [False, False, True]


def test_b08_chunks_without_choices_and_without_usage_do_not_reach_the_client() -> None:
    odd = (b'{"id":"chatcmpl-1"}', event({}, choices=[]))
    events, _ = edit(ASKED, *odd, event({"content": "a"}, "stop"), b"[DONE]")
    assert len(events) == 2


def test_usage_with_every_chunk_that_nobody_asked_for_is_taken_out() -> None:
    out, marks = stream_through("vllm/chat_stream_usage_continuous", CHAT)
    assert b"usage" not in out
    assert usage_of(marks) == Usage(18, 4)


def test_several_choices_of_one_prompt_count_the_prompt_once() -> None:
    call = calling("completions", body={"n": 2}, stream=True, include_usage=True, sequences=4)
    payloads = [
        event({}, "stop", index, usage={"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12})
        for index in range(4)
    ]
    _, marks = edit(call, *payloads, b"[DONE]")
    assert usage_of(marks) == Usage(20, 8)


def test_the_counts_of_cached_and_reasoning_tokens_are_read() -> None:
    usage = {
        "prompt_tokens": 3,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 4},
    }
    _, marks = edit(CHAT, event({}, "stop"), event({}, choices=[], usage=usage), b"[DONE]")
    assert usage_of(marks) == Usage(3, 5, 2, 4)


def test_llamacpps_own_timings_are_read_in_seconds() -> None:
    for name in ("llamacpp/chat_stream", "llamacpp/chat_stream_usage", "llamacpp/completions_stream"):
        call = TEXT if "completions" in name else CHAT
        timings = [mark.timings for mark in stream_through(name, call)[1] if mark.timings]
        assert len(timings) == 1 and isinstance(timings[0], Timings)
        assert 0 < (timings[0].prefill or 0) < 10 and 0 < (timings[0].decode or 0) < 10
