"""A request's body, checked: what its client wants, in the model's terms.

The gateway's adapter has left out or refused every field that is not here; types are checked once more, because what
reaches the C++ code must be right.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec

from engines.contract import Kind
from engines.embedded_worker.model import BadCall, Sampling

__all__ = ["Wish", "read_wish"]

_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]


class _JsonSchema(msgspec.Struct):
    schema: dict[str, Any] = {}


class _Format(msgspec.Struct):
    type: str
    json_schema: _JsonSchema | None = None
    schema: dict[str, Any] | None = None


class _Body(msgspec.Struct):
    messages: list[dict[str, Any]] | None = None
    prompt: str | list[str | int | list[int]] | None = None
    input: str | list[str | int | list[int]] | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)] | None = None
    top_p: _Share | None = None
    min_p: _Share | None = None
    typical_p: _Share | None = None
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0)] | None = None
    frequency_penalty: _Penalty | None = None
    presence_penalty: _Penalty | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    logit_bias: dict[str, Annotated[float, msgspec.Meta(ge=-100, le=100)]] | None = None
    logprobs: bool | Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    response_format: _Format | None = None
    ignore_eos: bool = False
    encoding_format: Literal["float", "base64"] | None = None


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """One call.

    Attributes:
        messages: of a chat. prompts: of completions (one) or embeddings, as text or token ids.
        max_tokens: None: until the context is full.
        logprobs: how many alternatives to show beside each token's own; None: no logprobs at all.
        base64: embeddings are given in that form.
    """

    messages: list[dict[str, Any]] = []
    prompts: list[str | list[int]] = []
    max_tokens: int | None = None
    stops: list[str] = []
    logprobs: int | None = None
    sampling: Sampling = Sampling()
    base64: bool = False


_decoder = msgspec.json.Decoder(_Body)


def read_wish(kind: Kind, raw: bytes, vocabulary: int) -> Wish:
    """Read a request's body. Raises BadCall with the field at fault."""
    try:
        body = _decoder.decode(raw)
    except msgspec.ValidationError as error:
        found = re.search(r"`\$\.(\w+)", str(error))
        what = str(error).split(" - at ")[0]
        raise BadCall(f"{found[1]}: {what}." if found else f"{what}.", found[1] if found else None) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadCall("The request is not JSON.") from error
    if kind == "embeddings":
        prompts = _prompts("input", body.input, vocabulary)
        return Wish(prompts=prompts, base64=body.encoding_format == "base64")
    sampling = _sampling(body, vocabulary)
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if kind == "chat":
        messages = [_message(message) for message in body.messages or ()]
        if not messages:
            raise BadCall("`messages` must not be empty.", "messages")
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        return Wish(messages=messages, max_tokens=body.max_tokens, stops=stops, logprobs=logprobs, sampling=sampling)
    prompts = _prompts("prompt", body.prompt, vocabulary)
    if len(prompts) != 1:
        raise BadCall("The embedded engine takes one prompt per request.", "prompt", "Unsupported")
    logprobs = None if body.logprobs is None or body.logprobs is False else int(body.logprobs)
    return Wish(prompts=prompts, max_tokens=body.max_tokens, stops=stops, logprobs=logprobs, sampling=sampling)


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """Text parts are joined, because most templates take text only."""
    content = message.get("content")
    if content is None:
        return {**message, "content": ""}
    if not isinstance(content, list):
        return message
    texts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise BadCall("The embedded engine takes messages of text only.", "messages", "Unsupported")
        texts.append(part["text"])
    return {**message, "content": "\n".join(texts)}


def _prompts(name: str, given: str | list[str | int | list[int]] | None, vocabulary: int) -> list[str | list[int]]:
    if isinstance(given, str):
        return [given]
    if not given:
        raise BadCall(f"`{name}` must not be empty.", name)
    texts: list[str | list[int]] = [item for item in given if isinstance(item, str)]
    lists: list[str | list[int]] = [item for item in given if isinstance(item, list)]
    tokens = [item for item in given if isinstance(item, int)]
    if tokens:
        lists.append(tokens)
    if (texts and lists) or (tokens and len(lists) > 1):
        raise BadCall(f"`{name}` must not mix texts and token ids.", name)
    if any(token < 0 or token >= vocabulary for item in lists if isinstance(item, list) for token in item):
        raise BadCall(f"`{name}` holds a token id that the model does not have.", name)
    return texts or lists


def _sampling(body: _Body, vocabulary: int) -> Sampling:
    names = Sampling.__struct_fields__
    given = {name: getattr(body, name, None) for name in names}
    given["logit_bias"] = _biases(body.logit_bias or {}, vocabulary)
    given["format"] = _format(body.response_format)
    return Sampling(**{name: value for name, value in given.items() if value is not None})


def _biases(given: dict[str, float], vocabulary: int) -> dict[int, float]:
    biases = {}
    for token, bias in given.items():
        if not token.isascii() or not token.isdecimal() or int(token) >= vocabulary:
            raise BadCall(f"`logit_bias` names the token {token[:32]!r}, which the model does not have.", "logit_bias")
        # By OpenAI's word, 100 is a token that must come and -100 one that never does.
        biases[int(token)] = float("-inf") if bias <= -100 else bias
    return biases


def _format(given: _Format | None) -> str | None:
    if given is None or given.type == "text":
        return None
    if given.type == "json_schema" and given.json_schema is not None:
        return msgspec.json.encode(given.json_schema.schema).decode()
    if given.type == "json_object":
        return "json" if given.schema is None else msgspec.json.encode(given.schema).decode()
    raise BadCall(f"There is no response format {given.type[:64]!r} here.", "response_format", "Unsupported")
