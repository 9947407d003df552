"""What OpenAI states of single request fields: types, ranges, and those that a caller may not set here.

Only what routing and safety need is checked. A field that is not in a table passes as it is: engines know more fields
than OpenAI, and each adapter honours, translates or refuses them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from engines.contract import Kind
from gateway.errors import BadRequest

__all__ = ["CHECKS", "FORBIDDEN", "describe", "whole_number"]

Raw = msgspec.Raw
Check = Callable[[str, Raw], Any]
"""Takes a field's name and raw value; gives the value read, or raises BadRequest."""

TOKENS_MAX = 2**31 - 1  # engines hold counts in 32 bits; llama.cpp reads a larger one as something else

FORBIDDEN: Mapping[str, str] = dict.fromkeys(
    (
        # Where a call goes, and with whose credentials, is the operator's to say.
        "api_base",
        "api_key",
        "api_type",
        "api_version",
        "azure_endpoint",
        "base_url",
        "custom_llm_provider",
        "default_headers",
        "endpoint_url",
        "extra_body",
        "extra_headers",
        "extra_query",
        "headers",
        "organization",
        "proxies",
        "proxy",
        # Engines that prefill elsewhere connect to the hosts named in these.
        "disaggregated_params",
        "ec_transfer_params",
        "kv_transfer_params",
    ),
    "is not taken from a request: where calls go is set by the gateway's operator. Leave it out.",
)
"""Fields that are refused wherever they stand at the top of a body, with the reason."""


def describe(raw: Raw) -> str:
    """Say what a raw JSON value is, without showing a text that may be secret or long."""
    head = bytes(memoryview(raw)[:24])
    kind = {b'"': "a string", b"{": "an object", b"[": "an array", b"t": "true", b"f": "false", b"n": "null"}
    found = kind.get(head[:1])
    if found is not None:
        return found
    return f"the number {head.decode()}" if len(head) < 24 else "a very long number"


def number(low: float, high: float) -> Check:
    """A check for a number between `low` and `high`, both included."""
    decoder = msgspec.json.Decoder(float)

    def check(name: str, raw: Raw) -> float:
        try:
            value = decoder.decode(raw)
        except msgspec.MsgspecError:
            value = float("nan")
        if not low <= value <= high:
            raise BadRequest(f"`{name}` must be a number from {low:g} to {high:g}, not {describe(raw)}.", param=name)
        return value

    return check


def whole_number(low: int | None, high: int | None) -> Check:
    """A check for an integer in an open or closed range."""
    decoder = msgspec.json.Decoder(int)
    span = "" if low is None else f" from {low} to {high}" if high is not None else f" of {low} or more"

    def check(name: str, raw: Raw) -> int:
        try:
            value = decoder.decode(raw)
        except msgspec.MsgspecError:
            value = None
        if value is None or (low is not None and value < low) or (high is not None and value > high):
            raise BadRequest(f"`{name}` must be an integer{span}, not {describe(raw)}.", param=name)
        return value

    return check


def _typed(kind: Any, words: str) -> Check:
    decoder = msgspec.json.Decoder(kind)

    def check(name: str, raw: Raw) -> Any:
        try:
            return decoder.decode(raw)
        except (msgspec.MsgspecError, RecursionError):
            raise BadRequest(f"`{name}` must be {words}, not {describe(raw)}.", param=name) from None

    return check


_flag = _typed(bool, "true or false")
_text = _typed(str, "a string")
_object = _typed(dict[str, Raw], "an object")


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _ResponseFormat(msgspec.Struct):
    type: str
    json_schema: dict[str, Raw] | None = None


class _Function(msgspec.Struct):
    name: str | None = None


class _Tool(msgspec.Struct):
    type: str
    function: _Function | None = None


_tools_decoder = msgspec.json.Decoder(list[_Tool])


def _tools(name: str, raw: Raw) -> list[_Tool]:
    try:
        tools = _tools_decoder.decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadRequest(f"`tools` must be an array of objects with a `type`: {error}.", param=name) from None
    if not tools:
        raise BadRequest("`tools` must not be empty; leave it out where there are none.", param=name)
    return tools


def _tool_choice(name: str, raw: Raw) -> str | _Tool:
    value: str | _Tool = _typed(str | _Tool, "a string, or an object with a `type`")(name, raw)
    if isinstance(value, str) and value not in ("none", "auto", "required"):
        raise BadRequest("`tool_choice` must be none, auto, required, or an object that names a tool.", param=name)
    if isinstance(value, _Tool) and value.type == "function" and (value.function is None or not value.function.name):
        raise BadRequest("`tool_choice` of type function must name it: `function.name`.", param=f"{name}.function.name")
    return value


def _response_format(name: str, raw: Raw) -> str:
    value: _ResponseFormat = _typed(_ResponseFormat, "an object with a `type`")(name, raw)
    if value.type == "json_schema" and value.json_schema is None:
        raise BadRequest("`response_format` of type json_schema needs its `json_schema`.", param=f"{name}.json_schema")
    return value.type


def _include_usage(name: str, raw: Raw) -> bool:
    value: _StreamOptions = _typed(_StreamOptions, "an object whose `include_usage` is true or false")(name, raw)
    return bool(value.include_usage)


_generating: dict[str, Check] = {
    "stream": _flag,
    "stream_options": _include_usage,
    "max_tokens": whole_number(1, TOKENS_MAX),
    "max_completion_tokens": whole_number(1, TOKENS_MAX),
    "n": whole_number(1, 128),
    "temperature": number(0, 2),
    "top_p": number(0, 1),
    "presence_penalty": number(-2, 2),
    "frequency_penalty": number(-2, 2),
    "seed": whole_number(-(2**63), 2**63 - 1),
    "stop": _typed(str | list[str], "a string or an array of strings"),
    "logit_bias": _typed(dict[str, float], "an object of numbers by token id"),
    "response_format": _response_format,
    "user": _text,
    "prompt_cache_key": _text,
}

CHECKS: dict[Kind, dict[str, Check]] = {
    "chat": {
        **_generating,
        "tools": _tools,
        "tool_choice": _tool_choice,
        "parallel_tool_calls": _flag,
        "logprobs": _flag,
        "top_logprobs": whole_number(0, 20),
        "modalities": _typed(list[str], "an array of strings"),
        "metadata": _object,
    },
    "completions": {
        **_generating,
        "best_of": whole_number(1, 128),
        "echo": _flag,
        "suffix": _text,
        "logprobs": whole_number(0, 20),
    },
    "embeddings": {
        "stream": _flag,
        "dimensions": whole_number(1, None),
        "encoding_format": _text,
        "user": _text,
        "prompt_cache_key": _text,
    },
}
"""Per route: field name -> the check of its value."""
