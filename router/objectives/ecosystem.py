"""Nearest to the Hugging Face hub: endpoints tagged "hf" (`source: hf`) first, TGI before vLLM."""

from __future__ import annotations

from collections.abc import Sequence

from router.contract import Objective, View
from router.ranks import before, by_rank, in_order

__all__ = ["ORDER", "build", "why"]

ORDER = ("tgi", "vllm", "tensorrt_llm", "triton", "llamacpp", "embedded")


def build() -> Objective:
    """All "hf" endpoints before all others, each group in `ORDER`."""
    place = in_order(ORDER)

    def rank(view: View) -> int:
        return place(view) + (0 if "hf" in view.endpoint.tags else len(ORDER) + 1)

    return by_rank(rank)


def why(views: Sequence[View]) -> str:
    """By what order it goes."""
    return f"hf before others, then {before(ORDER)}"
