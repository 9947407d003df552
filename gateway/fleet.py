"""Watches every endpoint and tells its router what it sees. It decides nothing.

Each endpoint has one probe loop of its own, so that a hanging one delays no other. A refused connection is down at
once; a slow or failing answer must repeat before it counts, because a busy engine answers its health route late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from engines import Engine, Health
from engines.contract import HealthState
from engines.said import safe
from gateway.contract import Pool

__all__ = ["Fleet", "Smoother", "cause"]

CAUSE_MAX = 120  # characters

Tell = Callable[[str, str, str, Health], None]
"""Takes (pool, endpoint, engine kind, health) at each change of state."""


def cause(health: Health) -> str:
    """Why an endpoint is as it is, fit for clients: no address, path or secret, and no last words of a process."""
    return safe(health.why.partition(";")[0]).removesuffix(".")[:CAUSE_MAX]


class Smoother:
    """Turns single probes into a state. `misses` failing probes in a row make an endpoint that was up go down."""

    def __init__(self, misses: int = 3) -> None:
        self.state: HealthState = "unknown"
        self._misses = misses
        self._missed = 0

    def see(self, health: Health) -> HealthState:
        if health.state != "degraded":
            self._missed = 0
            self.state = health.state
            return self.state
        self._missed += 1
        if self.state in ("ready", "degraded"):
            self.state = "down" if self._missed >= self._misses else "degraded"
        else:
            # An endpoint that was never seen ready is not made usable by a probe that failed.
            self.state = "down" if self.state == "down" or self._missed >= self._misses else self.state
        return self.state


class Fleet:
    """The probe loops of all pools.

    Args:
        pools: what to watch.
        clock: monotonic seconds, the house's.
        tell: hears of each change of state.
        launched: the launcher's word on an endpoint that it starts, None for the others. Until its process is ready
            there is nothing to probe.
        interval: seconds between probes of a ready endpoint. fast: of one that is not.

    Attributes:
        last: what was seen last of each endpoint, by name.
    """

    def __init__(
        self,
        pools: dict[str, Pool],
        clock: Callable[[], float],
        tell: Tell,
        launched: Callable[[str], Health | None] = lambda name: None,
        interval: float = 5.0,
        fast: float = 0.5,
    ) -> None:
        self._pools = pools
        self._clock = clock
        self._tell = tell
        self._launched = launched
        self._interval = interval
        self._fast = fast
        self._tasks: list[asyncio.Task[None]] = []
        self.last: dict[str, Health] = {}
        self._unseen: set[str] = set()
        self._all_seen = asyncio.Event()

    async def seen(self) -> None:
        """Return when every endpoint was looked at once."""
        await self._all_seen.wait()

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        for pool in self._pools.values():
            for engine in pool.engines.values():
                self._unseen.add(engine.name)
                self._tasks.append(loop.create_task(self._watch(pool, engine), name=f"probe {engine.name}"))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def _watch(self, pool: Pool, engine: Engine) -> None:
        smoother = Smoother()
        told: HealthState = "unknown"
        while True:
            health = self._launched(engine.name) or Health("ready")
            if health.state == "ready":
                health = await engine.probe()
            state = smoother.see(health)
            pool.router.set_health(engine.name, state, self._clock(), cause(health))
            pool.waiting.pump()
            self.last[engine.name] = Health(state, health.why)
            self._unseen.discard(engine.name)
            if not self._unseen:
                self._all_seen.set()
            if state != told:
                told = state
                self._tell(pool.model, engine.name, engine.kind, self.last[engine.name])
            await asyncio.sleep(self._interval if state == "ready" else self._fast)
