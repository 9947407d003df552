"""The contract of every engine over HTTP, over a real socket: `abort`, in any state, and what it must leave behind."""

from __future__ import annotations

import asyncio
import gc
import os

import pytest

from engines import Attempt
from engines.errors import Unreached
from tests.engines.harness import RecordingSink, Serving, make_call, run
from tests.fakes.server import Peer, chunked

TEXT = "abcdefghijklmnopqrstuvwxyz" * 4


def _abort(attempt: Attempt, sink: RecordingSink) -> None:
    sink.silent = True
    attempt.abort("the client left")
    attempt.abort("again")


async def test_b09_before_anything_was_sent(serving: Serving) -> None:
    async with serving() as (fake, engine):
        sink = RecordingSink()
        attempt = engine.open(make_call(), sink)
        _abort(attempt, sink)
        await attempt.closed()
        assert not fake.requests


async def test_b09_while_connecting(serving: Serving) -> None:
    async with serving(pause_at="head") as (fake, engine):
        sink = RecordingSink()
        attempt = engine.open(make_call(), sink)
        await fake.connected()
        _abort(attempt, sink)
        await attempt.closed()
        await fake.empty()


@pytest.mark.parametrize("stream", [True, False])
async def test_b09_while_waiting_for_the_head(serving: Serving, stream: bool) -> None:
    async with serving(pause_at="head") as (fake, engine):
        sink = RecordingSink()
        attempt = engine.open(make_call(stream=stream), sink)
        await fake.paused.wait()
        _abort(attempt, sink)
        await fake.peer_gone.wait()
        await attempt.closed()


async def test_b09_before_the_first_token(serving: Serving) -> None:
    async with serving(pause_at=0) as (fake, engine):
        sink = RecordingSink()
        attempt = engine.open(make_call(), sink)
        await fake.paused.wait()
        _abort(attempt, sink)
        await fake.peer_gone.wait()
        await attempt.closed()


async def test_b09_in_the_middle_of_a_stream(serving: Serving) -> None:
    async with serving(text=TEXT, pause_at=5) as (fake, engine):
        sink = RecordingSink()
        attempt = engine.open(make_call(), sink)
        await fake.paused.wait()
        await sink.got(5)
        _abort(attempt, sink)
        await fake.peer_gone.wait()
        await attempt.closed()


async def test_b10_while_the_client_takes_nothing(serving: Serving) -> None:
    async with serving(text=TEXT * 1000) as (fake, engine):
        sink = RecordingSink(room=1)
        attempt = engine.open(make_call(), sink)
        await sink.full.wait()
        await fake.requests[0].blocked.wait()
        _abort(attempt, sink)
        await fake.peer_gone.wait()
        await attempt.closed()


@pytest.mark.parametrize("stream", [True, False])
async def test_b09_from_within_the_sink_while_more_events_are_at_hand(serving: Serving, stream: bool) -> None:
    async with serving(text=TEXT) as (fake, engine):

        async def at_once(peer: Peer) -> None:
            await peer.send(fake.sse_head + chunked(b"".join(fake.chat_events({}))) + chunked(b""))

        fake.script = at_once if stream else None
        sink = RecordingSink(on_data=lambda: _abort(attempt, sink))
        attempt = engine.open(make_call(stream=stream), sink)
        await attempt.closed()
        assert len(sink.blocks) == 1


async def test_after_the_end_it_does_nothing_and_spares_the_connections_next_user(serving: Serving) -> None:
    async with serving(text=TEXT, pause_at=None) as (fake, engine):
        first = RecordingSink()
        old = engine.open(make_call(), first)
        await first.over.wait()
        await old.closed()
        fake.pause_at = 5
        second = RecordingSink()
        attempt = engine.open(make_call(), second)
        await fake.paused.wait()
        assert fake.accepted == (2 if fake.closes_after_stream else 1)
        old.abort("late")
        fake.gate.set()
        await second.over.wait()
        await attempt.closed()
        assert second.error is None and second.text == TEXT


async def test_closing_the_engine_ends_every_attempt(serving: Serving) -> None:
    async with serving(text=TEXT, pause_at=2) as (fake, engine):
        sinks = [RecordingSink() for _ in range(3)]
        for sink in sinks:
            engine.open(make_call(), sink)
        await fake.arrived(3)
        for sink in sinks:
            await sink.got(2)
            sink.silent = True
        await engine.aclose()
        for request in fake.requests:
            await request.gone.wait()
        late = await run(engine, RecordingSink())
        assert isinstance(late.error, Unreached)


async def test_a_second_cancellation_cannot_keep_the_connection_open(serving: Serving) -> None:
    async with serving(text=TEXT, pause_at=2) as (fake, engine):
        sink = RecordingSink()
        attempt = engine.open(make_call(), sink)
        await sink.got(2)
        for _ in range(3):
            attempt.task.cancel()  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        await fake.peer_gone.wait()
        await attempt.closed()


async def test_b10_two_hundred_clients_that_leave_leave_nothing_behind(serving: Serving) -> None:
    async with serving(text=TEXT) as (fake, engine):
        descriptors = -1
        for number in range(200):
            fake.pause_at = ("head", 0, 3)[number % 3]
            fake.paused.clear()
            sink = RecordingSink()
            attempt = engine.open(make_call(stream=number % 4 != 3), sink)
            if number % 4 == 3:
                fake.pause_at = "head"
            await fake.paused.wait()
            _abort(attempt, sink)
            await attempt.closed()
            await fake.peer_gone.wait()
            await fake.empty()
            if number == 20:
                descriptors = len(os.listdir("/proc/self/fd"))
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == descriptors
        assert asyncio.all_tasks() == {asyncio.current_task()}
