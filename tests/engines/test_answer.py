"""Streams on their way to the client: names, ids, usage, errors, ends. Whole answers are in `test_whole_answer`."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.answer import StreamEditor
from engines.contract import ORDINARY, Call, Mark, Timings, Usage
from engines.dialect import Dialect
from engines.errors import ContextTooLong, Faulted, Lost, Malformed, Overloaded, Refused
from engines.sse import Framer
from tests.engines.recorded import calling, chunks, feed_all, recorded, stream_through

CHAT = calling("chat", stream=True)
ASKED = calling("chat", stream=True, include_usage=True)
TEXT = calling("completions", stream=True)
TEXT_ASKED = calling("completions", stream=True, include_usage=True)


def event(delta: Any, finish: Any = None, index: int = 0, **more: Any) -> bytes:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    data = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return msgspec.json.encode({**data, **more})


def stream(*payloads: bytes) -> bytes:
    return b"".join(b"data: " + payload + b"\n\n" for payload in payloads)


def edit(call: Call, *payloads: bytes) -> tuple[list[Any], list[Mark]]:
    out, marks = feed_all(StreamEditor(call, Dialect()), stream(*payloads))
    return chunks(out), marks


def text_of(events: list[Any]) -> str:
    deltas = [choice for item in events[:-1] for choice in item["choices"]]
    return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in deltas)


def usage_of(marks: list[Mark]) -> Usage | None:
    known = [mark.usage for mark in marks if mark.usage is not None]
    return known[-1] if known else None


STREAMS: list[tuple[str, Call]] = [
    ("vllm/chat_stream", calling(model="tiny", stream=True)),
    ("vllm/chat_stream_n2", calling(model="tiny", stream=True, include_usage=True, sequences=2)),
    ("vllm/chat_stream_usage", calling(model="tiny", stream=True, include_usage=True)),
    (
        "vllm/chat_stream_usage_continuous",
        calling(
            model="tiny",
            stream=True,
            include_usage=True,
            body={"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        ),
    ),
    ("vllm/chat_stream_logprobs", calling(model="tiny", stream=True, body={"logprobs": True})),
    ("vllm/completions_stream", calling("completions", "tiny", stream=True, include_usage=True)),
    ("vllm/tools_required_stream", calling(model="tiny", stream=True)),
    ("vllm/tools_named_stream", calling(model="tiny", stream=True, named_tool=True)),
    ("llamacpp/chat_stream", calling(model="smollm2-135m", stream=True)),
    ("llamacpp/chat_stream_usage", calling(model="smollm2-135m", stream=True, include_usage=True)),
    ("llamacpp/chat_stream_logprobs", calling(model="smollm2-135m", stream=True)),
    ("llamacpp/chat_stream_timings", calling(model="smollm2-135m", stream=True, include_usage=True)),
    ("llamacpp/chat_n2_stream", calling(model="smollm2-135m", stream=True, sequences=2)),
]


@pytest.mark.parametrize(("name", "call"), STREAMS, ids=[name for name, _ in STREAMS])
def test_a_well_formed_stream_goes_through_byte_for_byte(name: str, call: Call) -> None:
    out, marks = stream_through(name, call)
    assert out.rstrip(b"\n") == recorded(name).body
    assert marks[-1].terminal


@pytest.mark.parametrize(("name", "call"), STREAMS, ids=[name for name, _ in STREAMS])
def test_the_model_name_is_all_that_changes_and_it_changes_in_every_chunk(name: str, call: Call) -> None:
    own = call.model
    out, _ = stream_through(name, msgspec.structs.replace(call, model='org/"public"'))
    expected = recorded(name).body.replace(b'"model":"%s"' % own.encode(), b'"model":"org/\\"public\\""')
    assert out.rstrip(b"\n") == expected


@pytest.mark.parametrize(("name", "call"), STREAMS, ids=[name for name, _ in STREAMS])
def test_the_marks_are_those_of_a_full_parse(name: str, call: Call) -> None:
    """The shortcut for ordinary chunks never says anything else than parsing each chunk would."""
    body = recorded(name).body + b"\n\n"
    _, quick = feed_all(StreamEditor(call, Dialect()), body)
    slow_editor = StreamEditor(call, Dialect())
    slow_editor._most_templates = 0
    _, slow = feed_all(slow_editor, body)
    assert quick == slow


def test_ordinary_chunks_share_one_mark_and_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    payloads = Framer().feed(recorded("vllm/chat_stream").body + b"\n\n")
    editor = StreamEditor(calling(model="tiny", stream=True), Dialect())
    for payload in payloads[:2]:
        editor.feed(payload)

    def parsed(payload: bytes) -> None:
        raise AssertionError(payload)

    monkeypatch.setattr(editor, "_read", parsed)
    for payload in payloads[2:8]:
        block, mark = editor.feed(payload) or (b"", None)
        assert mark is ORDINARY and block == b"data: " + payload + b"\n\n"


def test_the_model_name_inside_the_content_is_left_alone() -> None:
    said = 'the "model":"m" is m'
    events, _ = edit(CHAT, *[event({"content": said})] * 3, event({}, "stop"), b"[DONE]")
    assert text_of(events) == said * 3
    assert {item["model"] for item in events[:-1]} == {"public"}


@pytest.mark.parametrize("spacing", [(", ", ": "), (",", ":"), (" ,\t", " : ")])
def test_any_spacing_of_the_json_is_understood(spacing: tuple[str, str]) -> None:
    import json

    payloads = [
        json.dumps(msgspec.json.decode(payload), separators=spacing).encode()
        for payload in (event({"role": "assistant", "content": ""}), event({"content": "a"}), event({"content": "b"}))
    ]
    events, marks = edit(CHAT, *payloads, event({}, "stop"), b"[DONE]")
    assert text_of(events) == "ab"
    assert {item["model"] for item in events[:-1]} == {"public"}
    assert [mark.token for mark in marks] == [False, True, True, False, False]


def test_json_over_several_data_lines_becomes_one_line() -> None:
    pretty = b"data: {\ndata: " + event({"content": "a"})[1:] + b"\n\n"
    data = pretty * 3 + stream(event({}, "stop"), b"[DONE]")
    out, _ = feed_all(StreamEditor(CHAT, Dialect()), data)
    assert text_of(chunks(out)) == "aaa"


@given(st.lists(st.text(min_size=1), min_size=1, max_size=8), st.integers(1, 40))
def test_b01_any_text_in_any_pieces_arrives_as_it_was_generated(texts: list[str], size: int) -> None:
    data = stream(*[event({"content": text}) for text in texts], event({}, "stop"), b"[DONE]")
    framer, editor, out, tokens = Framer(), StreamEditor(CHAT, Dialect()), b"", 0
    for start in range(0, len(data), size):
        for payload in framer.feed(data[start : start + size]):
            block, mark = editor.feed(payload) or (b"", Mark())
            out += block
            tokens += mark.token
    assert text_of(chunks(out)) == "".join(texts)
    assert tokens == len(texts)


def test_b01_emoji_and_hangul_cut_at_every_byte_arrive_whole() -> None:
    said = "안녕 🦀 你好"
    data = stream(event({"content": said}), event({"content": said}), event({}, "stop"), b"[DONE]")
    for cut in range(len(data)):
        framer, editor = Framer(), StreamEditor(CHAT, Dialect())
        blocks = [editor.feed(payload) for piece in (data[:cut], data[cut:]) for payload in framer.feed(piece)]
        out = b"".join(block for block, _ in filter(None, blocks))
        assert text_of(chunks(out)) == said * 2 and "\ufffd" not in out.decode()


def test_a_broken_string_is_not_taken_for_ordinary() -> None:
    editor = StreamEditor(CHAT, Dialect())
    editor.feed(event({"content": "a"}))
    for bad in (b'x"y', b"x\\"):
        with pytest.raises(Malformed):
            editor.feed(event({"content": "@"}).replace(b"@", bad))


# Ids


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


# What is a token


@pytest.mark.parametrize(
    ("delta", "token"),
    [
        ({"role": "assistant"}, False),
        ({"role": "assistant", "content": ""}, False),
        ({"role": "assistant", "content": None}, False),
        ({"content": "", "reasoning_content": ""}, False),
        ({"tool_calls": []}, False),
        ({"content": "\n"}, True),
        ({"reasoning": "Okay"}, True),
        ({"reasoning_content": "Okay"}, True),
        ({"refusal": "No"}, True),
        ({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f"}}]}, True),
    ],
)
def test_b26_a_token_is_content_reasoning_refusal_or_tool_call_that_is_not_empty(delta: Any, token: bool) -> None:
    for warm in ([], [event({"content": "x"})], [event({"content": "x"}), event({"content": "y"})]):
        editor = StreamEditor(CHAT, Dialect())
        for payload in warm:
            editor.feed(payload)
        result = editor.feed(event(delta))
        assert result is not None and result[1].token is token


def test_b26_empty_texts_of_completions_are_no_tokens() -> None:
    _, marks = stream_through("llamacpp/completions_stream", TEXT)
    assert [mark.token for mark in marks] == [True] * 6 + [False] * 2


# Errors and ends


def test_b05_an_error_event_goes_out_in_openais_shape_and_ends_the_stream() -> None:
    out, marks = stream_through("vllm/engine_killed_midstream", CHAT)
    *_, last = chunks(out)
    assert last["error"].keys() == {"message", "type", "param", "code"}
    assert "EngineCore encountered an issue" in last["error"]["message"]
    assert last["error"]["code"] == "500"
    assert type(marks[-1].error) is Faulted and marks[-1].finish is None
    assert b"[DONE]" not in out and b'"finish_reason":"' not in out


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("tgi/stream_overloaded", Overloaded),
        ("tgi/stream_too_long", ContextTooLong),
        ("tgi/stream_invalid", Refused),
        ("tgi/stream_generation_failed", Faulted),
    ],
)
def test_b05_tgis_errors_in_a_200_are_told_apart_by_their_text(name: str, kind: type[Exception]) -> None:
    out, marks = stream_through(name, CHAT)
    assert type(marks[-1].error) is kind
    assert "error" in chunks(out)[-1]


@pytest.mark.parametrize(
    "said",
    [
        {"error": {"message": "queue full", "type": "overloaded", "code": 429}},
        {"error": "queue full"},
        {"object": "error", "message": "queue full", "type": "x", "param": None, "code": 429},
    ],
)
def test_b05_an_error_as_the_first_event_is_an_error_and_never_an_empty_success(said: Any) -> None:
    events, marks = edit(CHAT, msgspec.json.encode(said), b"[DONE]")
    assert len(events) == len(marks) == 1
    assert type(marks[0].error) is Overloaded and events[0]["error"]["message"] == "queue full"


def test_an_error_member_that_is_null_is_no_error() -> None:
    _, marks = edit(CHAT, event({"content": "a"}, error=None), event({}, "stop"), b"[DONE]")
    assert not any(mark.error for mark in marks)


def test_a_stream_that_ends_without_a_finish_is_lost_and_gets_none() -> None:
    for name, call in (("tensorrt_llm/chat_stream_broken", CHAT), ("vllm/chat_stream_n2", CHAT)):
        editor = StreamEditor(msgspec.structs.replace(call, sequences=2), Dialect())
        payloads = Framer().feed(recorded(name).body + b"\n\n")
        for payload in payloads[:6]:
            editor.feed(payload)
        with pytest.raises(Lost):
            editor.close()


def test_an_end_without_a_finish_is_no_success() -> None:
    for payloads in ([b"[DONE]"], [event({"content": "a"}), b"[DONE]"]):
        with pytest.raises(Malformed):
            edit(CHAT, *payloads)


def test_an_end_with_one_choice_unfinished_is_no_success() -> None:
    call = msgspec.structs.replace(CHAT, sequences=2)
    with pytest.raises(Malformed):
        edit(call, event({"content": "a"}, "stop"), event({"content": "b"}, None, 1), b"[DONE]")


def test_a_missing_end_is_added_once_every_choice_has_its_finish() -> None:
    usage = event({}, choices=[], usage={"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8})
    events, marks = edit(ASKED, event({"content": "a"}), event({}, "stop"), usage)
    assert events[-1] == "[DONE]" and events[-2]["usage"]["total_tokens"] == 8
    assert marks[-1].terminal and marks[-1].events == 2


def test_a_stream_is_at_its_end_when_its_last_choice_finished() -> None:
    call = msgspec.structs.replace(CHAT, sequences=2)
    _, marks = edit(call, event({"content": "a"}, "stop"), event({"content": "b"}, "length", 1), b"[DONE]")
    assert [(mark.finish, mark.terminal) for mark in marks] == [("stop", False), ("length", True), (None, True)]


def test_a_whole_completion_as_the_only_event_is_an_answer() -> None:
    whole = recorded("vllm/completions").body
    out, marks = feed_all(StreamEditor(TEXT_ASKED, Dialect()), stream(whole, b"[DONE]"))
    assert marks[0].token and marks[0].finish == "length" and usage_of(marks) == Usage(4, 6)
    assert len(chunks(out)) == 3


@pytest.mark.parametrize("payload", [b"<html>", b"[1]", b'"x"', b"", b'{"a":', b'{"choices":5}', b'{"choices":[1]}'])
def test_what_is_no_chunk_is_malformed(payload: bytes) -> None:
    with pytest.raises(Malformed):
        StreamEditor(CHAT, Dialect()).feed(payload)
