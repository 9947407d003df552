"""The request fields that some engine's contract knows, beside those that all four share.

A field that is in none of these is nobody's: it goes out as it came to engines that ignore such fields.
"""

from __future__ import annotations

from typing import Final

__all__ = ["KNOWN", "LLAMACPP_SAMPLING", "OPENAI_ONLY"]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


OPENAI_ONLY: Final = {
    "audio": "it answers in text only",
    "function_call": "use tool_choice",
    "functions": "use tools",
    "modalities": "it answers in text only",
    "moderation": "it moderates nothing",
    "verbosity": "it would ignore it; ask for it in the prompt",
    "web_search_options": "it does not search the web",
}
"""Fields of OpenAI's that mean something and that no engine honours -> why, or what to use instead."""

LLAMACPP_SAMPLING: Final = _names(
    "dry_multiplier dynatemp_range grammar json_schema mirostat repeat_penalty samplers top_n_sigma typical_p"
    " xtc_probability"
)
"""llama.cpp's own fields that change the answer."""

_OPENAI: Final = _names(
    "best_of dimensions echo encoding_format frequency_penalty logit_bias logprobs max_completion_tokens max_tokens n"
    " parallel_tool_calls presence_penalty reasoning_effort response_format seed stop stream stream_options suffix"
    " temperature tool_choice tools top_logprobs top_p"
)
_VLLM: Final = _names(
    "add_generation_prompt add_special_tokens allowed_token_ids bad_words cache_salt chat_template chat_template_kwargs"
    " continue_final_message documents guided_choice guided_grammar guided_json guided_regex guided_whitespace_pattern"
    " ignore_eos include_reasoning include_stop_str_in_output length_penalty logprob_token_ids media_io_kwargs min_p"
    " min_tokens mm_processor_kwargs priority prompt_embeds prompt_logprobs repetition_detection repetition_penalty"
    " return_prompt_text return_token_ids return_tokens_as_token_ids skip_special_tokens spaces_between_special_tokens"
    " stop_token_ids stream_interval structured_outputs thinking_token_budget top_k truncate_prompt_tokens"
    " truncation_side use_beam_search vllm_xargs"
)
_LLAMACPP: Final = LLAMACPP_SAMPLING | {"n_cmpl", "n_predict", "n_probs", "reasoning_format", "thinking_budget_tokens"}
_TENSORRT_LLM: Final = _names(
    "detokenize early_stopping lora_request prompt_ignore_length prompt_token_ids return_context_logits thinking"
    " top_p_min"
)
_TGI: Final = frozenset({"tool_prompt", "adapter_id", "do_sample", "max_new_tokens", "truncate", "watermark"})

KNOWN: Final = frozenset(OPENAI_ONLY) | _OPENAI | _VLLM | _LLAMACPP | _TENSORRT_LLM | _TGI
"""Every field that changes what an engine answers, on some engine. Such a field is never left to be ignored by TGI."""
