"""Body bytes -> `Call`, and `Call` + headers -> `Ask`.

One pass finds the members of the body and leaves each as raw bytes; only what routing and safety need is read.
Nulls at the top mean "default" and are dropped. Of `max_tokens` and `max_completion_tokens` the smaller counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from engines.contract import Call, Headers, Kind
from gateway.errors import BadRequest
from gateway.fields import CHECKS, FORBIDDEN, describe
from gateway.prompt import Prompt, measure_messages, measure_prompt, tokens_in
from router import Ask, Slo

__all__ = ["ask", "read", "trace_context"]

Raw = msgspec.Raw

_members = msgspec.json.Decoder(dict[str, Raw])
_text = msgspec.json.Decoder(str)
_NULL = Raw(b"null")

SESSION_MAX = 256
PRIORITY_MAX = 1000


def read(kind: Kind, body: bytes, *, request_id: str, call_id: str, headers: Headers = ()) -> Call:
    """Read one request body.

    Args:
        kind: the route that it came by.
        body: the whole body. The call keeps it alive: its fields are views into it.
        request_id, call_id: see `Call`.
        headers: what is passed on to the engine (`trace_context`).

    Raises:
        BadRequest: with `param` naming the field, and a message that says what would be right.
    """
    fields = _decode(body)
    for name in fields.keys() & FORBIDDEN.keys():
        raise BadRequest(f"`{name}` {FORBIDDEN[name]}", param=name)
    model = _model(fields)
    checks = CHECKS[kind]
    values: dict[str, Any] = {name: checks[name](name, fields[name]) for name in checks.keys() & fields.keys()}
    if kind == "chat":
        prompt = measure_messages(_required(fields, "messages"))
        if "tools" in fields:
            prompt = prompt.plus(tokens_in(fields["tools"]))
    else:
        name = "input" if kind == "embeddings" else "prompt"
        prompt = measure_prompt(name, _required(fields, name))
    _check_together(kind, values)
    caps = [values[name] for name in ("max_tokens", "max_completion_tokens") if name in values]
    choice = values.get("tool_choice")
    return Call(
        id=call_id,
        request_id=request_id,
        kind=kind,
        model=model,
        fields=fields,
        stream=values.get("stream", False),
        include_usage=values.get("stream_options", False),
        max_tokens=min(caps, default=None),
        sequences=1 if kind == "embeddings" else values.get("n", 1) * prompt.count,
        features=_features(kind, values, prompt),
        prompt_tokens=prompt.tokens,
        named_tool=choice is not None and not isinstance(choice, str) and choice.type == "function",
        headers=headers,
    )


def ask(call: Call, headers: Mapping[str, str], now: float, slo: Slo | None = None) -> Ask:
    """Say what routing needs to know of a call.

    Headers: `x-slo-ttft-ms` and `x-slo-tpot-ms` (positive milliseconds) go before the pool's own `slo`, each by
    itself; `x-enginehouse-priority` (an integer from -1000 to 1000, higher is sooner); `x-enginehouse-session` goes
    before the body's `prompt_cache_key`, and that before its `user`.

    Args:
        headers: names in lower case.
        now: when the call's last body byte was read.

    Raises:
        BadRequest: a header's value means nothing; `param` is the header's name.
    """
    ttft = _seconds(headers, "x-slo-ttft-ms")
    tpot = _seconds(headers, "x-slo-tpot-ms")
    if ttft is not None or tpot is not None:
        default = slo if slo is not None else Slo()
        slo = Slo(
            ttft=ttft if ttft is not None else default.ttft,
            tpot=tpot if tpot is not None else default.tpot,
        )
    return Ask(
        id=call.id,
        prompt_tokens=call.prompt_tokens,
        max_tokens=call.max_tokens,
        kind="embed" if call.kind == "embeddings" else "generate",
        stream=call.stream,
        sequences=call.sequences,
        arrived=now,
        features=call.features,
        slo=slo,
        priority=_priority(headers),
        session=_session(call, headers),
    )


def trace_context(headers: Mapping[str, str]) -> Headers:
    """Pick the W3C trace context out of a request's headers. Nothing else of a client is ever passed on."""
    return tuple((name, headers[name]) for name in ("traceparent", "tracestate") if name in headers)


def _decode(body: bytes) -> dict[str, Raw]:
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise BadRequest(f"The body is not valid UTF-8 (byte {error.start}).", code="invalid_utf8") from None
    try:
        fields = _members.decode(body)
    except msgspec.ValidationError:
        raise BadRequest("The body must be a JSON object.", code="invalid_json") from None
    except msgspec.DecodeError as error:
        where = "it is empty" if not body.strip() else str(error).removeprefix("JSON is malformed: ")
        if body.startswith(b"\xef\xbb\xbf"):
            where = "it begins with a byte order mark, which JSON does not allow"
        raise BadRequest(f"The body is not valid JSON: {where}.", code="invalid_json") from None
    except RecursionError:
        raise BadRequest("The body is nested too deeply.", code="invalid_json") from None
    return {name: raw for name, raw in fields.items() if raw != _NULL}


def _required(fields: dict[str, Raw], name: str) -> Raw:
    try:
        return fields[name]
    except KeyError:
        raise BadRequest(f"`{name}` is missing.", param=name, code="missing_required_parameter") from None


def _model(fields: dict[str, Raw]) -> str:
    raw = _required(fields, "model")
    try:
        model = _text.decode(raw)
    except msgspec.MsgspecError:
        raise BadRequest(f"`model` must be a string, not {describe(raw)}.", param="model") from None
    if not model:
        raise BadRequest("`model` must not be empty; `GET /v1/models` lists the names.", param="model")
    return model


def _check_together(kind: Kind, values: dict[str, Any]) -> None:
    """Refuse fields that mean something only beside another."""
    if "stream_options" in values and not values.get("stream"):
        raise BadRequest("`stream_options` is only allowed with `stream: true`.", param="stream_options")
    if kind == "embeddings" and values.get("stream"):
        raise BadRequest("Embeddings are not streamed; leave `stream` out.", param="stream")
    if kind == "chat" and values.get("top_logprobs") and not values.get("logprobs"):
        raise BadRequest("`top_logprobs` is only allowed with `logprobs: true`.", param="top_logprobs")
    choice = values.get("tool_choice", "none")
    if choice in ("none", "auto"):
        return
    tools = values.get("tools")
    if not tools:
        raise BadRequest("`tool_choice` is only allowed with `tools`.", param="tool_choice")
    if not isinstance(choice, str) and choice.type == "function":
        names = {tool.function.name for tool in tools if tool.function is not None}
        if choice.function.name not in names:
            raise BadRequest("`tool_choice` names a function that is not in `tools`.", param="tool_choice")


def _features(kind: Kind, values: dict[str, Any], prompt: Prompt) -> frozenset[str]:
    needs = set(prompt.features)
    if "tools" in values:
        needs.add("tools")
    if values.get("tool_choice", "auto") not in ("none", "auto"):
        needs.add("tool_choice")
    if values.get("response_format") in ("json_schema", "json_object"):
        needs.add(values["response_format"])
    if values.get("logprobs") if kind == "chat" else "logprobs" in values:
        needs.add("logprobs")
    if values.get("n", 1) > 1:
        needs.add("n")
    if "audio" in values.get("modalities", ()):
        needs.add("audio")
    needs.update(name for name in ("logit_bias", "echo", "suffix") if values.get(name))
    return frozenset(needs)


def _seconds(headers: Mapping[str, str], name: str) -> float | None:
    text = headers.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise BadRequest(f"`{name}` must be a positive number of milliseconds.", param=name)
    return value / 1000


def _priority(headers: Mapping[str, str]) -> int:
    name = "x-enginehouse-priority"
    text = headers.get(name, "0")
    try:
        value = int(text)
    except ValueError:
        value = PRIORITY_MAX + 1
    if abs(value) > PRIORITY_MAX:
        raise BadRequest(f"`{name}` must be an integer from -{PRIORITY_MAX} to {PRIORITY_MAX}.", param=name)
    return value


def _session(call: Call, headers: Mapping[str, str]) -> str | None:
    session = headers.get("x-enginehouse-session")
    for name in ("prompt_cache_key", "user"):
        if not session and name in call.fields:
            session = _text.decode(call.fields[name])
    return session[:SESSION_MAX] if session else None
