"""B09 and B10 through the whole gateway: clients that leave, in every state of a call, and what is left of them."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import psutil
import pytest

from tests.e2e.inside import FAKES, WAIT, Home, Reply, chat, house, pool, settled
from tests.e2e.scripts import HEAD, ROLE, token
from tests.fakes.engine import FakeEngine
from tests.fakes.server import Peer, chunked
from tests.fakes.vllm import FakeVllm

STATES: dict[str, tuple[bool, int | str]] = {
    "mid-stream": (True, 3),
    "before the first token": (True, 0),
    "before the head": (True, "head"),
    "without a stream": (False, "head"),
}


@asynccontextmanager
async def held(fake: FakeEngine, home: Home, state: str) -> AsyncIterator[Reply]:
    """A call that its engine holds in this state, the answer read as far as it came."""
    stream, fake.pause_at = STATES[state]  # type: ignore[assignment] # typed as what a test may give
    fake.paused.clear()
    count = len(fake.requests)
    async with home.wire() as reply:
        await reply.send(home.request(chat(stream=stream)))
        if state == "mid-stream":
            await reply.head()
            await reply.event()
        async with asyncio.timeout(WAIT):
            await fake.arrived(count + 1)
            await fake.paused.wait()
        yield reply


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", FAKES)
async def test_b09_the_engine_sees_at_once_that_the_client_is_gone(tmp_path: Path, kind: str, state: str) -> None:
    async with FAKES[kind]() as fake, house(tmp_path, pool("m", fake)) as home:
        async with held(fake, home, state) as reply:
            assert home.inflight() == 1
            gone = fake.peer_gone
            reply.leave()
            async with asyncio.timeout(WAIT):
                await gone.wait()
        served = await home.told(1)
        assert served.outcome == "cancelled"
        assert served.status == (200 if state == "mid-stream" else 499)
        assert [seen.outcome for seen in served.observations] == ["cancelled"]
        assert home.inflight() == 0
        [standing] = home.gateway.pools["m"].router.states(0.0).values()
        assert (standing.breaker, standing.eligible) == ("closed", True), "it is no failure of the engine"
        page = await home.metrics()
        assert page.total("enginehouse_client_gone_total") == 1
        assert page.total("enginehouse_attempts_total", outcome="cancelled") == 1
        assert page.total("enginehouse_attempts_total") == 1
        assert page.total("enginehouse_in_flight") == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_b09_eight_parallel_clients_that_leave_free_eight_places(tmp_path: Path, stream: bool) -> None:
    limits = {"limits": {"max_concurrency": 8}}
    async with FakeVllm(pause_at="head") as fake, house(tmp_path, pool("m", fake, options=limits)) as home:
        before = len(fake.requests)
        async with AsyncExitStack() as stack:
            replies = [await stack.enter_async_context(home.wire()) for _ in range(8)]
            for reply in replies:
                await reply.send(home.request(chat(stream=stream)))
            async with asyncio.timeout(WAIT):
                await fake.arrived(before + 8)
            assert home.inflight() == 8
            for reply in replies:
                reply.leave()
            async with asyncio.timeout(WAIT):
                await asyncio.gather(*(request.gone.wait() for request in fake.requests[before:]))
        await home.told(8)
        assert home.inflight() == 0
        fake.gate.set()
        async with home.ask(chat(stream=stream)) as reply:
            assert reply.status == 200, "the places are free again"


async def test_b09_a_call_that_waits_for_a_place_is_never_sent_for_a_client_that_left(tmp_path: Path) -> None:
    limits = {"limits": {"max_concurrency": 1}}
    async with FakeVllm(pause_at="head") as fake, house(tmp_path, pool("m", fake, options=limits)) as home:
        async with home.wire() as first, home.wire() as second:
            before = len(fake.requests)
            await first.send(home.request(chat(stream=True)))
            async with asyncio.timeout(WAIT):
                await fake.arrived(before + 1)
            await second.send(home.request(chat(stream=True)))
            await home.get("/health")  # the second call was read by then
            second.leave()
            assert (await home.told(1)).outcome == "cancelled"
            fake.gate.set()
            await first.head()
            await first.rest()
            await home.told(2)
        assert len(fake.requests) == before + 1
        assert home.inflight() == 0
        assert not home.gateway.pools["m"].router.wake(time.monotonic()), "nothing of it is queued any more"


class Baseline:
    """What the process holds: descriptors, tasks, connections to engines and from clients."""

    def __init__(self, home: Home, fake: FakeEngine) -> None:
        self._home = home
        self._fake = fake
        self._process = psutil.Process()
        self.descriptors, self.tasks = self._held()

    def _held(self) -> tuple[int, int]:
        return self._process.num_fds(), len(asyncio.all_tasks())

    def back(self) -> bool:
        descriptors, tasks = self._held()
        return descriptors <= self.descriptors and tasks <= self.tasks and not self._fake.connections


@pytest.mark.parametrize("state", [*STATES, "blocked by a slow client"])
async def test_b10_hundreds_of_clients_that_leave_leave_nothing_behind(tmp_path: Path, state: str) -> None:
    """With the garbage collector off: what is given back must be given back by somebody."""
    async with FakeVllm() as fake, house(tmp_path, pool("m", fake)) as home:
        async with home.ask(chat()) as reply:  # what is made once is made now
            await reply.rest()
        await settled("the first call", lambda: not home.inflight())
        fake.drop()
        await settled("no connection is open", lambda: not fake.connections)
        baseline = Baseline(home, fake)
        gc.collect()
        gc.disable()
        try:
            for number in range(200 if state in STATES else 50):  # it takes longer to fill every buffer
                if state in STATES:
                    async with held(fake, home, state) as reply:
                        reply.leave()
                else:
                    await _flooded(fake, home)
                assert (await home.told(number + 2)).outcome == "cancelled"
            assert home.inflight() == 0
            await settled("descriptors, tasks and connections are back", baseline.back)
        finally:
            gc.enable()
        fake.pause_at, fake.script = None, None
        async with home.ask(chat(stream=True)) as reply:
            assert reply.status == 200


async def _flooded(fake: FakeEngine, home: Home) -> None:
    """One call whose client reads nothing until the engine is held back, and then leaves."""
    block = chunked(token("x" * 65_536) * 4)

    async def script(peer: Peer) -> None:
        await peer.send(HEAD + chunked(ROLE))
        while True:
            await peer.send(block)

    fake.script = script
    count = len(fake.requests)
    client = socket.create_connection(("127.0.0.1", home.port))
    with client:
        client.sendall(home.request(chat(stream=True)))
        request = await fake.arrived(count + 1)
        seen = [0] * 5

        def held_back() -> bool:
            seen.append(request.sent)
            return seen[-1] > 0 and seen[-5:] == seen[-1:] * 5

        await settled("the engine is held back", held_back)
    async with asyncio.timeout(WAIT):
        await request.gone.wait()


async def test_b10_calls_that_end_well_leave_no_task_behind(tmp_path: Path) -> None:
    async with FakeVllm() as fake, house(tmp_path, pool("m", fake)) as home, home.wire() as reply:

        async def call(stream: bool) -> None:
            await reply.send(home.request(chat(stream=stream)))
            await reply.head()
            await reply.rest()
            reply.again()  # one connection for all, so that nothing ends with it
            await settled("the call is over", lambda: not home.inflight())

        for stream in (True, False):
            await call(stream)
        base = len(asyncio.all_tasks())
        for stream in (True, False) * 10:
            await call(stream)
        await settled("no task is left of any call", lambda: len(asyncio.all_tasks()) <= base)
