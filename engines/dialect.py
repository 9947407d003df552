"""How one OpenAI-speaking engine differs from OpenAI, as data. Each adapter states its own and nothing more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

__all__ = ["Dialect"]


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """The differences of an engine's request side; answers are normalised alike for all.

    Attributes:
        max_tokens: the name under which chat takes the output cap. (Completions always takes `max_tokens`.)
        fixed_model: sent as `model` in place of the configured name (TGI: "tgi").
        send_usage: `stream_options.include_usage` may be asked for on (chat, completions). Where it may not,
            the engine sends usage unasked or not at all.
        accepts: the only top-level fields that may be sent, by kind; None: unknown ones are ignored there.
        drops: fields that are always left out because the engine has no use for them and OpenAI gives them no
            effect on the answer ("user", "store", "metadata", ...).
        refuses: field name -> why, for fields whose meaning the engine cannot honour; refused with 400 and `param`
            unless the value has no effect (null, false, 0, "", [], {}; and 1 for `n` and `best_of`).
        renames: OpenAI or vLLM name -> this engine's name of the same meaning.
        assistant_content: what an assistant message with tool calls and no content must carry.
        developer_role: the engine knows the role `developer`; else it is sent as `system`.
        stop_list: `stop` must be a list. max_stops: at most so many, more are refused.
        top_p_open: `top_p` of 1 (and more) is refused by the engine and therefore left out.
        zero_presence_penalty: `presence_penalty: 0` would have an effect, so it is left out; other values refused.
        response_format: how the JSON schema is spelt: "openai" or "tgi" (`value` in place of `json_schema`).
        max_top_logprobs: larger values of `top_logprobs` are refused.
    """

    max_tokens: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    fixed_model: str | None = None
    send_usage: tuple[bool, bool] = (True, True)
    accepts: Mapping[str, frozenset[str]] | None = None
    drops: frozenset[str] = frozenset(
        {"user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key"}
    )
    refuses: Mapping[str, str] = {}
    renames: Mapping[str, str] = {}
    assistant_content: Literal["null", "empty", "absent"] = "null"
    developer_role: bool = False
    stop_list: bool = False
    max_stops: int | None = None
    top_p_open: bool = False
    zero_presence_penalty: bool = False
    response_format: Literal["openai", "tgi"] = "openai"
    max_top_logprobs: int | None = None
