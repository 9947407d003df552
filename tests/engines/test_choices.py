"""Finish reasons and tool calls, in streams and in whole answers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engines.answer import StreamEditor, edit_answer
from engines.contract import Mark
from engines.dialect import Dialect
from engines.errors import Faulted
from tests.engines.recorded import calling, chunks, event, feed_all, stream, stream_through

CALLED = [{"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]


def streamed(*payloads: bytes, **call: Any) -> tuple[list[Any], list[Mark]]:
    editor = StreamEditor(calling("chat", stream=True, **call), Dialect())
    out, marks = feed_all(editor, stream(*payloads, b"[DONE]"))
    return chunks(out), marks


FINISHES = [
    ("stop", False, False, "stop"),
    ("length", False, False, "length"),
    ("eos_token", False, False, "stop"),
    ("stop_sequence", False, False, "stop"),
    ("repetition", False, False, "stop"),
    ("content_filter", False, False, "content_filter"),
    ("stop", True, False, "tool_calls"),
    ("eos_token", True, False, "tool_calls"),
    ("tool_calls", True, False, "tool_calls"),
    ("length", True, False, "length"),
    ("stop", True, True, "stop"),
    ("eos_token", True, True, "stop"),
]


@pytest.mark.parametrize(("given", "called", "named", "expected"), FINISHES)
def test_b20_finish_reasons_of_streams_are_openais(given: str, called: bool, named: bool, expected: str) -> None:
    first = event({"tool_calls": CALLED} if called else {"content": "x"})
    events, marks = streamed(first, event({}, given), named_tool=named)
    assert [item["choices"][0]["finish_reason"] for item in events[:-1]] == [None, expected]
    assert [mark.finish for mark in marks] == [None, expected, None]


@pytest.mark.parametrize(("given", "called", "named", "expected"), FINISHES)
def test_b20_finish_reasons_of_whole_answers_are_openais(given: str, called: bool, named: bool, expected: str) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": CALLED} if called else {"content": "x"}
    body = {"id": "x", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": given}]}
    out, mark = edit_answer(calling("chat", named_tool=named), msgspec.json.encode(body), Dialect())
    assert msgspec.json.decode(out)["choices"][0]["finish_reason"] == expected
    assert mark.finish == expected and mark.terminal


def test_b20_the_empty_finish_reason_of_running_chunks_becomes_null() -> None:
    call = calling("completions", stream=True)
    events = chunks(stream_through("tgi/completions_stream", call)[0])
    assert [item["choices"][0]["finish_reason"] for item in events[:-1]] == [None, None, None, "stop"]


def test_b20_every_choice_has_exactly_one_finish_reason() -> None:
    events, marks = streamed(event({"content": "x"}), event({}, "length"), event({}, "stop"), event({}, "stop"))
    assert [item["choices"][0]["finish_reason"] for item in events[:-1]] == [None, "length", None, None]
    assert [mark.finish for mark in marks if mark.finish] == ["length"]


@pytest.mark.parametrize("word", ["abort", "error", "timeout", "cancelled", "anything"])
def test_b20_a_finish_reason_that_means_failure_is_an_error(word: str) -> None:
    events, marks = streamed(event({"content": "x"}), event({}, word))
    assert type(marks[-1].error) is Faulted and "error" in events[-1] and len(events) == 2
    body = {"id": "x", "choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": word}]}
    with pytest.raises(Faulted):
        edit_answer(calling("chat"), msgspec.json.encode(body), Dialect())


def test_b20_tgis_tool_calls_end_with_tool_calls() -> None:
    events = chunks(stream_through("tgi/tools_stream", calling("chat", stream=True))[0])
    assert events[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert joined(events) == {(0, 0): '{"a":1}'}


def joined(events: list[Any]) -> dict[tuple[int, int], str]:
    """The arguments of each tool call as a client joins them, by (choice, index)."""
    calls: dict[tuple[int, int], str] = {}
    for item in events[:-1]:
        for choice in item["choices"]:
            for call in choice["delta"].get("tool_calls") or []:
                key = choice["index"], call["index"]
                calls[key] = calls.get(key, "") + (call["function"].get("arguments") or "")
    return calls


def call_delta(arguments: str, identity: str | None = None, index: int | None = None, choice: int = 0) -> bytes:
    item: dict[str, Any] = {"function": {"arguments": arguments}}
    if identity is not None:
        item["id"] = identity
    if index is not None:
        item["index"] = index
    return event({"tool_calls": [item]}, index=choice)


A, B = '{"path":"a"}', '{"path":"b"}'
MERGED: list[tuple[str, list[bytes]]] = [
    ("all index 0", [call_delta(A, "call_1", 0), call_delta(B, "call_2", 0)]),
    ("no index", [call_delta(A, "call_1"), call_delta(B, "call_2")]),
    ("no index, continued", [call_delta(A, "call_1"), call_delta(B[:5], "call_2"), call_delta(B[5:])]),
    ("all index 0, continued", [call_delta(A, "call_1", 0), call_delta(B[:5], "call_2", 0), call_delta(B[5:], "", 0)]),
    (
        "all index 0, many pieces",
        [
            call_delta("", "call_1", 0),
            *[call_delta(letter, None, 0) for letter in A],
            call_delta("", "call_2", 0),
            *[call_delta(letter, None, 0) for letter in B],
        ],
    ),
    (
        "no index, many pieces",
        [
            call_delta("", "call_1"),
            *[call_delta(letter) for letter in A],
            call_delta("", "call_2"),
            *[call_delta(letter) for letter in B],
        ],
    ),
    ("id in every delta", [call_delta(letter, "call_1", 0) for letter in A] + [call_delta(B, "call_2", 0)]),
    ("correct", [call_delta(A, "call_1", 0), call_delta(B, "call_2", 1)]),
    (
        "correct and interleaved",
        [
            call_delta(A[:5], "call_1", 0),
            call_delta(B[:5], "call_2", 1),
            call_delta(A[5:], None, 0),
            call_delta(B[5:], None, 1),
        ],
    ),
]


@pytest.mark.parametrize("deltas", [row[1] for row in MERGED], ids=[row[0] for row in MERGED])
def test_b17_parallel_tool_calls_have_indexes_of_their_own(deltas: list[bytes]) -> None:
    events, _ = streamed(*deltas, event({}, "tool_calls"))
    assert joined(events) == {(0, 0): A, (0, 1): B}
    ids = [call.get("id") for item in events[:-1] for call in item["choices"][0]["delta"].get("tool_calls") or []]
    assert [identity for identity in dict.fromkeys(ids) if identity] == ["call_1", "call_2"]


@pytest.mark.parametrize("again", [{"id": "call_1"}, {"id": ""}, {}], ids=["id", "empty id", "no id"])
def test_b17_an_id_and_a_name_go_out_once_for_clients_join_what_is_repeated(again: dict[str, str]) -> None:
    def delta(arguments: str, **start: str) -> bytes:
        return event({"tool_calls": [{"index": 0, **start, "function": {"name": "read", "arguments": arguments}}]})

    deltas = [delta(A[:3], id="call_1"), *(delta(letter, **again) for letter in A[3:])]
    events, _ = streamed(*deltas, event({}, "tool_calls"))
    calls = [call for item in events[:-1] for call in item["choices"][0]["delta"].get("tool_calls") or []]
    assert "".join(call.get("id", "") for call in calls) == "call_1"
    assert "".join(call["function"].get("name", "") for call in calls) == "read"
    assert joined(events) == {(0, 0): A}


def test_b17_indexes_are_kept_apart_by_choice() -> None:
    deltas = [call_delta(A, "call_1", 0), call_delta(B, "call_2", 0, choice=1)]
    ends = [event({}, "tool_calls"), event({}, "tool_calls", 1)]
    events, _ = streamed(*deltas, *ends, sequences=2)
    assert joined(events) == {(0, 0): A, (1, 0): B}


def test_b17_a_well_formed_stream_is_unchanged() -> None:
    deltas = [
        call_delta("{", "call_1", 0),
        *[call_delta("1", None, 0)] * 3,
        call_delta("{", "call_2", 1),
        *[call_delta("2", None, 1)] * 3,
        event({}, "tool_calls"),
        b"[DONE]",
    ]
    out, _ = feed_all(StreamEditor(calling("chat", model="m", stream=True), Dialect()), stream(*deltas))
    assert out == stream(*deltas)
