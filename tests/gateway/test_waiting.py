"""Calls that wait: woken in turn, by events or by the router's own time, and never woken into the void."""

from __future__ import annotations

import asyncio
import time

from gateway.waiting import Waiting
from router import Ask, Decision, Endpoint, Limits, Router


def places(count: int) -> tuple[Router, Waiting]:
    router = Router([Endpoint(name="a", engine="vllm", limits=Limits(max_concurrency=count))])
    router.set_health("a", "ready", time.monotonic())
    return router, Waiting(router, time.monotonic)


def decide(router: Router, id: str, deadline: float | None = None) -> Decision:
    now = time.monotonic()
    return router.decide(Ask(id=id, arrived=now, deadline=deadline), now)


async def test_a_freed_place_wakes_the_first_that_waits() -> None:
    router, waiting = places(1)
    running, first, second = (decide(router, id) for id in ("r", "w1", "w2"))
    assert (running.action, first.action, second.action) == ("send", "wait", "wait")
    sleepers = [asyncio.ensure_future(waiting.settled(decision)) for decision in (first, second)]
    await asyncio.sleep(0)

    router.finish(running.attempt, time.monotonic())
    waiting.pump()

    woken = await sleepers[0]
    assert (woken.id, woken.action, woken.endpoint) == ("w1", "send", "a")
    assert not sleepers[1].done()
    sleepers[1].cancel()
    waiting.close()


async def test_a_place_freed_before_the_loop_has_turned_is_not_lost() -> None:
    router, waiting = places(2)
    running = [decide(router, id) for id in ("r1", "r2")]
    sleepers = [asyncio.ensure_future(waiting.settled(decide(router, "w1")))]
    await asyncio.sleep(0)
    sleepers.append(asyncio.ensure_future(waiting.settled(decide(router, "w2"))))

    # In the same step of the loop in which the second call came.
    for decision in running:
        router.finish(decision.attempt, time.monotonic())
    waiting.pump()

    assert [(await asyncio.wait_for(sleeper, 5)).endpoint for sleeper in sleepers] == ["a", "a"]
    assert router.states(time.monotonic())["a"].inflight == 2
    waiting.close()


async def test_a_deadline_wakes_by_itself() -> None:
    router, waiting = places(1)
    decide(router, "r")
    late = decide(router, "w", deadline=time.monotonic() + 0.02)

    settled = await waiting.settled(late)

    assert settled.action == "reject"
    waiting.close()


async def test_a_place_given_to_a_call_that_has_left_is_given_back() -> None:
    router, waiting = places(1)
    running, left, other = decide(router, "r"), decide(router, "w1"), decide(router, "w2")
    sleeper = asyncio.ensure_future(waiting.settled(left))
    stays = asyncio.ensure_future(waiting.settled(other))
    await asyncio.sleep(0)
    sleeper.cancel()
    await asyncio.gather(sleeper, return_exceptions=True)

    router.finish(running.attempt, time.monotonic())
    waiting.pump()

    assert (await stays).endpoint == "a"
    assert router.states(time.monotonic())["a"].inflight == 1
    waiting.close()
