"""Least memory: small formats and static plans before large pools."""

from __future__ import annotations

from router.contract import Objective
from router.ranks import by_rank, in_order

__all__ = ["ORDER", "build"]

ORDER = ("llamacpp", "embedded", "tensorrt_llm", "triton", "vllm", "tgi")


def build() -> Objective:
    """Engines in `ORDER`; within one engine the measured time and the calls in flight decide."""
    return by_rank(in_order(ORDER))
