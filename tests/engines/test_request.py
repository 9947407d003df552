"""The outgoing body, by dialect."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engines.contract import Call
from engines.dialect import Dialect
from engines.dialects import LLAMACPP, TENSORRT_LLM, TGI, VLLM
from engines.errors import Refused, Unsupported
from engines.request import build_body
from tests.engines.recorded import calling

ALL = [VLLM, TGI, LLAMACPP, TENSORRT_LLM]
HELLO = [{"role": "user", "content": "hi"}]
F = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
G = {"type": "function", "function": {"name": "g"}}
NAMED_F = {"type": "function", "function": {"name": "f"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def sent(dialect: Dialect, call: Call) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(build_body(call, dialect, "engine-model"))
    return decoded


def chat(dialect: Dialect, stream: bool = False, call: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return sent(dialect, calling("chat", body={"messages": HELLO, **fields}, stream=stream, **(call or {})))


def completions(dialect: Dialect, stream: bool = False, **fields: Any) -> dict[str, Any]:
    return sent(dialect, calling("completions", body={"prompt": "hi", **fields}, stream=stream))


def refused_param(dialect: Dialect, kind: Any = "chat", **fields: Any) -> str | None:
    """The param with which these fields are refused, "" where they are not."""
    base: dict[str, Any] = {"messages": HELLO} if kind == "chat" else {"prompt": "hi"}
    try:
        build_body(calling(kind, body={**base, **fields}), dialect, "m")
    except Unsupported as error:
        assert error.status == 400 and dialect.engine in error.message
        return error.param
    return ""


@pytest.mark.parametrize("dialect", ALL, ids=lambda dialect: dialect.engine)
def test_the_clients_bytes_of_the_messages_go_out_as_they_came(dialect: Dialect) -> None:
    raw = b'[ {"role" :"user", "content":"\\u00e9 \xf0\x9f\xa6\x80 \\"x\\"" } ]'
    call = Call(id="c", request_id="r", kind="chat", model="public", fields={"messages": msgspec.Raw(raw)})
    assert raw in build_body(call, dialect, "m")


def test_the_engines_own_model_name_is_sent() -> None:
    assert chat(VLLM, model="public")["model"] == "engine-model"
    assert chat(TGI, model="public")["model"] == "tgi"


@pytest.mark.parametrize("dialect", ALL, ids=lambda dialect: dialect.engine)
def test_b21_no_null_goes_out_and_meaningful_falsy_values_do(dialect: Dialect) -> None:
    body = chat(dialect, temperature=0, seed=0, top_p=None, stop=None, frequency_penalty=0, stream=False)
    assert body["temperature"] == 0 and body["seed"] == 0 and body["frequency_penalty"] == 0
    assert None not in body.values()


HISTORY: list[dict[str, Any]] = [
    {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f"}}]},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c1"}]},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "c1"}]},
]


@pytest.mark.parametrize("message", HISTORY)
@pytest.mark.parametrize(
    ("dialect", "content"),
    [(VLLM, None), (TGI, ...), (Dialect(assistant_content="empty"), "")],
)
def test_b21_a_tool_calling_message_carries_the_content_that_the_engine_wants(
    dialect: Dialect, content: Any, message: dict[str, Any]
) -> None:
    (out,) = chat(dialect, messages=[message])["messages"]
    assert out.get("content", ...) == content
    assert out["tool_calls"] == message["tool_calls"]


def test_b21_other_messages_keep_their_content() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "assistant", "content": "text", "tool_calls": [{"id": "c1"}]},
        {"role": "assistant", "content": "", "tool_calls": []},
        {"role": "user", "content": ""},
        {"role": "tool", "tool_call_id": "c1", "content": ""},
    ]
    for dialect in ALL:
        assert chat(dialect, messages=messages)["messages"] == messages


@pytest.mark.parametrize("dialect", ALL, ids=lambda dialect: dialect.engine)
def test_b22_either_name_of_the_output_cap_becomes_the_one_that_the_engine_knows(dialect: Dialect) -> None:
    for fields in ({"max_completion_tokens": 10}, {"max_tokens": 10}, {"max_tokens": 99, "max_completion_tokens": 10}):
        body = chat(dialect, call={"max_tokens": 10}, **fields)
        assert body[dialect.max_tokens] == 10
        assert len({"max_tokens", "max_completion_tokens"} & body.keys()) == 1
    call = calling("completions", body={"prompt": "x", "max_tokens": 7}, max_tokens=7)
    assert sent(dialect, call)["max_tokens"] == 7


def test_b22_no_cap_is_invented() -> None:
    assert not {"max_tokens", "max_completion_tokens"} & chat(TENSORRT_LLM).keys()


def test_b22_the_engines_own_name_of_the_cap_cannot_override_it() -> None:
    assert refused_param(LLAMACPP, n_predict=5) == "n_predict"
    assert refused_param(LLAMACPP, n_predict=0) == "n_predict"


def test_b08_usage_is_asked_for_only_in_streams_and_where_the_engine_knows_it() -> None:
    for dialect in ALL:
        assert chat(dialect, stream=True)["stream_options"] == {"include_usage": True}
        plain = chat(dialect, stream_options={"include_usage": True})
        assert "stream_options" not in plain and "stream" not in plain
    assert completions(VLLM, stream=True)["stream_options"] == {"include_usage": True}
    tgi = completions(TGI, stream=True, stream_options={"include_usage": True})
    assert "stream_options" not in tgi and tgi["stream"] is True


def test_b08_usage_is_asked_for_even_where_the_client_said_no() -> None:
    body = chat(VLLM, stream=True, stream_options={"include_usage": False})
    assert body["stream_options"] == {"include_usage": True}


def test_usage_with_every_chunk_is_passed_on_only_to_a_client_that_sees_usage() -> None:
    both = {"include_usage": True, "continuous_usage_stats": True}
    seen = {"include_usage": True}
    assert chat(VLLM, True, {"include_usage": True}, stream_options=both)["stream_options"] == both
    hidden = {"include_usage": False, "continuous_usage_stats": True}
    assert chat(VLLM, True, stream_options=hidden)["stream_options"] == seen
    with pytest.raises(Unsupported) as caught:
        chat(LLAMACPP, True, {"include_usage": True}, stream_options=both)
    assert caught.value.param == "stream_options"


def test_fields_without_an_effect_on_the_answer_are_dropped() -> None:
    nothing = {"user": "u", "store": True, "metadata": {"a": "b"}, "service_tier": "auto", "prediction": {"x": 1}}
    for dialect in ALL:
        assert not nothing.keys() & chat(dialect, **nothing).keys()


def test_vllm_takes_everything_but_what_it_would_ignore_silently() -> None:
    extra = {"top_k": 5, "min_tokens": 0, "structured_outputs": {"json": SCHEMA}, "x_new": False, "logit_bias": {}}
    assert extra.items() <= chat(VLLM, **extra).items()
    assert refused_param(VLLM, guided_json=SCHEMA) == "guided_json"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"logit_bias": {}}, ""),
        ({"n": 2}, "n"),
        ({"n": 1}, ""),
        ({"top_k": 5}, "top_k"),
        ({"top_k": -1}, ""),
        ({"min_p": 0.1}, "min_p"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"repetition_penalty": 1.0}, ""),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"top_logprobs": 6, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 5, "logprobs": True}, ""),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": ["a", "b", "c", "d"]}, ""),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "grammar"}}, "response_format"),
        ({"response_format": {"type": "text"}}, ""),
        ({"parallel_tool_calls": False, "tools": [F]}, ""),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"grammar": "root ::= x"}, "grammar"),
        ({"structured_outputs": {"regex": "x"}}, "structured_outputs"),
    ],
)
def test_tgi_refuses_aloud_what_it_would_ignore(fields: dict[str, Any], param: str) -> None:
    assert refused_param(TGI, **fields) == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "end"}, "suffix"),
        ({"suffix": ""}, ""),
        ({"echo": True}, "echo"),
        ({"echo": False}, ""),
        ({"logprobs": 0}, "logprobs"),
        ({"best_of": 2}, "best_of"),
        ({"prompt": [1, 2, 3]}, "prompt"),
        ({"prompt": [[1, 2], [3]]}, "prompt"),
        ({"prompt": ["a", "b"]}, ""),
        ({"presence_penalty": 1}, "presence_penalty"),
        ({"repetition_penalty": 1.2}, ""),
    ],
)
def test_tgis_completions_route_refuses_what_it_has_not(fields: dict[str, Any], param: str) -> None:
    assert refused_param(TGI, "completions", **fields) == param


def test_tgi_gets_its_own_spelling_of_the_same_meaning() -> None:
    body = chat(
        TGI,
        stop="END",
        top_p=1,
        presence_penalty=0,
        response_format={"type": "json_schema", "json_schema": {"name": "p", "strict": True, "schema": SCHEMA}},
    )
    assert body["stop"] == ["END"]
    assert "top_p" not in body and "presence_penalty" not in body
    assert body["response_format"] == {"type": "json_schema", "value": {"name": "p", "schema": SCHEMA}}
    assert chat(TGI, top_p=0.9)["top_p"] == 0.9
    with_schema = chat(TGI, response_format={"type": "json_object", "schema": SCHEMA})["response_format"]
    assert with_schema == {"type": "json_object", "value": SCHEMA}


def test_llamacpp_gets_its_own_name_of_the_repetition_penalty() -> None:
    body = chat(LLAMACPP, repetition_penalty=1.2)
    assert body["repeat_penalty"] == 1.2 and "repetition_penalty" not in body
    assert refused_param(LLAMACPP, repetition_penalty=1.2, repeat_penalty=1.1) == "repetition_penalty"
    assert chat(LLAMACPP, n=2, logit_bias={"1": 2}, top_k=4)["n"] == 2


@pytest.mark.parametrize(
    ("tools", "choice", "outcome"),
    [
        ([F], NAMED_F, "required"),
        ([F, G], NAMED_F, None),
        ([G], NAMED_F, None),
        ([F, G], "required", "required"),
        ([F], "auto", "auto"),
        ([F], "none", "none"),
        ([F], {"type": "allowed_tools"}, None),
    ],
)
def test_llamacpp_is_held_to_a_named_tool_or_the_call_is_refused(tools: Any, choice: Any, outcome: str | None) -> None:
    if outcome is None:
        assert refused_param(LLAMACPP, tools=tools, tool_choice=choice) == "tool_choice"
    else:
        assert chat(LLAMACPP, tools=tools, tool_choice=choice)["tool_choice"] == outcome


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"stop_token_ids": [1]}, "stop_token_ids"), ({"skip_special_tokens": False}, "skip_special_tokens")],
)
def test_llamacpp_refuses_sampling_fields_that_it_would_ignore(fields: dict[str, Any], param: str) -> None:
    assert refused_param(LLAMACPP, **fields) == param


def test_tensorrt_llm_gets_no_field_that_it_would_answer_400_to() -> None:
    body = chat(TENSORRT_LLM, functions=[], continue_final_message=False, parallel_tool_calls=True, min_p=0.1)
    assert body.keys() == {"messages", "model", "min_p"}
    assert refused_param(TENSORRT_LLM, structured_outputs={"json": SCHEMA}) == "structured_outputs"
    assert refused_param(TENSORRT_LLM, bad_words=["x"]) == "bad_words"
    assert chat(TENSORRT_LLM, parallel_tool_calls=False)["parallel_tool_calls"] is False
    assert refused_param(TENSORRT_LLM, "completions", suffix="x") == "suffix"


@pytest.mark.parametrize("dialect", [VLLM, TGI, LLAMACPP], ids=lambda dialect: dialect.engine)
def test_a_field_that_nobody_knows_goes_to_engines_that_ignore_such_fields(dialect: Dialect) -> None:
    assert chat(dialect, tempratur=0.1)["tempratur"] == 0.1
    assert completions(dialect, foo=3)["foo"] == 3


def test_a_field_that_nobody_knows_is_refused_by_name_before_trtllm_serve_would() -> None:
    assert refused_param(TENSORRT_LLM, tempratur=0.1) == "tempratur"
    assert refused_param(TENSORRT_LLM, "completions", foo=3) == "foo"


@pytest.mark.parametrize("dialect", ALL, ids=lambda dialect: dialect.engine)
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"modalities": ["text"]}, ""),
        ({"audio": {"voice": "alloy", "format": "wav"}}, "audio"),
        ({"web_search_options": {"search_context_size": "low"}}, "web_search_options"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"functions": []}, ""),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"function_call": "auto"}, ""),
        ({"verbosity": "low"}, "verbosity"),
        ({"verbosity": "medium"}, ""),
        ({"moderation": {"model": "m"}}, "moderation"),
    ],
)
def test_what_openai_documents_and_no_engine_honours_is_refused_by_name(
    dialect: Dialect, fields: dict[str, Any], param: str
) -> None:
    assert refused_param(dialect, **fields) == param
    if not param:
        assert not fields.keys() & chat(dialect, **fields).keys()


def test_vllm_refuses_the_sampling_of_llamacpp_that_it_would_ignore() -> None:
    assert refused_param(VLLM, grammar="root ::= x") == "grammar"
    assert refused_param(VLLM, repeat_penalty=1.2) == "repeat_penalty"
    assert refused_param(VLLM, repeat_penalty=1.0, mirostat=0, typical_p=1) == ""
    assert refused_param(VLLM, "completions", best_of=3) == "best_of"
    assert chat(LLAMACPP, grammar="root ::= x")["grammar"] == "root ::= x"


@pytest.mark.parametrize("dialect", [TGI, TENSORRT_LLM], ids=lambda dialect: dialect.engine)
def test_a_kind_that_the_engine_does_not_serve_is_refused(dialect: Dialect) -> None:
    with pytest.raises(Unsupported):
        build_body(calling("embeddings", body={"input": "x"}), dialect, "m")


def test_embeddings_go_out_as_they_came() -> None:
    body = sent(VLLM, calling("embeddings", body={"input": ["x"], "encoding_format": "base64", "dimensions": 5}))
    assert body == {"input": ["x"], "encoding_format": "base64", "dimensions": 5, "model": "engine-model"}


def test_b24_developer_messages_become_system_messages_and_nothing_else_changes() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "developer", "content": "rhyme"},
        {"role": "user", "content": "developer"},
    ]
    for dialect in ALL:
        out = chat(dialect, messages=messages)["messages"]
        assert out == [{"role": "system", "content": "rhyme"}, {"role": "user", "content": "developer"}]
    assert chat(Dialect(developer_role=True), messages=messages)["messages"] == messages


@pytest.mark.parametrize(
    "body",
    [
        {"messages": "developer", "stream_options": 5},
        {"messages": [5, "developer"], "stop": "x"},
        {"messages": HELLO, "response_format": "json"},
    ],
)
def test_a_value_of_the_wrong_type_is_the_clients_fault(body: dict[str, Any]) -> None:
    with pytest.raises(Refused) as caught:
        build_body(calling("chat", body=body, stream=True), TGI, "m")
    assert caught.value.status == 400


OPEN_WEBUI: dict[str, Any] = {
    "background_tasks": {"title_generation": True},
    "chat_id": "c1",
    "features": {"web_search": True},
    "files": [{"type": "file", "id": "f1"}],
    "filter_ids": ["x"],
    "id": "m1",
    "model_item": {"id": "m"},
    "params": {"temperature": 1},
    "parent_id": "m0",
    "session_id": "s1",
    "tool_ids": ["t1"],
    "variables": {"{{USER_NAME}}": "Ann"},
}


@pytest.mark.parametrize("dialect", ALL, ids=lambda dialect: dialect.engine)
def test_what_open_webui_tells_its_own_server_reaches_no_engine_and_is_refused_by_none(dialect: Dialect) -> None:
    assert refused_param(dialect, **OPEN_WEBUI) == ""
    left = chat(dialect, **OPEN_WEBUI).keys() & OPEN_WEBUI.keys()
    # vLLM has a parameter of that name.
    assert left == ({"session_id"} if dialect is VLLM else set())
