"""A call as the tensors that a Triton model takes.

What a model has no tensor for is refused with the field's name, unless its value has no effect. Translated to the same
meaning are: temperature 0 (the engine has no such value; greedy is `top_k` 1), a temperature alone (the engine samples
only where `top_k` or `top_p` says so), `top_k` -1 (all: 0), seeds below 0 (as the same 64 bits).
"""

from __future__ import annotations

import struct
from typing import Any, Final

import msgspec

from engines.chat_template import ChatTemplate
from engines.contract import Call
from engines.dialect import Dialect
from engines.errors import Refused, Unsupported
from engines.guided_tools import ToolGuide, guide_for
from engines.rawjson import EMPTY, encode
from engines.request import build_body
from engines.triton_layout import Layout
from engines.triton_wire import Filled, Value, fill, pack

__all__ = ["Plan", "plan_call"]

_ALWAYS: Final = frozenset({"model", "max_tokens", "stream", "stream_options", "stop"})
_ROUTES: Final = {
    "chat": frozenset({"messages", "add_generation_prompt", "chat_template_kwargs", "parallel_tool_calls"}),
    "completions": frozenset({"prompt", "echo"}),
}
_BY_TENSOR: Final = (
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "min_tokens",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "bad_words",
)
_TEMPLATE_NAMES: Final = ("documents", "reasoning_effort")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent, and what is to be known of it when the answer comes.

    Attributes:
        prompt: as sent. lead: text that the answer is to begin with (`echo`).
        stops: to cut the text at. engine_stops: the engine was told of them, too.
        streamed: the engine was asked to stream, whatever the client wants.
        strip_prompt: the answer may begin with the prompt.
    """

    inputs: tuple[Filled, ...]
    prompt: str
    cap: int
    stops: tuple[str, ...] = ()
    engine_stops: bool = False
    streamed: bool = False
    strip_prompt: bool = False
    lead: str = ""
    tool: ToolGuide | None = None


class _Wanted(msgspec.Struct):
    """The fields that are left when those without a tensor were refused."""

    max_tokens: int | None = None
    messages: msgspec.Raw = msgspec.Raw(b"[]")
    prompt: str | list[str] = ""
    echo: bool = False
    stop: str | list[str] = []
    bad_words: list[str] = []
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    min_tokens: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] = {}
    documents: Any = None
    reasoning_effort: Any = None
    tools: msgspec.Raw = msgspec.Raw(b"[]")
    tool_choice: msgspec.Raw = msgspec.Raw(b"")
    response_format: msgspec.Raw = msgspec.Raw(b"")


def plan_call(call: Call, layout: Layout, template: ChatTemplate | None, max_tokens: int) -> Plan:
    """The tensors for `call`.

    Args:
        template: for chat; None: the endpoint has none.
        max_tokens: the cap where the call has none: these models must be given one.

    Raises Unsupported and Refused, with `param`.
    """
    if call.sequences > 1:
        param = "n" if call.kind == "chat" or "n" in call.features else "prompt"
        raise _unsupported(param, "gives one answer to one prompt")
    if call.kind == "chat" and template is None:
        raise _unsupported("messages", "has no chat template; its operator can set `chat_template` or `tokenizer`")
    fields = build_body(call, _dialect(call, layout, template), layout.model)
    try:
        wanted = msgspec.json.decode(fields, type=_Wanted)
    except msgspec.ValidationError as error:
        field = str(error).rpartition("`$.")[2].rstrip("`")
        raise Refused(f"A field is not of its type: {error}.", status=400, param=field or None) from error
    cap = max_tokens if wanted.max_tokens is None else wanted.max_tokens
    tool = _tool(call, wanted, layout)
    prompt = _prompt(call, wanted, layout, template)
    stops = tuple(stop for stop in ([wanted.stop] if isinstance(wanted.stop, str) else wanted.stop) if stop)
    has = layout.inputs
    # Only in streams is the prompt never part of the text, and only there can responses be counted, so a model that
    # cannot leave the prompt out, or gives no count, is made to stream.
    whole = "exclude_prompt" in has and bool(layout.output_count or layout.finish)
    streamed = layout.decoupled and "stream" in has and (call.stream or not whole)
    values: dict[str, list[Value]] = {"prompt": [prompt.encode()], "max_tokens": [cap]}
    values |= {"stream": [streamed], "exclude_prompt": [True], "count_input": [True], "count_output": [True]}
    values["ask_finish"] = [True]
    values["stop"] = [stop.encode() for stop in stops]
    values["bad_words"] = [word.encode() for word in wanted.bad_words]
    values |= _sampling(wanted, layout)
    values |= _guide(wanted, tool)
    return Plan(
        inputs=tuple(_filled(layout, name, given) for name, given in values.items() if given and name in has),
        prompt=prompt,
        cap=cap,
        stops=stops,
        engine_stops="stop" in has,
        streamed=streamed,
        strip_prompt=not streamed and "exclude_prompt" not in has and layout.echoes,
        lead=prompt if wanted.echo else "",
        tool=tool,
    )


def _tool(call: Call, wanted: _Wanted, layout: Layout) -> ToolGuide | None:
    tools, choice = bytes(wanted.tools), bytes(wanted.tool_choice)
    if call.kind != "chat" or tools in EMPTY or choice == b'"none"':
        return None
    if not layout.guided:
        raise _unsupported("tools", "cannot be held to a tool call: its model does no guided decoding")
    return guide_for(tools, choice or None)


def _dialect(call: Call, layout: Layout, template: ChatTemplate | None) -> Dialect:
    accepted = _ALWAYS | _ROUTES.get(call.kind, frozenset())
    accepted |= {name for name in _BY_TENSOR if name in layout.inputs}
    if call.kind == "chat":
        accepted |= {"tools", "tool_choice"}
        if template is not None:
            accepted |= {name for name in _TEMPLATE_NAMES if template.takes(name)}
    if layout.guided:
        accepted |= {"response_format"}
    routes = {kind: frozenset(accepted) for kind in _ROUTES}
    return Dialect(
        engine="This endpoint",
        send_usage=(False, False),
        accepts=routes,
        assistant_content="empty",
        token_prompt=False,
    )


def _unsupported(param: str, what: str) -> Unsupported:
    return Unsupported(f"This endpoint {what}.", status=400, param=param, code="unsupported_parameter")


def _prompt(call: Call, wanted: _Wanted, layout: Layout, template: ChatTemplate | None) -> str:
    if call.kind != "chat":
        return wanted.prompt if isinstance(wanted.prompt, str) else "".join(wanted.prompt)
    assert template is not None
    tools = msgspec.json.decode(wanted.tools)
    shown = None if bytes(wanted.tool_choice) == b'"none"' else tools or None
    return template.render(
        bytes(wanted.messages),
        engine_adds_bos=layout.adds_bos,
        **{
            **wanted.chat_template_kwargs,
            "add_generation_prompt": wanted.add_generation_prompt,
            "tools": shown,
            "documents": wanted.documents,
            **({} if wanted.reasoning_effort is None else {"reasoning_effort": wanted.reasoning_effort}),
        },
    )


def _sampling(wanted: _Wanted, layout: Layout) -> dict[str, list[Value]]:
    out: dict[str, list[Value]] = {}
    for name in ("temperature", "top_p", "min_tokens", "repetition_penalty", "presence_penalty", "frequency_penalty"):
        value = getattr(wanted, name)
        if value is not None:
            out[name] = [value]
    if wanted.top_k is not None:
        out["top_k"] = [max(wanted.top_k, 0)]
    if wanted.seed is not None:
        if not -(2**63) <= wanted.seed < 2**64:
            raise Refused("`seed` must be a 64-bit integer.", status=400, param="seed")
        out["seed"] = [wanted.seed % 2**64]
    if layout.family == "classic":
        _classic_sampling(out, layout)
    return out


def _classic_sampling(out: dict[str, list[Value]], layout: Layout) -> None:
    greedy = out.get("temperature") == [0] or out.get("top_p") == [0]
    if greedy:
        if "top_k" not in layout.inputs:
            raise _unsupported("temperature", "cannot decode greedily: its model takes no top_k")
        out.pop("temperature", None)
        out.pop("top_p", None)
        out["top_k"] = [1]
    elif "temperature" in out and "top_p" not in out and not out.get("top_k", [0])[0]:
        out["top_p"] = [1.0]


def _guide(wanted: _Wanted, tool: ToolGuide | None) -> dict[str, list[Value]]:
    if tool is not None:
        return {"guide_type": [b"json_schema"], "guide": [tool.schema]}
    if not bytes(wanted.response_format):
        return {}
    asked = _object(wanted.response_format)
    kind = asked.get("type")
    if kind == "text":
        return {}
    if kind == "json_object" and not asked.get("schema"):
        # There is a type `json` in the newer releases only; any of them knows a schema that allows every object.
        return {"guide_type": [b"json_schema"], "guide": [b'{"type":"object"}']}
    schema = asked.get("schema") if kind == "json_object" else _object(asked.get("json_schema")).get("schema")
    if kind not in ("json_object", "json_schema") or not isinstance(schema, dict):
        raise _unsupported("response_format", "needs a JSON schema in response_format.json_schema.schema")
    return {"guide_type": [b"json_schema"], "guide": [encode(schema)]}


def _object(value: Any) -> dict[str, Any]:
    decoded = msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value
    return decoded if isinstance(decoded, dict) else {}


def _filled(layout: Layout, meaning: str, values: list[Value]) -> Filled:
    tensor = layout.inputs[meaning]
    filled = fill(tensor.name, tensor.datatype, values, batched=layout.batched)
    try:
        pack(filled)
    except (Refused, struct.error) as error:
        raise Refused(f"`{meaning}` is out of the engine's range.", status=400, param=meaning) from error
    return filled
