"""GPU engines; the CPU only where no GPU engine can take the call, and only what the CPU can serve in time."""

from __future__ import annotations

from collections.abc import Sequence

from router.contract import Ask, Filter, Objective, Removal, View
from router.ranks import before, by_rank, in_order, on_cpu

__all__ = ["FILTERS", "ORDER", "build", "why", "within_reach"]

ORDER = ("vllm", "tensorrt_llm", "triton", "tgi", "llamacpp", "embedded")


def within_reach(ask: Ask, view: View, now: float) -> Removal | None:
    """Keeps calls off a CPU that would miss their SLO; off one without a free slot, where there is no SLO.

    A CPU whose times are not known yet promises nothing: it is judged by its free slots. One that states no number
    of slots is taken to have one.
    """
    if not on_cpu(view.endpoint):
        return None
    wishes = (
        ("ttft", ask.slo.ttft if ask.slo else None, view.ttft),
        ("tpot", ask.slo.tpot if ask.slo else None, view.tpot),
    )
    promised = [(what, wish, seconds) for what, wish, seconds in wishes if wish is not None and seconds is not None]
    for what, wish, seconds in promised:
        if seconds > wish:
            return Removal("over_slo", f"{what} {seconds:.3f} s > {wish:.3f} s")
    if promised and len(promised) == sum(wish is not None for _, wish, _ in wishes):
        return None
    slots = view.endpoint.limits.max_concurrency
    taken = view.sequences + view.foreign(now)
    if taken >= (1 if slots is None else slots):
        return Removal("full", f"{taken} of {1 if slots is None else slots}")
    return None


FILTERS: tuple[Filter, ...] = (within_reach,)


def build() -> Objective:
    """GPU endpoints in `ORDER`, then CPU endpoints in `ORDER`."""
    place = in_order(ORDER)

    def rank(view: View) -> int:
        return place(view) + (len(ORDER) + 1 if on_cpu(view.endpoint) else 0)

    return by_rank(rank)


def why(views: Sequence[View]) -> str:
    """By what order it goes."""
    return f"GPU before CPU, then {before(ORDER)}"
