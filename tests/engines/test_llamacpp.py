"""What is llama.cpp's own way, against its fake."""

from __future__ import annotations

import pytest

from engines.errors import Faulted, Loading, Unsupported
from tests.engines.harness import RecordingSink, run, serve
from tests.fakes.engine import captured, captured_events, compact
from tests.fakes.llamacpp import FakeLlamaCpp
from tests.fakes.server import Peer, response


async def test_while_it_loads_every_route_is_loading_and_free_to_retry() -> None:
    async def loading(peer: Peer) -> None:
        await peer.send(FakeLlamaCpp().loading())

    async with serve("llamacpp") as (fake, engine):
        fake.script = loading
        sink = await run(engine, RecordingSink())
    assert isinstance(sink.error, Loading) and sink.error.retry == "free"


@pytest.mark.parametrize("stream", [True, False])
async def test_its_own_timings_are_in_the_marks(stream: bool) -> None:
    async with serve("llamacpp") as (_, engine):
        sink = await run(engine, RecordingSink(), stream=stream)
    timings = [mark.timings for mark in sink.marks if mark.timings is not None]
    assert timings and timings[-1].prefill and timings[-1].decode


async def test_a_failed_stream_without_done_is_the_error_that_it_says() -> None:
    async with serve("llamacpp", text="abcdef", piece=2, error_at=2) as (fake, engine):
        assert b"[DONE]" not in b"".join(fake.broken() or [])
        sink = await run(engine, RecordingSink())
    assert isinstance(sink.error, Faulted) and sink.error.status == 500


async def test_b19_embeddings_that_it_was_not_started_for_are_unsupported() -> None:
    status, media, raw = captured("llamacpp/err_embeddings")

    async def refuse(peer: Peer) -> None:
        await peer.send(response(status, raw, media))

    async with serve("llamacpp") as (fake, engine):
        fake.script = refuse
        sink = await run(engine, RecordingSink(), kind="embeddings", stream=False)
    assert isinstance(sink.error, Unsupported)


async def test_an_ordered_close_after_a_refusal_costs_the_next_call_nothing() -> None:
    async with serve("llamacpp", text="abc") as (fake, engine):

        async def refuse(peer: Peer) -> None:
            await peer.send(fake.too_long())
            peer.close()

        fake.script = refuse
        await run(engine, RecordingSink())
        fake.script = None
        sink = await run(engine, RecordingSink())
    assert sink.error is None and fake.accepted == 2


def test_the_fake_streams_what_llamacpp_was_seen_to_stream() -> None:
    for name in ("llamacpp/chat_stream", "llamacpp/chat_stream_usage", "llamacpp/completions_stream"):
        framed = b"".join(b"data: " + compact(event) + b"\n\n" for event in captured_events(name))
        assert (framed + b"data: [DONE]").strip() == captured(name)[2].strip()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_call_right_after_a_stream_is_not_lost_to_the_connection_that_it_closes(stream: bool) -> None:
    async with serve("llamacpp", text="abc") as (_, engine):
        for _ in range(3):
            await run(engine, RecordingSink())
            sink = await run(engine, RecordingSink(), stream=stream)
            assert sink.error is None
