"""Whether an engine that was lost is gone, over real sockets."""

from __future__ import annotations

import asyncio

import pytest

from engines.errors import EngineError, Gone, Lost, Malformed, TimedOut, Unreached
from engines.upstream import Upstream
from tests.fakes.server import FakeServer


async def test_lost_is_gone_when_the_port_refuses_and_lost_when_it_does_not(
    fake: FakeServer, upstream: Upstream
) -> None:
    lost = Lost("broke", status=200, detail="why")
    assert await upstream.settle(lost) is lost
    await fake.refuse()
    gone = await upstream.settle(lost)
    assert isinstance(gone, Gone) and (gone.status, gone.detail) == (200, "why")


async def test_lost_is_gone_when_the_port_refuses_only_at_a_later_knock(fake: FakeServer, upstream: Upstream) -> None:
    settled = asyncio.get_running_loop().create_task(upstream.settle(Lost("broke")))
    await fake.connected()  # the first knock was answered: the process is still dying
    await fake.refuse()
    assert isinstance(await settled, Gone)


@pytest.mark.parametrize("error", [TimedOut("x"), Malformed("x"), Unreached("x"), Gone("x")])
async def test_only_lost_is_looked_at_again(fake: FakeServer, upstream: Upstream, error: EngineError) -> None:
    assert await upstream.settle(error) is error
    assert fake.accepted == 0


async def test_a_launcher_knows_that_its_engine_is_gone(fake: FakeServer) -> None:
    upstream = Upstream(fake.url, is_gone=lambda: True)
    assert isinstance(await upstream.settle(Lost("broke")), Gone)
    assert fake.accepted == 0
