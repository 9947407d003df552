"""Most tokens over all calls: the engines that batch best first."""

from __future__ import annotations

from router.contract import Objective
from router.ranks import by_rank, in_order

__all__ = ["ORDER", "build"]

ORDER = ("vllm", "tensorrt_llm", "triton", "tgi", "llamacpp", "embedded")


def build() -> Objective:
    """Engines in `ORDER`; within one engine the measured time and the calls in flight decide."""
    return by_rank(in_order(ORDER))
