"""Keeps an ask from engines whose context it does not fit."""

from __future__ import annotations

from router.contract import Ask, Removal, View

__all__ = ["judge"]


def judge(ask: Ask, view: View, now: float) -> Removal | None:
    """`too_long` where the prompt, or the prompt with the output asked for, is over what the endpoint takes."""
    limits = view.endpoint.limits
    if limits.max_input_tokens is not None and ask.prompt_tokens > limits.max_input_tokens:
        return Removal("too_long", f"{ask.prompt_tokens:,} > {limits.max_input_tokens:,}")
    if limits.max_total_tokens is not None:
        total = ask.prompt_tokens + (ask.max_tokens or 0)
        if total > limits.max_total_tokens:
            return Removal("too_long", f"{total:,} > {limits.max_total_tokens:,}")
    return None
