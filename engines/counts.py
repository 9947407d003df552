"""Token counts and timings as engines state them in an answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec

from engines.contract import Timings, Usage
from engines.rawjson import UNREADABLE, encode

__all__ = ["add_usages", "encode_usage", "read_timings", "read_usage"]


# What is learnt, summed and exported must be a number that can be: an engine's -5 or 10^400 counts as not given.
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class _PromptDetails(msgspec.Struct):
    cached_tokens: _Count | None = None


class _CompletionDetails(msgspec.Struct):
    reasoning_tokens: _Count | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None


class _Timings(msgspec.Struct):
    prompt_ms: _Milliseconds | None = None
    predicted_ms: _Milliseconds | None = None


_usage = msgspec.json.Decoder(_Usage)
_timings = msgspec.json.Decoder(_Timings)


def read_usage(raw: msgspec.Raw | bytes | None) -> Usage | None:
    """The token counts of a `usage` member; None where it is absent, null or not of its type."""
    if raw is None:
        return None
    try:
        usage = _usage.decode(raw)
    except UNREADABLE:
        return None
    prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=prompt.cached_tokens if prompt is not None else None,
        reasoning_tokens=completion.reasoning_tokens if completion is not None else None,
    )


def read_timings(raw: msgspec.Raw | bytes | None) -> Timings | None:
    """llama.cpp's `timings` in seconds; None where it is absent or not of its type."""
    if raw is None:
        return None
    try:
        timings = _timings.decode(raw)
    except UNREADABLE:
        return None
    prefill, decode = timings.prompt_ms, timings.predicted_ms
    return Timings(
        prefill=prefill / 1000 if prefill is not None else None,
        decode=decode / 1000 if decode is not None else None,
    )


def add_usages(usages: Iterable[tuple[Usage, bool]]) -> Usage:
    """The sum of the counts that an engine gave per choice; the prompt's only where the flag says it is another's."""
    prompt = completion = cached = reasoning = None
    for usage, new_prompt in usages:
        completion = _add(completion, usage.completion_tokens)
        reasoning = _add(reasoning, usage.reasoning_tokens)
        if new_prompt:
            prompt = _add(prompt, usage.prompt_tokens)
            cached = _add(cached, usage.cached_tokens)
    return Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached, reasoning_tokens=reasoning)


def encode_usage(usage: Usage) -> bytes:
    """OpenAI's `usage` object of these counts."""
    prompt, completion = usage.prompt_tokens or 0, usage.completion_tokens or 0
    counts: dict[str, object] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    if usage.cached_tokens is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
    if usage.reasoning_tokens is not None:
        counts["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return encode(counts)


def _add(total: int | None, more: int | None) -> int | None:
    if more is None:
        return total
    return more if total is None else total + more
