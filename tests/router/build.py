"""Small fleets for the router's tests."""

from __future__ import annotations

from collections.abc import Iterable

from router import Ask, Decision, Endpoint, Limits, Router
from router.state import Standing, Tally

__all__ = ["ask", "endpoint", "fill", "gauges", "measure", "names", "ready", "removals", "standing"]


def endpoint(name: str, engine: str = "vllm", *tags: str, slots: int | None = None, **limits: object) -> Endpoint:
    return Endpoint(name, engine, Limits(max_concurrency=slots, **limits), frozenset(tags))  # type: ignore[arg-type]


def ready(*endpoints: Endpoint, policy: str = "least_requests", seed: int = 0) -> Router:
    """A router all of whose endpoints are ready at time 0."""
    router = Router(endpoints, policy=policy, seed=seed)
    for one in endpoints:
        router.set_health(one.name, "ready", 0.0)
    return router


def ask(id: str = "r1", **fields: object) -> Ask:
    return Ask(id, **fields)  # type: ignore[arg-type]


def fill(router: Router, count: int, now: float, prefix: str = "f", **fields: object) -> list[Decision]:
    """Send so many calls and leave them in flight."""
    decisions = [router.decide(ask(f"{prefix}{number}", **fields), now) for number in range(count)]
    assert all(decision.action == "send" for decision in decisions)
    return decisions


def measure(router: Router, name: str, ttft: float, tpot: float, now: float, times: int = 5) -> None:
    """Let an endpoint be measured through mirrored calls, which leave no trace but that."""
    for number in range(times):
        attempt = router.mirror(ask(f"m{name}{number}"), name, now)
        router.first_token(attempt, now + ttft)
        last = now + ttft + 10 * tpot
        router.finish(attempt, last, output_tokens=11, last_token=last)


def standing(one: Endpoint, health: str = "ready") -> Standing:
    """An endpoint as filters and objectives see it."""
    view = Standing(one, Tally())
    view.health, view.health_at = health, 0.0
    return view


def names(decisions: Iterable[Decision]) -> list[str | None]:
    return [decision.endpoint for decision in decisions]


def gauges(router: Router, name: str, now: float = 0.0) -> tuple[int, int, int, int]:
    state = router.states(now)[name]
    return state.inflight, state.waiting, state.context_tokens, state.queued_tokens


def removals(decision: Decision) -> dict[str, str | None]:
    return {name: candidate.removed_by for name, candidate in decision.candidates.items()}
