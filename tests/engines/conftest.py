"""Fixtures of the tests over sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from engines.upstream import Upstream
from tests.engines.embedded_house import House, house
from tests.engines.harness import FAKES, Serving, serve
from tests.fakes.server import FakeServer


@pytest.fixture(params=sorted(FAKES))
def serving(request: pytest.FixtureRequest) -> Serving:
    """Every test that takes it runs once for each engine."""
    return partial(serve, request.param)


@pytest.fixture
async def fake() -> AsyncIterator[FakeServer]:
    async with FakeServer() as server:
        yield server


@pytest.fixture
async def upstream(fake: FakeServer) -> AsyncIterator[Upstream]:
    upstream = Upstream(fake.url)
    yield upstream
    await upstream.aclose()


@pytest.fixture
async def shared(tmp_path: Path) -> AsyncIterator[House]:
    """An embedded engine with a scripted model."""
    async with house(tmp_path) as here:
        yield here
