"""The static scenario matrix: which engine, by how many calls the pool has in flight. Learns nothing: the reference.

    1-4    TensorRT-LLM (trtllm-serve or Triton), then TGI, then vLLM
    5-15   TGI, then vLLM, then TensorRT-LLM
    16+    vLLM, then TGI, then TensorRT-LLM

The CPU comes after every GPU engine. A call that an engine cannot take goes on to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from router.contract import Ask, Objective, Scored, View
from router.ranks import by_rank, on_cpu

__all__ = ["BANDS", "band", "build", "why"]

BANDS: tuple[tuple[int | None, tuple[frozenset[str], ...]], ...] = (
    (4, (frozenset({"tensorrt_llm", "triton"}), frozenset({"tgi"}), frozenset({"vllm"}))),
    (15, (frozenset({"tgi"}), frozenset({"vllm"}), frozenset({"tensorrt_llm", "triton"}))),
    (None, (frozenset({"vllm"}), frozenset({"tgi"}), frozenset({"tensorrt_llm", "triton"}))),
)
"""Up to so many calls in flight: these engines, best first."""


def band(calls: int) -> int:
    """The index in `BANDS` for so many calls in flight, this one included."""
    for index, (most, _) in enumerate(BANDS):
        if most is None or calls <= most:
            return index
    raise AssertionError("the last band has no upper end")


def build() -> Objective:
    """Rank by the matrix; within a rank the least calls in flight."""
    by_band = [by_rank(_ranker(order), learnt=False) for _, order in BANDS]

    def score(ask: Ask, views: Sequence[View], now: float) -> Mapping[str, Scored]:
        if not views:
            return {}
        return by_band[band(views[0].pool_inflight + 1)](ask, views, now)

    return score


def why(views: Sequence[View]) -> str:
    """In which band the pool is, and who is first there."""
    calls = views[0].pool_inflight + 1
    return f"{calls:,} in flight with this one: {min(BANDS[band(calls)][1][0])} first"


def _ranker(order: Sequence[frozenset[str]]) -> Callable[[View], int]:
    """The rank of an endpoint in one band: GPU engines in order, other GPU engines, the CPU."""
    places = {engine: place for place, engines in enumerate(order) for engine in engines}
    last = len(order)
    return lambda view: last + 1 if on_cpu(view.endpoint) else places.get(view.endpoint.engine, last)
