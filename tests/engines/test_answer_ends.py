"""Streams on their way to the client: what counts as a token, errors and ends."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engines.answer import StreamEditor
from engines.contract import Usage
from engines.dialect import Dialect
from engines.errors import ContextTooLong, Faulted, Lost, Malformed, Overloaded, Refused
from engines.sse import Framer
from tests.engines.recorded import (
    calling,
    chunks,
    edit,
    event,
    feed_all,
    recorded,
    stream,
    stream_through,
    usage_of,
)

CHAT = calling("chat", stream=True)
ASKED = calling("chat", stream=True, include_usage=True)
TEXT = calling("completions", stream=True)
TEXT_ASKED = calling("completions", stream=True, include_usage=True)


@pytest.mark.parametrize(
    ("delta", "token"),
    [
        ({"role": "assistant"}, False),
        ({"role": "assistant", "content": ""}, False),
        ({"role": "assistant", "content": None}, False),
        ({"content": ""}, False),
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
