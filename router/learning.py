"""What a call that ended well teaches of its endpoint."""

from __future__ import annotations

import msgspec

from router.model import Model
from router.state import Live

__all__ = ["SPLIT_WEIGHT", "Ending", "learn"]

SPLIT_WEIGHT = 0.3
"""A call that told its total alone teaches less than one whose first token was seen."""


class Ending(msgspec.Struct, frozen=True):
    """What `Router.finish` was told, beside the outcome: tokens by the engine's count, seconds, and a time."""

    output_tokens: int | None = None
    last_token: float | None = None
    engine_prefill: float | None = None
    engine_decode: float | None = None


def learn(model: Model, live: Live, ending: Ending, now: float) -> None:
    """Train by one successful attempt. Its first token, where one was seen, was learnt when it came.

    A call that streamed teaches its TPOT. One that did not teaches by the engine's own timings, which leave TTFT as
    what remains of the total (so with the queue in it), else by its total. Embeddings and the like teach a total.
    """
    total = now - live.dispatched
    if live.kind != "generate":
        model.total.add(total, now)
        return
    # Tokens of one sequence: those of several are put out side by side.
    tokens = (ending.output_tokens or 0) / max(1, live.sequences)
    if live.first is not None:
        if tokens >= 2.0:
            last = now if ending.last_token is None else ending.last_token
            model.tpot.add((last - live.first) / (tokens - 1.0), now)
    elif live.stream:
        return
    elif ending.engine_decode is not None:
        model.ttft.add(max(total - ending.engine_decode, ending.engine_prefill or 0.0), now)
        if tokens >= 2.0:
            model.tpot.add(ending.engine_decode / (tokens - 1.0), now)
    elif tokens >= 1.0:
        model.split(total, tokens, now, SPLIT_WEIGHT)
