"""Whole JSON answers."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import pytest

from engines.answer import edit_answer
from engines.contract import Kind, Timings, Usage
from engines.dialect import Dialect
from engines.errors import Faulted, Malformed, Refused
from tests.engines.recorded import calling, recorded

WHOLE: list[tuple[str, Kind, str, Usage, str | None]] = [
    ("vllm/chat", "chat", "tiny", Usage(18, 8), "length"),
    ("vllm/chat_n2", "chat", "tiny", Usage(18, 8), "length"),
    ("vllm/completions", "completions", "tiny", Usage(4, 6), "length"),
    ("vllm/tools_required", "chat", "tiny", Usage(18, 45), "tool_calls"),
    ("vllm/tools_named", "chat", "tiny", Usage(18, 45), "stop"),
    ("llamacpp/chat_nonstream", "chat", "smollm2-135m", Usage(42, 8, 0), "stop"),
    ("llamacpp/chat_n2", "chat", "smollm2-135m", Usage(33, 5, 25), "length"),
    ("llamacpp/completions_nonstream", "completions", "smollm2-135m", Usage(4, 12, 3), "length"),
    ("llamacpp/embeddings", "embeddings", "models/tiny.gguf", Usage(10), None),
]


@pytest.mark.parametrize(("name", "kind", "model", "usage", "finish"), WHOLE, ids=[row[0] for row in WHOLE])
def test_a_well_formed_answer_changes_in_its_model_name_alone(
    name: str, kind: Kind, model: str, usage: Usage, finish: str | None
) -> None:
    body = recorded(name).body
    named = "named" in name
    out, mark = edit_answer(calling(kind, model, named_tool=named), body, Dialect())
    assert out == body
    assert (mark.terminal, mark.finish, mark.events) == (True, finish, 1)
    assert mark.usage is not None
    assert (mark.usage.prompt_tokens, mark.usage.completion_tokens) == (usage.prompt_tokens, usage.completion_tokens)
    renamed, _ = edit_answer(calling(kind, "public", named_tool=named), body, Dialect())
    assert renamed == body.replace(b'"model":"%s"' % model.encode(), b'"model":"public"')


def test_llamacpps_own_timings_are_read() -> None:
    _, mark = edit_answer(calling("chat"), recorded("llamacpp/chat_nonstream").body, Dialect())
    assert mark.timings == Timings(prefill=pytest.approx(0.903346), decode=pytest.approx(0.329516))
    assert mark.usage is not None and mark.usage.cached_tokens == 0


def test_an_answer_without_id_gets_one_and_tool_calls_their_finish() -> None:
    out, mark = edit_answer(calling("chat"), recorded("tgi/tools").body, Dialect())
    decoded = msgspec.json.decode(out)
    assert decoded["id"] == "chatcmpl-call1" and decoded["model"] == "public"
    assert decoded["choices"][0]["finish_reason"] == mark.finish == "tool_calls"
    assert mark.usage == Usage(50, 9)
    out, _ = edit_answer(calling("completions"), b'{"choices":[{"text":"x","finish_reason":"stop"}]}', Dialect())
    assert msgspec.json.decode(out)["id"] == "cmpl-call1"


def test_embeddings_of_several_megabytes_are_not_decoded() -> None:
    vector = b"[" + b",".join([b"0.123456789"] * 4096) + b"]"
    items = b",".join(b'{"object":"embedding","index":%d,"embedding":%s}' % (i, vector) for i in range(100))
    body = b'{"object":"list","data":[' + items + b'],"model":"m","usage":{"prompt_tokens":5,"total_tokens":5}}'
    tracemalloc.start()
    try:
        out, mark = edit_answer(calling("embeddings"), body, Dialect())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert out == body.replace(b'"model":"m"', b'"model":"public"')
    assert mark.usage == Usage(5)
    assert peak < 3 * len(body)


BROKEN: list[Any] = [
    b"",
    b"<html><body>ok</body></html>",
    b"null",
    b"[]",
    b'"text"',
    b'{"choices":[]}',
    b'{"choices":null}',
    b'{"id":"x"}',
    b'{"choices":[{"message":{"content":"x"}',
    b'{"choices":[{"index":0,"message":"x","finish_reason":"stop"}]}',
    b"\x1f\x8b\x08",
]


@pytest.mark.parametrize("body", BROKEN)
def test_b42_a_200_that_is_no_answer_is_malformed(body: bytes) -> None:
    with pytest.raises(Malformed):
        edit_answer(calling("chat"), body, Dialect())
    with pytest.raises(Malformed):
        edit_answer(calling("embeddings"), body, Dialect())


def test_b05_an_error_in_a_200_is_an_error() -> None:
    for kind in ("chat", "completions", "embeddings"):
        with pytest.raises(Refused, match="bad value"):
            edit_answer(calling(kind), b'{"error":{"message":"bad value","code":400}}', Dialect())
    with pytest.raises(Faulted):
        edit_answer(calling("chat"), b'{"error":"generate expects model to produce exactly 1 response"}', Dialect())
