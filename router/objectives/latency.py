"""Least time for this call: compiled kernels first."""

from __future__ import annotations

from router.contract import Objective
from router.ranks import by_rank, in_order

__all__ = ["ORDER", "build"]

ORDER = ("tensorrt_llm", "triton", "vllm", "tgi", "llamacpp", "embedded")


def build() -> Objective:
    """Engines in `ORDER`; within one engine the measured time and the calls in flight decide."""
    return by_rank(in_order(ORDER))
