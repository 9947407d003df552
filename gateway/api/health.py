"""`GET /health`: the process lives. `GET /ready`: some endpoint can take a call now, else 503 and why not."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from litestar import Response
from litestar.handlers import HTTPRouteHandler

from gateway.api.reading import Asked, reading, respond
from gateway.contract import House, Pool

__all__ = ["routes"]


def routes(house: House) -> list[HTTPRouteHandler]:
    """The handlers of this file. Open to all: probes have no keys; no address is shown."""

    async def health(request: Asked) -> Response[bytes]:
        return respond(request, b'{"status":"ok"}')

    async def ready(request: Asked) -> Response[bytes]:
        now = time.monotonic()
        pools = {name: _standing(pool, now) for name, pool in house.pools.items()}
        good = any(pool["ready"] for pool in pools.values())
        body = msgspec.json.encode({"status": "ready" if good else "not_ready", "pools": pools})
        headers = {} if good else {"retry-after": "1"}
        return respond(request, body, status=200 if good else 503, headers=headers)

    return [reading(["/health"], health), reading(["/ready"], ready)]


def _standing(pool: Pool, now: float) -> dict[str, Any]:
    states = pool.router.states(now)
    endpoints = {
        name: {"health": state.health, "breaker": state.breaker, "eligible": state.eligible}
        | ({"why": state.why} if state.why else {})
        for name, state in states.items()
    }
    ready = any(state.eligible for state in states.values())
    if ready:
        return {"ready": True, "endpoints": endpoints}
    why = [
        f"{name} is {state.health}"
        + (f" ({state.why})" if state.why else "")
        + (f" with its breaker {state.breaker}" if state.breaker != "closed" else "")
        for name, state in states.items()
    ]
    return {"ready": False, "reason": "; ".join(why) or "the pool has no endpoints", "endpoints": endpoints}
