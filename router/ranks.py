"""What the rank policies share: an order of engines, and within one rank the least burdened endpoint.

A rank is a prior: an order that the field agrees on, used until there is data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from router.contract import Ask, Endpoint, Objective, Scored, View
from router.model import FORGET_S

__all__ = ["ALIKE", "RANK_WEIGHT", "before", "burden", "by_rank", "completion", "in_order", "on_cpu", "slowdowns"]

RANK_WEIGHT = 1e6
"""Weight of one rank in a score: more than any number of calls in flight."""

ALIKE = 0.25
"""Endpoints that are slower than the best by less than this share of its time count as equally fast."""

SLOWEST = 100.0
"""No endpoint counts as slower than this many times, so that slowness never outweighs a rank."""

TYPICAL_OUTPUT = 128
LONGEST_OUTPUT = 256

_TWINS = frozenset({"triton", "embedded"})
"""Other ways to run TensorRT-LLM and llama.cpp; they stand right after them in every order."""

_CPU_ENGINES = frozenset({"llamacpp", "embedded"})


def on_cpu(endpoint: Endpoint) -> bool:
    """llama.cpp runs on the CPU unless tagged "gpu"; everything else does not unless tagged "cpu"."""
    if "gpu" in endpoint.tags:
        return False
    return "cpu" in endpoint.tags or endpoint.engine in _CPU_ENGINES


def in_order(order: Sequence[str]) -> Callable[[View], int]:
    """The place of an endpoint's engine in `order`; engines that it does not name come after all that it does."""
    places = {engine: place for place, engine in enumerate(order)}
    last = len(order)
    return lambda view: places.get(view.endpoint.engine, last)


def before(order: Sequence[str]) -> str:
    """The order in words: "tgi before vllm before llamacpp". Engines of the same family stand for one another."""
    return " before ".join(engine for engine in order if engine not in _TWINS)


def completion(ask: Ask, view: View) -> float | None:
    """Seconds that such a call has been taking there, None where not measured.

    Output is guessed from the cap, since this serves to compare endpoints and not to promise anything.
    """
    if ask.kind != "generate":
        return view.total
    ttft, tpot = view.ttft, view.tpot
    tokens = min(ask.max_tokens or TYPICAL_OUTPUT, LONGEST_OUTPUT)
    if ttft is None or (tpot is None and tokens > 1):
        return None
    return ttft + (tpot or 0.0) * (tokens - 1)


def slowdowns(ask: Ask, views: Sequence[View], now: float) -> list[float]:
    """How many times slower than the fastest each is: 1 for those about as fast.

    One that was never measured is taken to be as slow as the slowest that was: unknown is never best. What was
    measured loses its voice with age, or one bad sample would keep an endpoint from ever being measured again.
    """
    times = [completion(ask, view) for view in views]
    known = [seconds for seconds in times if seconds is not None]
    if not known or min(known) <= 0.0:
        return [1.0] * len(views)
    best = min(known)
    ratios = [
        None if seconds is None else _aged(seconds / best, view.age(now))
        for view, seconds in zip(views, times, strict=True)
    ]
    worst = max(ratio for ratio in ratios if ratio is not None)
    return [worst if ratio is None else ratio for ratio in ratios]


def _aged(ratio: float, age: float) -> float:
    """In steps of `ALIKE`, since differences that are finer are noise, and noise must pin no traffic."""
    return 1.0 + ALIKE * math.floor((min(ratio, SLOWEST) - 1.0) * math.exp(-age / FORGET_S) / ALIKE)


def burden(view: View, now: float) -> int:
    """Calls in flight there, own and foreign."""
    return view.inflight + view.foreign(now)


def by_rank(rank: Callable[[View], int], learnt: bool = True) -> Objective:
    """Score by rank; within a rank by calls in flight, this one included, times measured slowness if `learnt`."""

    def score(ask: Ask, views: Sequence[View], now: float) -> Mapping[str, Scored]:
        ranked: dict[int, list[View]] = {}
        for view in views:
            ranked.setdefault(rank(view), []).append(view)
        scored: dict[str, Scored] = {}
        for place, equals in ranked.items():
            slower = slowdowns(ask, equals, now) if learnt and len(equals) > 1 else [1.0] * len(equals)
            for view, ratio in zip(equals, slower, strict=True):
                calls = burden(view, now)
                scored[view.endpoint.name] = Scored(
                    place * RANK_WEIGHT + (calls + 1) * ratio,
                    {"rank": float(place), "calls": float(calls), "slowdown": ratio},
                )
        return scored

    return score
