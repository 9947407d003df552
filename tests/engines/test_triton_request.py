"""Layouts out of metadata and configuration, and calls as tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jinja2", reason="jinja2 is not installed")

from engines import build, options_type
from engines.chat_template import ChatTemplate
from engines.errors import Malformed, Misconfigured, Refused, Unsupported
from engines.guided_tools import CallReader, ToolGuide, guide_for
from engines.triton_layout import Layout, ModelInfo, Tensor, read_layout, related
from engines.triton_request import Plan, plan_call
from engines.triton_wire import fill, pack, unpack
from tests.engines.harness import make_call

CLASSIC = {
    "text_input": "BYTES",
    "max_tokens": "INT32",
    "stop_words": "BYTES",
    "bad_words": "BYTES",
    "temperature": "FP32",
    "top_p": "FP32",
    "top_k": "INT32",
    "seed": "UINT64",
    "exclude_input_in_output": "BOOL",
    "return_num_output_tokens": "BOOL",
    "guided_decoding_guide": "BYTES",
    "guided_decoding_guide_type": "BYTES",
    "stream": "BOOL",
}
LLMAPI = {
    "text_input": "BYTES",
    "streaming": "BOOL",
    "sampling_param_max_tokens": "INT32",
    "sampling_param_temperature": "FP32",
    "sampling_param_stop": "BYTES",
    "return_finish_reason": "BOOL",
}


def model(name: str = "ensemble", inputs: dict[str, str] | None = None, **more: Any) -> ModelInfo:
    given = CLASSIC if inputs is None else inputs
    outputs = ("text_output", "num_output_tokens", "finish_reason", "context_logits")
    return ModelInfo(
        name=name,
        inputs=tuple(Tensor(name, kind, (-1, 1)) for name, kind in given.items()),
        outputs=tuple(Tensor(name, "BYTES", (-1,)) for name in outputs),
        **{"decoupled": True, "max_batch_size": 8, **more},
    )


def layout(inputs: dict[str, str] | None = None, **more: Any) -> Layout:
    return read_layout(model(inputs=inputs, **more))


def plan(shape: Layout | None = None, kind: str = "chat", stream: bool = True, **fields: Any) -> Plan:
    template = ChatTemplate("{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}{{ tools | tojson }}")
    return plan_call(make_call(kind, stream=stream, **fields), shape or layout(), template, 100)


def sent(made: Plan) -> dict[str, Any]:
    return {one.name: one.values[0] if len(one.values) == 1 else one.values for one in made.inputs}


def test_families_are_told_apart_by_their_tensors_and_not_by_names() -> None:
    assert layout(name="x").family == "classic" and not layout().cumulative
    llmapi = layout(LLMAPI, name="ensemble", max_batch_size=0)
    assert llmapi.family == "llmapi" and llmapi.cumulative and not llmapi.batched and llmapi.finish == "finish_reason"
    with pytest.raises(Misconfigured):
        layout({"input_ids": "INT32"})


def test_the_business_logic_accumulates_where_it_is_told_to_and_the_operator_has_the_last_word() -> None:
    bls = model("tensorrt_llm_bls", parameters={"accumulate_tokens": "True", "tensorrt_llm_model_name": "core"})
    assert related(bls) == ["core"]
    assert read_layout(bls).cumulative and not read_layout(bls, text="delta").cumulative
    assert read_layout(model(), text="cumulative").cumulative


def test_an_ensemble_is_decoupled_guided_and_stopped_as_its_core_is() -> None:
    outer = model(decoupled=False, steps=("preprocessing", "core"), platform="ensemble")
    assert related(outer) == ["preprocessing", "core"]
    core_inputs = dict.fromkeys(("input_ids", "request_output_len", "stop"), "INT32")
    core = model("core", core_inputs, parameters={"guided_decoding_backend": "xgrammar"})
    before = model("preprocessing", parameters={"add_special_tokens": "False"}, decoupled=False)
    found = read_layout(outer, {"core": core, "preprocessing": before})
    assert found.decoupled and found.guided and found.stopper == "core" and not found.adds_bos
    bare = read_layout(outer, {})
    assert not bare.decoupled and not bare.guided and not bare.stopper and bare.adds_bos


def test_only_outputs_that_are_used_are_asked_for() -> None:
    assert layout().outputs == ["text_output", "num_output_tokens"]
    assert layout(LLMAPI).outputs == ["text_output", "finish_reason"]


def test_a_call_without_a_cap_gets_the_endpoints() -> None:
    assert sent(plan())["max_tokens"] == 100 and plan().cap == 100
    assert sent(plan(max_tokens=7))["max_tokens"] == 7
    assert sent(plan(layout(LLMAPI)))["sampling_param_max_tokens"] == 100


def test_shapes_have_the_batch_dimension_where_the_model_has_it() -> None:
    stops = {one.name: one.shape for one in plan(stop=["a", "b"]).inputs}
    assert stops["stop_words"] == (1, 2) and stops["text_input"] == (1, 1)
    stops = {one.name: one.shape for one in plan(layout(LLMAPI, max_batch_size=0), stop=["a", "b"]).inputs}
    assert stops["sampling_param_stop"] == (2,) and stops["text_input"] == (1,)


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ({"temperature": 0}, {"top_k": 1}),
        ({"temperature": 0, "top_k": 40, "top_p": 0.9}, {"top_k": 1}),
        ({"top_p": 0}, {"top_k": 1}),
        ({"temperature": 0.5}, {"temperature": 0.5, "top_p": 1.0}),
        ({"temperature": 0.5, "top_k": 40}, {"temperature": 0.5, "top_k": 40}),
        ({"temperature": 0.5, "top_k": -1}, {"temperature": 0.5, "top_k": 0, "top_p": 1.0}),
        ({"temperature": 1, "top_p": 0.5}, {"temperature": 1, "top_p": 0.5}),
        ({}, {}),
    ],
)
def test_sampling_is_translated_to_the_same_meaning(asked: dict[str, Any], given: dict[str, Any]) -> None:
    values = sent(plan(**asked))
    assert {name: values[name] for name in ("temperature", "top_k", "top_p") if name in values} == given


@pytest.mark.parametrize(("seed", "given"), [(0, 0), (-1, 2**64 - 1), (-(2**63), 2**63), (2**63 - 1, 2**63 - 1)])
def test_a_seed_of_either_sign_is_64_bits(seed: int, given: int) -> None:
    assert sent(plan(seed=seed))["seed"] == given


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("min_tokens", {"min_tokens": 3}),
        ("presence_penalty", {"presence_penalty": 0.5}),
        ("logprobs", {"logprobs": True}),
        ("logit_bias", {"logit_bias": {"5": 1}}),
        ("min_p", {"min_p": 0.1}),
        ("chat_template", {"chat_template": "x"}),
        ("reasoning_effort", {"reasoning_effort": "low"}),
        ("stop_token_ids", {"stop_token_ids": [1]}),
        ("tool_choice", {"tools": [{"type": "function", "function": {"name": "f"}}]}),
        ("temperature", {"temperature": "hot"}),
        ("top_k", {"top_k": 2**40}),
        ("seed", {"seed": 2**70}),
    ],
)
def test_what_has_no_tensor_or_no_sense_is_refused_by_name(param: str, fields: dict[str, Any]) -> None:
    can_guide = read_layout(model(), guided=True)
    with pytest.raises(Refused) as refused:
        plan(can_guide, **fields)
    assert refused.value.param == param and refused.value.status == 400


def test_values_without_effect_pass() -> None:
    fields: dict[str, Any] = {"presence_penalty": 0, "logprobs": False, "n": 1, "user": "u", "tool_choice": "none"}
    assert sent(plan(**fields))


def test_several_prompts_or_choices_are_refused() -> None:
    import msgspec

    call = msgspec.structs.replace(make_call(n=2), sequences=2, features=frozenset({"n"}))
    with pytest.raises(Unsupported) as refused:
        plan_call(call, layout(), ChatTemplate("x"), 10)
    assert refused.value.param == "n"


def test_chat_without_a_template_is_refused_and_completions_need_none() -> None:
    with pytest.raises(Unsupported) as refused:
        plan_call(make_call(), layout(), None, 10)
    assert refused.value.param == "messages"
    assert plan_call(make_call("completions", prompt=" x"), layout(), None, 10).prompt == " x"


def test_an_echo_leads_the_answer() -> None:
    assert plan(kind="completions", prompt="Once", echo=True).lead == "Once"
    assert plan(kind="completions", prompt="Once").lead == ""


def test_the_prompt_is_kept_out_of_whole_answers_one_way_or_another() -> None:
    assert sent(plan(stream=False))["exclude_input_in_output"] is True and not plan(stream=False).streamed
    without = {name: kind for name, kind in CLASSIC.items() if name != "exclude_input_in_output"}
    assert plan(layout(without), stream=False).streamed and not plan(layout(without), stream=False).strip_prompt
    assert plan(layout(without, decoupled=False), stream=False).strip_prompt
    set_up = model(inputs=without, decoupled=False, parameters={"exclude_input_in_output": "true"})
    assert not plan(read_layout(set_up), stream=False).strip_prompt


def test_a_model_that_cannot_stream_is_not_asked_to() -> None:
    made = plan(layout(decoupled=False))
    assert not made.streamed and sent(made)["stream"] is False


TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "title": name}}}
    for name in ("weather", "time")
]


def test_the_messages_and_tools_reach_the_template_and_none_hides_the_tools() -> None:
    can = read_layout(model(), guided=True)
    shown = plan(can, tools=TOOLS, tool_choice="required").prompt
    assert shown.startswith("user:Hi;") and '"weather"' in shown
    assert plan(can, tools=TOOLS, tool_choice="none").prompt == "user:Hi;null"
    assert plan(layout(), tools=TOOLS, tool_choice="none").prompt == "user:Hi;null"


def test_a_guide_is_sent_where_the_model_can_be_held_to_one() -> None:
    can = read_layout(model(), guided=True)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    values = sent(plan(can, response_format=wanted))
    assert values["guided_decoding_guide_type"] == b"json_schema"
    assert json.loads(values["guided_decoding_guide"]) == schema
    assert json.loads(sent(plan(can, response_format={"type": "json_object"}))["guided_decoding_guide"]) == {
        "type": "object"
    }
    assert "guided_decoding_guide" not in sent(plan(can, response_format={"type": "text"}))
    with pytest.raises(Unsupported) as refused:
        plan(layout(), response_format=wanted)
    assert refused.value.param == "response_format"
    with pytest.raises(Unsupported):
        plan(can, response_format={"type": "json_schema", "json_schema": {"name": "n"}})


def test_a_tool_guide_is_one_schema_or_one_alternative_for_each() -> None:
    tools = json.dumps(TOOLS).encode()
    several = guide_for(tools, b'"required"')
    assert several is not None and (several.name, several.finish) == ("", "tool_calls")
    kinds = [one["properties"]["name"]["enum"] for one in json.loads(several.schema)["anyOf"]]
    assert kinds == [["weather"], ["time"]]
    named = guide_for(tools, b'{"type":"function","function":{"name":"time"}}')
    assert named == ToolGuide(b'{"type":"object","title":"time"}', "time", "stop")
    only = guide_for(json.dumps(TOOLS[:1]).encode(), b'"required"')
    assert only is not None and (only.name, only.finish) == ("weather", "tool_calls")
    with pytest.raises(Refused):
        guide_for(tools, b'{"type":"function","function":{"name":"nope"}}')


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize(
    "said", ['{"name":"time","arguments":{"a":{"b":1}}}', '\n{ "name" : "time", "arguments" : {"a":{"b":1}} } \n']
)
def test_a_call_is_taken_apart_wherever_it_is_cut(said: str, size: int) -> None:
    reader = CallReader(ToolGuide(b"{}", "", "tool_calls"))
    out = "".join(reader.feed(said[at : at + size]) for at in range(0, len(said), size))
    assert reader.name == "time" and json.loads(out + reader.close(complete=True)) == {"a": {"b": 1}}


def test_a_call_that_was_cut_at_the_cap_keeps_what_there_is_and_nonsense_is_malformed() -> None:
    reader = CallReader(ToolGuide(b"{}", "", "tool_calls"))
    assert reader.feed('{"name":"time","arguments":{"a":{}') + reader.close(complete=False) == '{"a":{}'
    reader = CallReader(ToolGuide(b"{}", "", "tool_calls"))
    assert reader.feed("Hello") == ""
    with pytest.raises(Malformed):
        reader.close(complete=True)


@pytest.mark.parametrize(
    ("kind", "value"), [("BYTES", "é\0".encode()), ("INT32", -5), ("UINT64", 2**64 - 1), ("FP32", 0.5), ("BOOL", True)]
)
def test_tensors_go_and_come_the_same(kind: str, value: Any) -> None:
    assert unpack(kind, pack(fill("x", kind, [value], batched=False))) == value


def test_broken_tensors_are_malformed_and_empty_ones_nothing() -> None:
    assert unpack("BYTES", b"") is None and unpack("INT32", b"") is None
    for kind, raw in (("BYTES", b"\x09\0\0\0ab"), ("INT32", b"\1"), ("WHAT", b"\1")):
        with pytest.raises(Malformed):
            unpack(kind, raw)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"url": "ftp://h:1"}, "grpc://"),
        ({"url": "grpc://h"}, "host and port"),
        ({"url": "grpc://h:1/x"}, "no path"),
        ({"url": "grpc://u:p@h:1"}, "must not carry a user"),
        ({"url": "grpc://h:1", "text": "chunks"}, "text"),
        ({"url": "grpc://h:1", "tokeniser": "x"}, "did you mean `tokenizer`"),
        ({"url": "grpc://h:1", "tokenizer": "./nowhere"}, "tokenizer_config.json"),
        ({"url": "grpc://h:1", "chat_template": "{% if %}"}, "does not parse"),
        ({"url": "http://h:1", "ca_file": "x"}, "grpcs://"),
        ({"url": "grpc://h:1", "max_message": 0}, "max_message"),
        ({"url": "grpc://h:1", "idle_timeout": 0}, "idle_timeout"),
    ],
)
def test_wrong_options_are_told_before_any_traffic(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says) as told:
        build("triton", "t0", options)
    assert "t0" in str(told.value) and "u:p" not in str(told.value)


def test_a_package_that_is_missing_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "tritonclient.grpc", None)
    monkeypatch.delitem(sys.modules, "engines.triton_grpc", raising=False)
    with pytest.raises(ValueError, match=r"'t0'.*tritonclient.*enginehouse\[triton\]"):
        build("triton", "t0", {"url": "grpc://h:1"})
    assert build("triton", "t0", {"url": "http://h:1"}).kind == "triton", "HTTP needs no gRPC"


def test_checking_a_configuration_loads_nothing_heavy() -> None:
    import subprocess
    import sys

    code = (
        "import engines, sys; engines.options_type('triton'); "
        "print(*[n for n in ('grpc', 'tritonclient', 'jinja2', 'httpx', 'google.protobuf') if n in sys.modules])"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
    assert options_type("triton").__struct_config__.frozen
