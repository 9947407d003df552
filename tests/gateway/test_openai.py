"""Body bytes -> Call and Ask."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.contract import Call, Kind
from gateway import openai
from gateway.errors import BadRequest
from gateway.fields import CHECKS
from router import Slo

BASE: dict[str, dict[str, Any]] = {
    "chat": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    "completions": {"model": "m", "prompt": "hi"},
    "embeddings": {"model": "m", "input": "hi"},
}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {}}}


def read(kind: Kind = "chat", body: Any = None, **fields: Any) -> Call:
    data = body if isinstance(body, bytes) else json.dumps({**BASE[kind], **fields}).encode()
    return openai.read(kind, data, request_id="r", call_id="c")


def refused(kind: Kind = "chat", body: Any = None, **fields: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        read(kind, body, **fields)
    return caught.value


def test_members_stay_raw_in_order_and_only_what_is_null_is_dropped() -> None:
    call = read(
        body=b'{"model" : "m","messages":[ {"role":"user","content":null} ],"temperature":null,"seed":0,"zzz":false,'
        b'"logit_bias":{},"stop":[ ],"user":""}'
    )
    assert {name: bytes(raw) for name, raw in call.fields.items()} == {
        "model": b'"m"',
        "messages": b'[ {"role":"user","content":null} ]',
        "seed": b"0",
        "zzz": b"false",
        "logit_bias": b"{}",
        "stop": b"[ ]",
        "user": b'""',
    }
    assert next(iter(call.fields)) == "model"


@pytest.mark.parametrize("name", sorted(set(CHECKS["chat"]) | {"zzz", "api_base"}))
def test_b21_a_null_means_default_for_every_field(name: str) -> None:
    fields: dict[str, Any] = {name: None}
    assert name not in read(**fields).fields


WRONG: list[tuple[Kind, str, Any]] = [
    ("chat", "model", 5), ("chat", "model", ""), ("chat", "model", None), ("chat", "model", ["m"]),
    ("chat", "messages", None), ("chat", "messages", []), ("chat", "messages", "hi"), ("chat", "messages", ["hi"]),
    ("chat", "messages", [{"content": "hi"}]), ("chat", "messages", [{"role": 1, "content": "hi"}]),
    ("chat", "messages", {"role": "user"}), ("chat", "messages", [[]]), ("chat", "messages", [None]),
    ("completions", "prompt", None), ("completions", "prompt", {}), ("completions", "prompt", 5),
    ("completions", "prompt", []), ("completions", "prompt", ["a", 1]), ("completions", "prompt", [[]]),
    ("completions", "prompt", [1.5]), ("completions", "prompt", [["a"]]),
    ("embeddings", "input", None), ("embeddings", "input", ""), ("embeddings", "input", []),
    ("embeddings", "input", {}), ("embeddings", "input", [[]]), ("embeddings", "stream", True),
    ("embeddings", "dimensions", 0),
    ("chat", "stream", "true"), ("chat", "stream", 1), ("chat", "stream_options", {"include_usage": True}),
    ("chat", "max_tokens", 0), ("chat", "max_tokens", -1), ("chat", "max_tokens", "5"), ("chat", "max_tokens", 1.5),
    ("chat", "max_tokens", True),
    ("chat", "max_tokens", 2**31), ("completions", "max_tokens", 10**400), ("chat", "max_completion_tokens", 0),
    ("completions", "max_tokens", 0),
    ("chat", "n", 0), ("chat", "n", 129), ("chat", "n", "1"),
    ("chat", "temperature", -0.1), ("chat", "temperature", 2.1), ("chat", "temperature", "1"),
    ("chat", "temperature", True), ("chat", "top_p", 1.1), ("chat", "top_p", -1), ("chat", "presence_penalty", 2.5),
    ("chat", "frequency_penalty", -3), ("chat", "seed", 1.5), ("chat", "seed", 2**63),
    ("chat", "stop", 5), ("chat", "stop", [5]), ("chat", "logit_bias", []), ("chat", "logit_bias", {"1": "x"}),
    ("chat", "logprobs", 5), ("chat", "top_logprobs", 21), ("chat", "top_logprobs", -1), ("chat", "top_logprobs", 5),
    ("completions", "logprobs", True), ("completions", "logprobs", 21), ("completions", "echo", "yes"),
    ("completions", "suffix", 5), ("chat", "tools", []), ("chat", "tools", {}), ("chat", "tools", ["x"]),
    ("chat", "tools", [{}]), ("chat", "tool_choice", "required"), ("chat", "tool_choice", "sometimes"),
    ("chat", "tool_choice", 5), ("chat", "tool_choice", FUNCTION), ("chat", "response_format", "json_object"),
    ("chat", "response_format", {}), ("chat", "user", 5), ("chat", "api_base", "http://x"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "value"), WRONG, ids=[f"{k}-{n}-{json.dumps(v)[:30]}" for k, n, v in WRONG])
def test_a_wrong_value_is_refused_with_its_name(kind: Kind, name: str, value: Any) -> None:
    exc = refused(kind, **{name: value})
    assert exc.param == name
    assert f"`{name}" in exc.message
    assert exc.message.endswith(".")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function"}}, "tool_choice.function.name"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "user", "content": ["x"]}]}, "messages[1].content"),
    ],
)
def test_a_fault_deeper_in_is_named_where_it_is(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields).param == param


RIGHT: list[tuple[Kind, dict[str, Any]]] = [
    ("chat", {"temperature": 0}), ("chat", {"temperature": 2}), ("chat", {"top_p": 0}), ("chat", {"n": 128}),
    ("chat", {"stop": ["a"] * 9}), ("chat", {"stop": "a"}), ("chat", {"logprobs": True, "top_logprobs": 20}),
    ("chat", {"top_logprobs": 0}), ("chat", {"tool_choice": "none"}), ("chat", {"tool_choice": "auto"}),
    ("chat", {"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}),
    ("chat", {"response_format": {"type": "text"}}), ("chat", {"response_format": {"type": "structural_tag"}}),
    ("chat", {"min_p": 0.1, "guided_json": {"a": 1}, "chat_template_kwargs": {}}),
    ("chat", {"messages": [{"role": "assistant", "tool_calls": [{"id": "c"}]}]}),
    ("completions", {"prompt": ""}), ("completions", {"logprobs": 0}), ("embeddings", {"stream": False}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "fields"), RIGHT, ids=[f"{k}-{json.dumps(f)[:40]}" for k, f in RIGHT])
def test_what_openai_or_an_engine_allows_passes(kind: Kind, fields: dict[str, Any]) -> None:
    assert read(kind, **fields).fields.keys() >= fields.keys()


@pytest.mark.parametrize(
    ("kind", "fields", "features"),
    [
        ("chat", {}, set()),
        ("chat", {"n": 1, "logit_bias": {}, "logprobs": False, "response_format": {"type": "text"}}, set()),
        ("chat", {"tools": [FUNCTION]}, {"tools"}),
        ("chat", {"tools": [FUNCTION], "tool_choice": "none"}, {"tools"}),
        ("chat", {"tools": [FUNCTION], "tool_choice": "required"}, {"tools", "tool_choice"}),
        ("chat", {"tools": [FUNCTION], "tool_choice": FUNCTION}, {"tools", "tool_choice"}),
        ("chat", {"response_format": {"type": "json_object"}}, {"json_object"}),
        ("chat", {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, {"json_schema"}),
        ("chat", {"logprobs": True}, {"logprobs"}),
        ("completions", {"logprobs": 0}, {"logprobs"}),
        ("chat", {"n": 2}, {"n"}),
        ("chat", {"logit_bias": {"5": 1}}, {"logit_bias"}),
        ("completions", {"echo": True, "suffix": "x"}, {"echo", "suffix"}),
        ("completions", {"echo": False, "suffix": ""}, set()),
        ("completions", {"prompt": [1, 2, 3]}, {"token_prompt"}),
        ("embeddings", {"input": [[1, 2], [3]]}, {"token_prompt"}),
        ("chat", {"modalities": ["text", "audio"]}, {"audio"}),
        ("chat", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, {"images"}),
        ("chat", {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, {"audio"}),
        ("chat", {"messages": [{"role": "user", "content": 'say {"type": "image_url"}'}]}, set()),
        ("chat", {"messages": [{"role": "user", "content": [{"type": "text", "text": "image_url"}]}]}, set()),
    ],
)
def test_features_are_what_the_request_needs_of_an_engine(
    kind: Kind, fields: dict[str, Any], features: set[str]
) -> None:
    assert read(kind, **fields).features == features


def test_b22_the_smaller_of_both_caps_counts() -> None:
    assert read().max_tokens is None
    assert read(max_completion_tokens=10).max_tokens == 10
    assert read(max_tokens=5, max_completion_tokens=10).max_tokens == 5
    assert read(max_tokens=50, max_completion_tokens=10).max_tokens == 10


def test_sequences_are_n_times_the_prompts() -> None:
    assert read(n=3).sequences == 3
    assert read("completions", prompt=["a", "b"], n=3).sequences == 6
    assert read("completions", prompt=[[1], [2], [3]]).sequences == 3
    assert read("completions", prompt=[1, 2, 3]).sequences == 1
    assert read("embeddings", input=["a", "b"]).sequences == 1


def test_usage_and_the_named_tool_are_read() -> None:
    assert read(stream=True, stream_options={"include_usage": True}).include_usage
    assert not read(stream=True, stream_options={}).include_usage
    assert not read(stream=True, stream_options={"include_usage": None}).include_usage
    assert read(tools=[FUNCTION], tool_choice=FUNCTION).named_tool
    assert not read(tools=[FUNCTION], tool_choice="required").named_tool


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","messages":' + b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"model":"m","messages":[{"role":"user","content":"\xed\xa0\x80"}]}',
        b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}',
        b"\xef\xbb\xbf" + json.dumps(BASE["chat"]).encode(),
        json.dumps(BASE["chat"]).encode() + b"x",
        b'{"model":NaN}',
    ],
)
def test_what_is_no_json_is_refused_and_never_raises_anything_else(body: bytes) -> None:
    assert refused(body=body).code in ("invalid_json", "invalid_utf8")


@given(st.binary() | st.recursive(st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(), st.lists).map(
    lambda value: json.dumps({**BASE["chat"], "messages": value, "tools": value, "tool_choice": value}).encode()
))  # fmt: skip
def test_any_bytes_at_all_give_a_call_or_a_bad_request(body: bytes) -> None:
    for kind in BASE:
        try:
            openai.read(kind, body, request_id="r", call_id="c")  # type: ignore[arg-type]
        except BadRequest as exc:
            assert exc.message


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("The quick brown fox jumps over the lazy dog. " * 1000, 9_000, 13_000),
        ("안녕하세요 세계 " * 1000, 5_000, 9_000),
        ("Съешь же ещё этих мягких французских булок. " * 1000, 9_000, 30_000),
        ("def f(x):\n    return x\n" * 1000, 5_000, 9_000),
    ],
)
def test_the_estimate_is_near_and_the_same_for_escaped_and_plain_json(text: str, low: int, high: int) -> None:
    counts = []
    for escape in (True, False):
        body = {**BASE["chat"], "messages": [{"role": "user", "content": text}]}
        counts.append(read(body=json.dumps(body, ensure_ascii=escape).encode()).prompt_tokens)
    assert low < counts[0] < high
    assert low < counts[1] < high
    assert abs(counts[0] - counts[1]) < 0.25 * counts[1]


def test_pictures_count_a_fixed_number_and_their_texts_as_they_are() -> None:
    def picture(size: int, text: str) -> int:
        parts = [{"type": "image_url", "image_url": {"url": "A" * size}}, {"type": "text", "text": text}]
        return read(messages=[{"role": "user", "content": parts}]).prompt_tokens

    assert abs(picture(4_000_000, "x") - picture(400, "x")) < 20
    assert picture(400, "word " * 1000) > picture(400, "x") + 1000
    assert read("completions", prompt=[[1] * 70, [2] * 30]).prompt_tokens == 100
    assert read(tools=[{**FUNCTION, "x": "y" * 4000}]).prompt_tokens > 1000


def test_an_ask_takes_its_wishes_from_headers_before_the_pool_each_by_itself() -> None:
    call = read(user="u", prompt_cache_key="k", stream=True)
    plain = openai.ask(call, {}, 5.0, Slo(ttft=1.0, tpot=0.1))
    assert (plain.id, plain.arrived, plain.stream, plain.kind) == ("c", 5.0, True, "generate")
    assert (plain.slo, plain.session, plain.priority) == (Slo(ttft=1.0, tpot=0.1), "k", 0)
    headers = {"x-slo-tpot-ms": "50", "x-enginehouse-session": "s", "x-enginehouse-priority": "-3"}
    asked = openai.ask(call, headers, 5.0, Slo(ttft=1.0, tpot=0.1))
    assert (asked.slo, asked.session, asked.priority) == (Slo(ttft=1.0, tpot=0.05), "s", -3)
    assert openai.ask(call, {"x-slo-ttft-ms": "250"}, 5.0).slo == Slo(ttft=0.25)
    assert openai.ask(read(user="u"), {}, 5.0).session == "u"
    assert openai.ask(read(), {}, 5.0).slo is None
    assert openai.ask(read("embeddings"), {}, 5.0).kind == "embed"


def test_b33_only_the_trace_context_is_taken_from_a_clients_headers() -> None:
    sent = {"authorization": "Bearer k", "cookie": "k", "traceparent": "00-1", "x-api-key": "k", "tracestate": "a=b"}
    assert openai.trace_context(sent) == (("traceparent", "00-1"), ("tracestate", "a=b"))
    assert openai.trace_context({"authorization": "Bearer k"}) == ()
