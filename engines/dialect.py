"""How one OpenAI-speaking engine differs from OpenAI, as data. Each adapter states its own and nothing more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

__all__ = ["Dialect"]


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """The differences of an engine's request side; answers are normalised alike for all.

    Attributes:
        engine: its name as messages to clients show it.
        max_tokens: the name under which chat takes the output cap. (Completions always takes `max_tokens`.)
        fixed_model: sent as `model` in place of the configured name (TGI: "tgi").
        send_usage: `stream_options.include_usage` may be asked for on (chat, completions). Where it may not,
            the engine sends usage unasked or not at all.
        continuous_usage: knows `stream_options.continuous_usage_stats`; else refused where the client wants it.
        accepts: the only top-level fields that may be sent, by kind; other fields are left out where their value
            has no effect and refused where it has one; a kind that is missing is not served. None: all pass.
        ignores: the fields beside `accepts` that are so treated, where the engine ignores what it does not know:
            others pass, for nobody knows them. None: the engine refuses unknown fields, so all are treated so.
        newer: fields of `accepts` that older builds refuse, so they are left out where the value has no effect.
        drops: fields that are always left out because the engine has no use for them and OpenAI gives them no
            effect on the answer ("user", "store", "metadata", ...), and those that a client tells its own server.
        refuses: field name -> why, for fields whose meaning the engine cannot honour; refused with 400 and `param`
            unless the value has no effect (null, "", [], {}, the field's default; 1 for `n` and `best_of`).
        renames: OpenAI or vLLM name -> this engine's name of the same meaning.
        assistant_content: what an assistant message with tool calls and no content must carry.
        developer_role: the engine knows the role `developer`; else it is sent as `system`.
        named_tool_choice: `tool_choice` may name a function; else it becomes "required" where that function is the
            only tool, and is refused where it is not.
        token_prompt: the prompt of completions may be token ids.
        stop_list: `stop` must be a list. max_stops: at most so many, more are refused.
        top_p_open: `top_p` of exactly 1 is refused by the engine and, since it has no effect, left out.
        zero_presence_penalty: `presence_penalty: 0` would have an effect, so it is left out; other values refused.
        response_format: how the JSON schema is spelt: "openai" or "tgi" (`value` in place of `json_schema`).
        max_top_logprobs: larger values of `top_logprobs` are refused.
    """

    engine: str = "this engine"
    max_tokens: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    fixed_model: str | None = None
    send_usage: tuple[bool, bool] = (True, True)
    continuous_usage: bool = False
    accepts: Mapping[str, frozenset[str]] | None = None
    ignores: frozenset[str] | None = None
    newer: frozenset[str] = frozenset()
    drops: frozenset[str] = frozenset(
        {
            # What Open WebUI tells its own server beside a chat.
            "background_tasks",
            "chat_id",
            "features",
            "files",
            "filter_ids",
            "id",
            "model_item",
            "params",
            "parent_id",
            "parent_message",
            "session_id",
            "tool_ids",
            "tool_servers",
            "user_message",
            "variables",
            # OpenAI's own.
            "metadata",
            "prediction",
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "safety_identifier",
            "service_tier",
            "store",
            "user",
        }
    )
    refuses: Mapping[str, str] = {}
    renames: Mapping[str, str] = {}
    assistant_content: Literal["null", "empty", "absent"] = "null"
    developer_role: bool = False
    named_tool_choice: bool = True
    token_prompt: bool = True
    stop_list: bool = False
    max_stops: int | None = None
    top_p_open: bool = False
    zero_presence_penalty: bool = False
    response_format: Literal["openai", "tgi"] = "openai"
    max_top_logprobs: int | None = None
