"""Least time for this call: compiled kernels first."""

from __future__ import annotations

from collections.abc import Sequence

from router.contract import Objective, View
from router.ranks import before, by_rank, in_order

__all__ = ["ORDER", "build", "why"]

ORDER = ("tensorrt_llm", "triton", "vllm", "tgi", "llamacpp", "embedded")


def build() -> Objective:
    """Engines in `ORDER`; within one engine the measured time and the calls in flight decide."""
    return by_rank(in_order(ORDER))


def why(views: Sequence[View]) -> str:
    """By what order it goes."""
    return before(ORDER)
