"""The probe loops: what they see reaches the router, and no single late answer takes an endpoint away."""

from __future__ import annotations

import asyncio
import time

import pytest

from engines import Health
from engines.contract import HealthState
from gateway.contract import Pool
from gateway.fleet import Fleet, Smoother, cause
from gateway.waiting import Waiting
from router import Endpoint, Router
from tests.fakes.scripted import ScriptedEngine, answer

UP, LATE, DOWN, LOADING = (Health(state) for state in ("ready", "degraded", "down", "loading"))


@pytest.mark.parametrize(
    ("probes", "states"),
    [
        ([UP, LATE, LATE, UP], ["ready", "degraded", "degraded", "ready"]),
        ([UP, LATE, LATE, LATE], ["ready", "degraded", "degraded", "down"]),
        ([UP, DOWN, UP], ["ready", "down", "ready"]),
        ([LOADING, LATE, UP], ["loading", "loading", "ready"]),
        ([LATE, LATE, LATE], ["unknown", "unknown", "down"]),
        ([DOWN, LATE, UP], ["down", "down", "ready"]),
        ([UP, LATE, LATE, LATE, LATE, UP], ["ready", "degraded", "degraded", "down", "down", "ready"]),
    ],
)
def test_b16_slow_probes_must_repeat_before_an_endpoint_is_down(
    probes: list[Health], states: list[HealthState]
) -> None:
    smoother = Smoother(misses=3)

    assert [smoother.see(probe) for probe in probes] == states


class Watched:
    """A pool of one scripted engine under a real fleet. `told` is a queue of what the fleet reported."""

    def __init__(self, launched: dict[str, Health] | None = None) -> None:
        self.engine = ScriptedEngine("a", [answer()])
        self.router = Router([Endpoint(name="a", engine="vllm")])
        self.pool = Pool(
            model="m",
            router=self.router,
            waiting=Waiting(self.router, time.monotonic),
            engines={"a": self.engine},
        )
        self.told: asyncio.Queue[tuple[str, str, str]] = asyncio.Queue()
        self.launched = launched or {}
        self.fleet = Fleet(
            {"m": self.pool},
            time.monotonic,
            lambda pool, endpoint, engine, health: self.told.put_nowait((pool, endpoint, health.state)),
            self.launched.get,
            interval=0.01,
            fast=0.01,
        )

    def health(self) -> str:
        return self.router.states(time.monotonic())["a"].health


async def test_a_change_of_health_reaches_the_router_and_is_told_once() -> None:
    watched = Watched()
    watched.fleet.start()

    assert await watched.told.get() == ("m", "a", "ready")
    assert watched.health() == "ready"
    watched.engine.health = DOWN
    assert await watched.told.get() == ("m", "a", "down")
    assert watched.health() == "down"
    await watched.fleet.stop()

    assert watched.told.empty()


async def test_the_cause_of_a_state_reaches_the_router_without_addresses_or_last_words() -> None:
    watched = Watched()
    watched.engine.health = Health("down", "connection refused by http://10.0.0.1:8000/x.")
    watched.fleet.start()

    assert await watched.told.get() == ("m", "a", "down")
    assert watched.router.states(time.monotonic())["a"].why == "connection refused by [url]"
    watched.engine.health = UP
    assert await watched.told.get() == ("m", "a", "ready")
    assert watched.router.states(time.monotonic())["a"].why == ""
    await watched.fleet.stop()

    assert cause(Health("down", "ended with exit code 1; its last words: loading /data/x.gguf")) == (
        "ended with exit code 1"
    )


async def test_an_endpoint_whose_process_is_not_ready_is_not_probed() -> None:
    watched = Watched({"a": LOADING})
    watched.fleet.start()

    assert await watched.told.get() == ("m", "a", "loading")
    watched.launched["a"] = UP
    assert await watched.told.get() == ("m", "a", "ready")
    await watched.fleet.stop()


async def test_stopping_leaves_no_task() -> None:
    watched = Watched()
    before = asyncio.all_tasks()
    watched.fleet.start()
    await watched.told.get()

    await watched.fleet.stop()

    assert asyncio.all_tasks() == before
