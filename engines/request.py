"""The outgoing body of a call: the client's own bytes, with what the engine's dialect makes of them.

Nothing that has a meaning is dropped silently: a field is honoured, translated to the same meaning, or refused with
`Unsupported` and its name. Fields without an effect on the answer are left out where the engine would refuse them.
Fields that no engine's contract knows go to engines that ignore such fields, and are refused before those that do not.
"""

from __future__ import annotations

import re

import msgspec

from engines.contract import Call
from engines.dialect import Dialect
from engines.errors import Malformed, Refused, Unsupported
from engines.messages import normalise_messages
from engines.rawjson import EMPTY, NULL, Fields, encode, is_null, join_object, read_array, read_object

__all__ = ["build_body"]

_CAPS = ("max_tokens", "max_completion_tokens")

# Values without effect, where they are others than null, false, 0, "", [] and {}.
_DEFAULTS: dict[str, frozenset[bytes]] = {
    "add_generation_prompt": frozenset({b"true"}),
    "add_special_tokens": frozenset(),
    "best_of": frozenset({b"1"}),
    "detokenize": frozenset({b"true"}),
    "dimensions": frozenset(),
    "function_call": frozenset({b'"none"', b'"auto"'}),
    "guided_choice": frozenset(),
    "include_reasoning": frozenset({b"true"}),
    "length_penalty": frozenset({b"1", b"1.0"}),
    "logprobs": frozenset({b"false"}),  # on completions 0 asks for the chosen tokens' own
    "n": frozenset({b"1"}),
    "n_predict": frozenset(),
    "parallel_tool_calls": frozenset({b"true"}),
    "prompt_logprobs": frozenset({b"false"}),
    "repeat_penalty": frozenset({b"1", b"1.0"}),
    "repetition_penalty": frozenset({b"1", b"1.0"}),
    "seed": frozenset(),
    "skip_special_tokens": frozenset({b"true"}),
    "spaces_between_special_tokens": frozenset({b"true"}),
    "temperature": frozenset(),
    "thinking_token_budget": frozenset(),
    "top_k": frozenset({b"0", b"-1"}),
    "top_p": frozenset({b"1", b"1.0"}),
    "truncate_prompt_tokens": frozenset(),
    "typical_p": frozenset({b"1", b"1.0"}),
    "modalities": frozenset({b'["text"]'}),
    "verbosity": frozenset({b'"medium"'}),
}
_ZERO = frozenset({b"false", b"0", b"0.0"})
_TOKEN_IDS = re.compile(rb"\[\s*[\[\d-]").match


def build_body(call: Call, dialect: Dialect, model: str) -> bytes:
    """The JSON body to send for `call` to an engine that speaks `dialect` and knows its model as `model`.

    Raises Unsupported where the engine cannot honour a field, Refused where a field that had to be read is no JSON
    of its type.
    """
    try:
        fields = _translate(call, dialect, model)
    except Malformed as error:  # here it is the client's JSON that was read
        raise Refused("The request holds a value of the wrong JSON type.", status=400, detail=error.detail) from error
    return join_object(fields)


def _translate(call: Call, dialect: Dialect, model: str) -> Fields:
    fields: Fields = {
        dialect.renames.get(name, name): value
        for name, value in call.fields.items()
        if name not in dialect.drops and not is_null(value)
    }
    _check_renames(call, dialect)
    fields["model"] = encode(dialect.fixed_model or model)
    _set_cap(fields, call, dialect)
    _set_stream(fields, call, dialect)
    _set_sampling(fields, dialect)
    if dialect.response_format == "tgi" and "response_format" in fields:
        _tgi_response_format(fields, dialect)
    if not dialect.named_tool_choice and "tool_choice" in fields:
        _required_for_named(fields, dialect)
    if not dialect.token_prompt and "prompt" in fields and _TOKEN_IDS(fields["prompt"]):
        raise _unsupported(dialect, "prompt", "takes prompts as text only, not as token ids")
    _check_fields(fields, call, dialect)
    if call.kind == "chat" and "messages" in fields:
        fields["messages"] = normalise_messages(fields["messages"], dialect)
    return fields


def _unsupported(dialect: Dialect, param: str, what: str) -> Unsupported:
    return Unsupported(f"{dialect.engine} {what}.", status=400, param=param, code="unsupported_parameter")


def _check_renames(call: Call, dialect: Dialect) -> None:
    for name, own in dialect.renames.items():
        if name in call.fields and own in call.fields and bytes(call.fields[name]) != bytes(call.fields[own]):
            raise _unsupported(dialect, name, f"knows {name} as {own}, and the request gives both")


def _set_cap(fields: Fields, call: Call, dialect: Dialect) -> None:
    for name in _CAPS:
        fields.pop(name, None)
    if call.max_tokens is not None and call.kind != "embeddings":
        fields[dialect.max_tokens if call.kind == "chat" else "max_tokens"] = encode(call.max_tokens)


def _set_stream(fields: Fields, call: Call, dialect: Dialect) -> None:
    asked = fields.pop("stream_options", None)
    fields.pop("stream", None)
    if not call.stream:
        return
    fields["stream"] = b"true"
    options = read_object(asked) if asked is not None else {}
    options.pop("include_obfuscation", None)  # padding against eavesdroppers of OpenAI's own line
    continuous = options.pop("continuous_usage_stats", b"false")
    wants_continuous = call.include_usage and bytes(continuous) == b"true"
    if wants_continuous and not dialect.continuous_usage:
        raise _unsupported(dialect, "stream_options", "gives usage at the end only, not with every chunk")
    if dialect.accepts is not None and options.keys() - {"include_usage"}:
        raise _unsupported(dialect, "stream_options", "knows no such stream option")
    options["include_usage"] = b"true"
    if wants_continuous:
        options["continuous_usage_stats"] = b"true"
    if dialect.send_usage[0 if call.kind == "chat" else 1]:
        fields["stream_options"] = join_object(options)


def _set_sampling(fields: Fields, dialect: Dialect) -> None:
    if dialect.stop_list and "stop" in fields:
        stop = bytes(fields["stop"])
        if stop == b'""':
            del fields["stop"]
        elif stop.startswith(b'"'):
            fields["stop"] = b"[" + stop + b"]"
    if dialect.max_stops is not None and "stop" in fields:
        stops = _decode(fields["stop"])
        if isinstance(stops, list) and len(stops) > dialect.max_stops:
            raise _unsupported(
                dialect, "stop", f"takes at most {dialect.max_stops} stop sequences, and {len(stops)} were given"
            )
    if dialect.top_p_open and "top_p" in fields and _decode(fields["top_p"]) == 1:
        del fields["top_p"]
    if dialect.zero_presence_penalty and "presence_penalty" in fields:
        if _decode(fields["presence_penalty"]) != 0:
            raise _unsupported(dialect, "presence_penalty", "has no presence penalty")
        del fields["presence_penalty"]
    if dialect.max_top_logprobs is not None and "top_logprobs" in fields:
        asked = _decode(fields["top_logprobs"])
        if isinstance(asked, int) and asked > dialect.max_top_logprobs:
            raise _unsupported(dialect, "top_logprobs", f"gives at most {dialect.max_top_logprobs} top logprobs")


def _tgi_response_format(fields: Fields, dialect: Dialect) -> None:
    asked = read_object(fields["response_format"])
    kind = _decode(asked.get("type", NULL))
    if kind == "text":
        del fields["response_format"]
    elif "value" in asked:
        return  # already in TGI's own form
    elif kind == "json_schema":
        schema = read_object(asked.get("json_schema", NULL))
        if is_null(schema.get("schema")):
            raise _unsupported(dialect, "response_format", "needs the schema in response_format.json_schema.schema")
        value = {name: schema[name] for name in ("name", "schema") if not is_null(schema.get(name))}
        fields["response_format"] = join_object({"type": b'"json_schema"', "value": join_object(value)})
    elif kind == "json_object" and not is_null(asked.get("schema")):
        fields["response_format"] = join_object({"type": b'"json_object"', "value": asked["schema"]})
    elif kind == "json_object":
        raise _unsupported(dialect, "response_format", "makes JSON only by a schema; use the type json_schema")
    else:
        raise _unsupported(dialect, "response_format", f"knows no response format of the type {kind!r}")


def _required_for_named(fields: Fields, dialect: Dialect) -> None:
    """A named tool is "required" where it is the only one; with others beside it the engine would choose freely."""
    if not bytes(fields["tool_choice"]).startswith(b"{"):
        return
    choice = read_object(fields["tool_choice"])
    named = read_object(choice.get("function", b"{}")).get("name")
    tools = read_array(fields.get("tools", b"[]"))
    names = [read_object(tool.get("function", b"{}")).get("name") for tool in tools]
    if named is None or len(names) != 1 or names[0] is None or _decode(names[0]) != _decode(named):
        raise _unsupported(dialect, "tool_choice", "cannot be held to one function among several tools")
    fields["tool_choice"] = b'"required"'


def _check_fields(fields: Fields, call: Call, dialect: Dialect) -> None:
    accepted = None
    if dialect.accepts is not None:
        accepted = dialect.accepts.get(call.kind)
        if accepted is None:
            raise _unsupported(dialect, "model", f"does not serve {call.kind}")
    for name in list(fields):
        why = dialect.refuses.get(name)
        if why is not None:
            if not _without_effect(name, fields[name]):
                raise Unsupported(
                    f"{dialect.engine} cannot honour {name}: {why}.",
                    status=400,
                    param=name,
                    code="unsupported_parameter",
                )
            del fields[name]
        elif accepted is not None and name not in accepted and (dialect.ignores is None or name in dialect.ignores):
            if not _without_effect(name, fields[name]):
                raise _unsupported(dialect, name, f"has no parameter {name} for {call.kind}")
            del fields[name]
        elif name in dialect.newer and _without_effect(name, fields[name]):
            del fields[name]


def _without_effect(name: str, value: msgspec.Raw | bytes) -> bool:
    if len(memoryview(value)) > 16:
        return False
    raw = bytes(value)
    return raw in EMPTY or raw in _DEFAULTS.get(name, _ZERO)


def _decode(value: msgspec.Raw | bytes) -> object:
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError as error:
        raise Malformed("not JSON", detail=str(error)) from error
