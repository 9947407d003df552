"""The gateway runs on uvloop, the tests on asyncio's own loop: the parts that touch transports, on uvloop."""

from __future__ import annotations

import pytest
import uvloop

from engines.errors import Gone, Lost, Unreached
from tests.engines.harness import FAKES, RecordingSink, make_call, run, serve


async def _streams(kind: str) -> None:
    async with serve(kind, text="안녕 🦀", cut=1) as (fake, engine):
        for _ in range(3):
            sink = await run(engine, RecordingSink())
            assert sink.error is None and sink.text == "안녕 🦀"
        assert fake.accepted == (3 if fake.closes_after_stream else 1)


async def _abort_reaches_the_engine(kind: str) -> None:
    for stops in ("head", 0, 3):
        async with serve(kind, text="abcdefghijkl", piece=2, pause_at=stops) as (fake, engine):
            sink = RecordingSink()
            attempt = engine.open(make_call(), sink)
            await fake.paused.wait()
            sink.silent = True
            attempt.abort("left")
            await fake.peer_gone.wait()
            await attempt.closed()


async def _failures_are_told_apart(kind: str) -> None:
    async with serve(kind, pause_at="head") as (fake, engine):
        for error in (Lost, Gone):
            fake.paused.clear()
            sink = RecordingSink()
            attempt = engine.open(make_call(), sink)
            await fake.paused.wait()
            if error is Gone:
                await fake.refuse()
            fake.drop()
            await attempt.closed()
            assert type(sink.error) is error
        assert type((await run(engine, RecordingSink())).error) is Unreached


@pytest.mark.parametrize("kind", sorted(FAKES))
@pytest.mark.parametrize("what", [_streams, _abort_reaches_the_engine, _failures_are_told_apart])
def test_on_uvloop(kind: str, what: object) -> None:
    uvloop.run(what(kind))  # type: ignore[operator]
