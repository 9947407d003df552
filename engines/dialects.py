"""The dialects of the four engines that speak OpenAI over HTTP: what each of them does otherwise."""

from __future__ import annotations

from engines.dialect import Dialect
from engines.known import KNOWN, LLAMACPP_SAMPLING, OPENAI_ONLY

__all__ = ["LLAMACPP", "TENSORRT_LLM", "TGI", "VLLM"]

_GUIDED = "vLLM ignores this field since 0.12; use response_format (or structured_outputs), which constrains the answer"

VLLM = Dialect(
    engine="vLLM",
    continuous_usage=True,
    # Open WebUI's word of this name is vLLM's too.
    drops=Dialect().drops - {"session_id"},
    refuses={
        **OPENAI_ONLY,
        **dict.fromkeys(LLAMACPP_SAMPLING, "it is llama.cpp's, and vLLM would ignore it"),
        # Deprecated, then silently without effect: an unconstrained answer must not pass for a constrained one.
        **dict.fromkeys(
            ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_whitespace_pattern"), _GUIDED
        ),
        "best_of": "vLLM returns every choice that it makes; use n",
    },
)

# TGI ignores every field that it does not know, without a word, so of those that mean something what may be sent is
# listed.
TGI = Dialect(
    engine="TGI",
    fixed_model="tgi",
    send_usage=(True, False),
    accepts={
        "chat": frozenset(
            {
                "frequency_penalty",
                "logprobs",
                "max_tokens",
                "messages",
                "model",
                "presence_penalty",
                "response_format",
                "seed",
                "stop",
                "stream",
                "stream_options",
                "temperature",
                "tool_choice",
                "tool_prompt",
                "tools",
                "top_logprobs",
                "top_p",
            }
        ),
        "completions": frozenset(
            {
                "frequency_penalty",
                "max_tokens",
                "model",
                "prompt",
                "repetition_penalty",
                "seed",
                "stop",
                "stream",
                "temperature",
                "top_p",
            }
        ),
    },
    ignores=KNOWN,
    # One tool call at most is all that TGI ever makes, so `parallel_tool_calls` is honoured whatever it says.
    drops=Dialect().drops | {"parallel_tool_calls"},
    refuses={
        **OPENAI_ONLY,
        "logit_bias": "TGI does not apply it",
        "n": "TGI makes one choice per request",
        "best_of": "TGI makes one choice per request",
        "suffix": "TGI does not fill in the middle",
        "echo": "TGI does not return the prompt",
    },
    assistant_content="absent",
    token_prompt=False,
    stop_list=True,
    max_stops=4,
    top_p_open=True,
    zero_presence_penalty=True,
    response_format="tgi",
    max_top_logprobs=5,
)

_UNKNOWN = "llama.cpp has no such parameter and would ignore it"
_OWN_NAME = "it is the engine's own name of another field"

LLAMACPP = Dialect(
    engine="llama.cpp",
    renames={"repetition_penalty": "repeat_penalty"},
    refuses={
        **OPENAI_ONLY,
        "n_predict": f"{_OWN_NAME}; use max_tokens",
        "n_cmpl": f"{_OWN_NAME}; use n",
        "n_probs": f"{_OWN_NAME}; use logprobs",
        **dict.fromkeys(
            (
                "add_special_tokens",
                "allowed_token_ids",
                "bad_words",
                "best_of",
                "chat_template",
                "dimensions",
                "documents",
                "echo",
                "guided_choice",
                "guided_grammar",
                "guided_json",
                "guided_regex",
                "include_reasoning",
                "include_stop_str_in_output",
                "length_penalty",
                "logprob_token_ids",
                "min_tokens",
                "priority",
                "prompt_embeds",
                "prompt_logprobs",
                "return_token_ids",
                "skip_special_tokens",
                "spaces_between_special_tokens",
                "stop_token_ids",
                "structured_outputs",
                "suffix",
                "truncate_prompt_tokens",
                "use_beam_search",
            ),
            _UNKNOWN,
        ),
    },
    named_tool_choice=False,
)

_TENSORRT_LLM_BOTH = frozenset(
    {
        "add_special_tokens",
        "best_of",
        "disaggregated_params",
        "early_stopping",
        "echo",
        "frequency_penalty",
        "ignore_eos",
        "include_stop_str_in_output",
        "length_penalty",
        "logit_bias",
        "logprobs",
        "lora_request",
        "min_p",
        "min_tokens",
        "model",
        "n",
        "presence_penalty",
        "priority",
        "prompt_ignore_length",
        "repetition_penalty",
        "response_format",
        "seed",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "stop",
        "stop_token_ids",
        "stream",
        "stream_options",
        "temperature",
        "top_k",
        "top_p",
        "top_p_min",
        "truncate_prompt_tokens",
        "use_beam_search",
    }
)

# trtllm-serve answers 400 to any field that it does not know.
TENSORRT_LLM = Dialect(
    engine="TensorRT-LLM",
    max_tokens="max_completion_tokens",
    continuous_usage=True,
    accepts={
        "chat": _TENSORRT_LLM_BOTH
        | {
            "add_generation_prompt",
            "cache_salt",
            "chat_template",
            "chat_template_kwargs",
            "documents",
            "max_completion_tokens",
            "media_io_kwargs",
            "messages",
            "mm_processor_kwargs",
            "parallel_tool_calls",
            "reasoning_effort",
            "thinking",
            "thinking_token_budget",
            "tool_choice",
            "tools",
            "top_logprobs",
        },
        "completions": _TENSORRT_LLM_BOTH | {"detokenize", "max_tokens", "prompt", "return_context_logits", "suffix"},
    },
    newer=frozenset({"parallel_tool_calls", "priority"}),
    refuses={**OPENAI_ONLY, "suffix": "TensorRT-LLM does not fill in the middle"},
)
