"""Made-up pools, calls and attempts for tests of what is seen of a call."""

from __future__ import annotations

import time
from typing import Any

from engines import Attempt, Call, Engine, Health, Load, Sink
from gateway.contract import Observation, Pool, Served
from gateway.waiting import Waiting
from router import Candidate, Decision, EndpointState, Router

__all__ = ["NamedEngine", "StandingRouter", "decision", "observation", "pool", "served"]


class NamedEngine:
    """An engine of which only the name and the kind matter."""

    def __init__(self, name: str, kind: str) -> None:
        self.name = name
        self.kind = kind

    def open(self, call: Call, sink: Sink) -> Attempt:
        raise AssertionError("nothing is sent in these tests")

    async def probe(self) -> Health:
        raise AssertionError("nothing is probed in these tests")

    async def aclose(self) -> None:
        return None


class StandingRouter(Router):
    """A router whose states a test writes down. `asked` holds the times at which it was asked."""

    def __init__(self, states: dict[str, EndpointState]) -> None:
        self.written = states
        self.asked: list[float] = []

    def states(self, now: float) -> dict[str, EndpointState]:
        self.asked.append(now)
        return self.written


def pool(model: str = "m", **endpoints: str) -> Pool:
    """A pool; keywords are endpoint name = engine kind, with `_` for `-`."""
    kinds = {name.replace("_", "-"): kind for name, kind in (endpoints or {"vllm_0": "vllm"}).items()}
    engines: dict[str, Engine] = {name: NamedEngine(name, kind) for name, kind in kinds.items()}
    state = EndpointState(
        health="ready",
        breaker="closed",
        eligible=True,
        inflight=3,
        waiting=1,
        context_tokens=900,
        queued_tokens=70,
        load=Load(running=5, kv_used=0.5),
    )
    router = StandingRouter(dict.fromkeys(kinds, state))
    return Pool(
        model=model,
        router=router,
        waiting=Waiting(router, time.monotonic),
        engines=engines,
        allowed_policies=frozenset({"latency"}),
    )


def observation(**changes: Any) -> Observation:
    return Observation(
        **{
            "call": "c1",
            "attempt": "c1",
            "model": "m",
            "engine": "vllm",
            "endpoint": "vllm-0",
            "policy": "adaptive",
            "kind": "chat",
            "stream": True,
            "outcome": "ok",
            "started": 1_700_000_000.0,
            "queue_wait": 0.002,
            "total": 1.5,
            "call_ttft": 0.052,
            "attempt_ttft": 0.05,
            "tpot": 0.02,
            "itl_p50": 0.02,
            "itl_p99": 0.03,
            "itl_max": 0.09,
            "prompt_tokens": 12,
            "output_tokens": 70,
            "cached_tokens": 4,
            "bytes_in": 500,
            "bytes_out": 9_000,
            "finish": "stop",
            "predicted_ttft": 0.06,
            "predicted_tpot": 0.02,
        }
        | changes
    )


def decision(**changes: Any) -> Decision:
    candidates = {
        "vllm-0": Candidate(name="vllm-0", engine="vllm", ttft=0.06, score=0.1),
        "tgi-0": Candidate(name="tgi-0", engine="tgi", removed_by="too_long", detail="2,310 > 2,048"),
    }
    return Decision(
        **{
            "id": "c1",
            "attempt": "c1",
            "action": "send",
            "endpoint": "vllm-0",
            "ranking": ("vllm-0",),
            "candidates": candidates,
            "policy": "adaptive",
        }
        | changes
    )


def served(**changes: Any) -> Served:
    return Served(
        **{
            "call": "c1",
            "request_id": "r1",
            "model": "m",
            "kind": "chat",
            "stream": True,
            "policy": "adaptive",
            "status": 200,
            "outcome": "ok",
            "started": 1_700_000_000.0,
            "total": 1.6,
            "overhead": 0.0004,
            "endpoint": "vllm-0",
            "engine": "vllm",
            "observations": (observation(),),
            "decisions": (decision(),),
        }
        | changes
    )
