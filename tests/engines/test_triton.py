"""The engine `triton` against a scripted gRPC fake: the contract, and what a real one cannot be made to do."""

from __future__ import annotations

import asyncio
import gc
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

pytest.importorskip("tritonclient.grpc", reason="tritonclient[grpc] is not installed")

from engines import Engine, EngineError, build
from engines.errors import (
    ContextTooLong,
    Faulted,
    Gone,
    Loading,
    Lost,
    Malformed,
    Misconfigured,
    Overloaded,
    Refused,
    TimedOut,
    Unreached,
)
from tests.engines.harness import PUBLIC, RecordingSink, make_call, run
from tests.fakes.triton import FakeTriton, Peer, Script

HARD = '  안녕, 세계! 🦀 naïve "quotes" \\ back\\nslash\nnew line \u2028 end '
TEMPLATE = "{{ messages[-1].content }}"


@pytest.fixture(autouse=True, scope="module")
def nothing_left() -> Iterator[None]:
    """gRPC's channels hang together in circles: collected here, so that later tests may count descriptors."""
    yield
    gc.collect()


@asynccontextmanager
async def serving(options: dict[str, Any] | None = None, **knobs: Any) -> AsyncIterator[tuple[FakeTriton, Engine]]:
    async with FakeTriton(**knobs) as fake:
        engine = build("triton", "t0", {"url": fake.url, "chat_template": TEMPLATE, **(options or {})})
        try:
            yield fake, engine
        finally:
            await engine.aclose()


def saying(*pieces: bytes, final: str) -> Script:
    """A stream of these pieces whose final response has the shape `final`."""

    async def script(peer: Peer) -> None:
        for number, piece in enumerate(pieces, 1):
            await peer.send(piece, final=final == "with-the-last" and number == len(pieces))
        if final == "alone":
            await peer.send(final=True)
        elif final == "with-an-empty-one":
            await peer.send(b"", final=True, tokens=0)
        # The call stays open, so that only the flag can have ended the answer.
        await asyncio.Event().wait()

    return script


PIECES = {"two": (b"one ", b"two"), "cut": ("é".encode()[:1], "é".encode()[1:]), "empty": (b"",), "none": ()}
SHAPES = [
    pytest.param(final, pieces, id=f"{final}-{name}")
    for final in ("alone", "with-the-last", "with-an-empty-one")
    for name, pieces in PIECES.items()
    if pieces or final != "with-the-last"
]


@pytest.mark.parametrize("kind", ["chat", "completions"])
@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_is_openais_and_carries_the_public_name(kind: str, stream: bool) -> None:
    async with serving(text=HARD, piece=3) as (_, engine):
        sink = await run(engine, RecordingSink(), kind=kind, stream=stream, include_usage=stream)
    assert sink.error is None and len(sink.heads) == 1
    if stream:
        assert sink.text == HARD and sink.payloads[-1] == b"[DONE]"
        assert {chunk["model"] for chunk in sink.chunks} == {PUBLIC} and len({c["id"] for c in sink.chunks}) == 1
        assert sink.chunks[-1]["choices"] == [] and sink.chunks[-1]["usage"]["prompt_tokens"] == 7
        if kind == "chat":
            assert sink.chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    else:
        answer = json.loads(sink.body)
        choice = answer["choices"][0]
        assert (choice["message"]["content"] if kind == "chat" else choice["text"]) == HARD
        assert answer["model"] == PUBLIC and answer["usage"]["prompt_tokens"] == 7
    last = sink.marks[-1]
    assert last.terminal and last.derived and last.finish == "stop" and last.usage is not None
    assert not last.usage.estimated


@pytest.mark.parametrize("asked", [True, False])
async def test_b08_usage_is_counted_always_and_shown_only_where_asked(asked: bool) -> None:
    async with serving() as (_, engine):
        sink = await run(engine, RecordingSink(), include_usage=asked)
    assert sink.marks[-1].usage is not None
    assert len([chunk for chunk in sink.chunks if not chunk["choices"]]) == asked


@pytest.mark.parametrize("piece", [1, 2, 3])
async def test_b01_a_character_cut_over_responses_comes_whole(piece: int) -> None:
    async with serving(text=HARD, piece=piece) as (_, engine):
        sink = await run(engine, RecordingSink())
    assert sink.text == HARD and "\ufffd" not in sink.body.decode()


@pytest.mark.parametrize(("final", "pieces"), SHAPES)
async def test_b39_the_final_flag_ends_the_answer_whatever_its_response_holds(
    final: str, pieces: tuple[bytes, ...]
) -> None:
    async with serving(script=saying(*pieces, final=final)) as (fake, engine):
        sink = await run(engine, RecordingSink())
    assert sink.error is None
    assert sink.text.encode() == b"".join(pieces)
    assert sink.finish == "stop" and sink.payloads[-1] == b"[DONE]"
    contents = [c["choices"][0]["delta"].get("content") for c in sink.chunks[1:] if c["choices"]]
    assert "" not in contents, "no empty delta is made of an empty final response"
    assert fake.peers[0].parameters["triton_enable_empty_final_response"] is True


async def test_b39_a_stream_that_ends_without_the_flag_it_promised_is_lost() -> None:
    async def script(peer: Peer) -> None:
        await peer.send(b"one")

    async with serving(script=script) as (_, engine):
        sink = await run(engine, RecordingSink())
    assert type(sink.error) is Lost and sink.finish is None and b"[DONE]" not in sink.body


async def test_b39_a_release_that_knows_no_flag_ends_its_stream_by_closing_it() -> None:
    async def script(peer: Peer) -> None:
        await peer.send(b"one", final=None)

    async with serving(script=script) as (_, engine):
        sink = await run(engine, RecordingSink())
    assert sink.error is None and sink.text == "one" and sink.finish == "stop"


@pytest.mark.parametrize("stops", ["before the first", "later"])
async def test_b39_an_engine_that_never_ends_is_timed_out_and_told(stops: str) -> None:
    async def script(peer: Peer) -> None:
        if stops == "later":
            await peer.send(b"one")
        await asyncio.Event().wait()

    options = {"first_byte_timeout": 0.1} if stops == "before the first" else {"idle_timeout": 0.1}
    async with serving(options, script=script) as (fake, engine):
        sink = await run(engine, RecordingSink())
        await fake.cancelled.wait()
    assert type(sink.error) is TimedOut and sink.error.retry == "never" and sink.finish is None


@pytest.mark.parametrize("when", ["before the first response", "in the stream", "while the client takes nothing"])
async def test_b41_abort_cancels_the_call_at_once(when: str) -> None:
    async def script(peer: Peer) -> None:
        for _ in range(0 if when == "before the first response" else 100):
            await peer.send(b"x" * 1000)
        await peer.pause()

    async with serving(script=script) as (fake, engine):
        sink = RecordingSink(room=1 if when == "while the client takes nothing" else None)
        attempt = engine.open(make_call(), sink)
        await fake.paused.wait()
        if when == "in the stream":
            await sink.got(100)
        elif sink._room is not None:
            await sink.full.wait()
        sink.silent = True
        attempt.abort("the client left")
        attempt.abort("again")
        async with asyncio.timeout(1):
            await fake.cancelled.wait()
            await attempt.closed()


async def test_b41_abort_before_anything_was_sent_sends_nothing() -> None:
    async with serving() as (fake, engine):
        sink = RecordingSink()
        sink.silent = True
        attempt = engine.open(make_call(), sink)
        attempt.abort("the client left")
        await attempt.closed()
        assert not fake.peers


async def test_b41_ten_calls_have_ten_streams_and_one_failure_is_one_callers() -> None:
    async def script(peer: Peer) -> None:
        if peer.inputs["text_input"] == b"4":
            await peer.abort("INVALID_ARGUMENT", "this prompt is refused")
        await peer.pause()  # all of them are open at the same time
        await peer.send(b"answer to " + peer.inputs["text_input"], final=True)

    async with serving(script=script) as (fake, engine):
        sinks = [RecordingSink() for _ in range(10)]
        attempts = [
            engine.open(make_call(messages=[{"role": "user", "content": str(number)}]), sink)
            for number, sink in enumerate(sinks)
        ]
        await sinks[4].over.wait()
        assert not any(sink.over.is_set() for number, sink in enumerate(sinks) if number != 4)
        fake.gate.set()
        for attempt in attempts:
            await attempt.closed()
        assert len({peer.request.id for peer in fake.peers}) == 10
    bad = sinks.pop(4).error
    assert isinstance(bad, Refused) and bad.status == 400
    assert [sink.text for sink in sinks] == [f"answer to {number}" for number in (0, 1, 2, 3, 5, 6, 7, 8, 9)]


@pytest.mark.parametrize(
    ("code", "text", "error", "status"),
    [
        ("INVALID_ARGUMENT", "bad value", Refused, 400),
        ("INVALID_ARGUMENT", "Prompt length (9) exceeds maximum input length (8).", ContextTooLong, 400),
        ("INTERNAL", "Prompt length (9) exceeds maximum input length (8).", ContextTooLong, 400),
        ("INVALID_ARGUMENT", "unexpected inference input 'x' for model 'y'", Misconfigured, None),
        ("NOT_FOUND", "Request for unknown model: 'x' is not found", Misconfigured, None),
        ("UNAVAILABLE", "Request for unknown model: 'x' has no available versions", Misconfigured, None),
        ("UNIMPLEMENTED", "no such method", Misconfigured, None),
        ("UNAUTHENTICATED", "who are you", Misconfigured, None),
        ("PERMISSION_DENIED", "not you", Misconfigured, None),
        ("RESOURCE_EXHAUSTED", "too many", Overloaded, 429),
        ("UNAVAILABLE", "Exceeds maximum queue size", Overloaded, 503),
        ("UNAVAILABLE", "Server is not ready", Loading, 503),
        ("UNAVAILABLE", "something of the network", Lost, None),
        ("DEADLINE_EXCEEDED", "too late", TimedOut, 504),
        ("CANCELLED", "someone else", Faulted, 499),
        ("INTERNAL", "CUDA error at /opt/x/y.cc", Faulted, 500),
        ("UNKNOWN", "what", Faulted, 500),
    ],
)
async def test_b41_a_status_is_the_error_that_it_means(
    code: str, text: str, error: type[EngineError], status: int | None
) -> None:
    async def script(peer: Peer) -> None:
        await peer.abort(code, text)

    async with serving(script=script) as (fake, engine):
        sink = await run(engine, RecordingSink())
        assert fake.peers[0].metadata["triton_grpc_error"] == "true"
    assert type(sink.error) is error, sink.error
    assert status is None or sink.error.status == status
    assert "/opt" not in sink.error.message and not sink.heads


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "in ensemble 'ensemble', Executor failed process requestId 3: exceeds maximum input length (8)",
            ContextTooLong,
        ),
        ("Request for unknown model: 'x' is not found", Misconfigured),
        ("[request id: 1] expected number of inputs between 2 and 9 but got 1 inputs for model 'x'", Misconfigured),
        ("Exceeds maximum queue size", Overloaded),
        ("Stub process 'ensemble_0_0' is not healthy.", Faulted),
        ("TypeError: int()\n\nAt:\n  /opt/models/1/model.py(31): _parse\n", Faulted),
    ],
)
@pytest.mark.parametrize("after", [0, 2])
async def test_b41_an_error_in_words_alone_is_classified_and_is_no_finish(
    text: str, error: type[EngineError], after: int
) -> None:
    async def script(peer: Peer) -> None:
        for _ in range(after):
            await peer.send(b"x")
        await peer.error(text)
        await asyncio.Event().wait()  # Triton leaves the stream open

    async with serving(script=script) as (_, engine):
        sink = await run(engine, RecordingSink())
    assert type(sink.error) is error and sink.finish is None and b"[DONE]" not in sink.body
    assert "/opt" not in sink.error.message and "At:" not in sink.error.message


async def test_a_message_over_the_limit_is_malformed_and_a_request_over_it_refused() -> None:
    async def script(peer: Peer) -> None:
        await peer.send(b"x" * 200_000, final=True)

    async with serving({"max_message": 100_000}, script=script) as (_, engine):
        sink = await run(engine, RecordingSink())
        long = await run(engine, RecordingSink(), messages=[{"role": "user", "content": "x" * 200_000}])
    assert type(sink.error) is Malformed
    assert type(long.error) is Refused and long.error.status == 413


async def test_four_megabytes_pass_by_default() -> None:
    async def script(peer: Peer) -> None:
        await peer.send(b"x" * 5_000_000, final=True)

    async with serving(script=script) as (_, engine):
        sink = await run(engine, RecordingSink())
    assert sink.error is None and len(sink.text) == 5_000_000


async def test_an_engine_that_refuses_is_unreached_and_one_that_came_back_serves() -> None:
    async with serving() as (fake, engine):
        assert (await run(engine, RecordingSink())).error is None
        await fake.die()
        sink = await run(engine, RecordingSink())
        assert type(sink.error) is Unreached and sink.error.retry == "free"
        assert (await engine.probe()).state == "down"
        await fake.listen()
        assert (await run(engine, RecordingSink())).error is None
        assert (await engine.probe()).state == "ready"


async def test_an_engine_that_died_with_the_call_is_gone() -> None:
    async def script(peer: Peer) -> None:
        await peer.send(b"x")
        await peer.pause()

    async with serving(script=script) as (fake, engine):
        sink = RecordingSink()
        attempt = engine.open(make_call(), sink)
        await sink.got(1)
        await fake.die()
        await attempt.closed()
    assert type(sink.error) is Gone and sink.error.retry == "once" and sink.finish is None


async def test_backpressure_stops_the_reading_and_loses_nothing() -> None:
    async def script(peer: Peer) -> None:
        for _ in range(200):
            await peer.send(b"x" * 20_000)
        peer.fake.paused.set()
        await peer.send(final=True)

    async with serving(script=script) as (fake, engine):
        sink = RecordingSink(room=1)
        attempt = engine.open(make_call(), sink)
        await sink.full.wait()
        assert len(sink.blocks) == 1 and not fake.paused.is_set()
        sink.reopen()
        await attempt.closed()
    assert sink.text == "x" * 4_000_000


async def test_a_slow_client_is_not_the_engines_silence() -> None:
    async with serving({"idle_timeout": 0.05}, text="abcdef") as (_, engine):
        sink = RecordingSink(room=1)
        attempt = engine.open(make_call(), sink)
        await sink.full.wait()

        async def silent(peer: Peer) -> None:
            await asyncio.Event().wait()

        async with serving({"first_byte_timeout": 0.15}, script=silent) as (_, other):
            assert type((await run(other, RecordingSink())).error) is TimedOut  # the same time passes
        assert not sink.over.is_set()
        sink.reopen()
        await attempt.closed()
    assert sink.error is None and sink.text == "abcdef"


async def test_health_is_the_servers_and_the_models() -> None:
    async with serving() as (fake, engine):
        assert (await engine.probe()).state == "ready"
        fake.model_ready = False
        assert (await engine.probe()).state == "loading"
        fake.ready = False
        assert (await engine.probe()).state == "loading"


async def test_what_the_model_takes_is_read_once_and_anew_when_it_was_away_or_changed() -> None:
    async with serving() as (fake, engine):
        for _ in range(3):
            await run(engine, RecordingSink())
        assert fake.described == 1
        fake.model_ready = False
        await engine.probe()
        fake.model_ready = True
        del fake.inputs["stop_words"]
        await run(engine, RecordingSink(), stop="x")
        assert fake.described == 2 and "stop_words" not in fake.peers[-1].inputs

        async def changed(peer: Peer) -> None:
            await peer.error("unexpected inference input 'top_k' for model 'ensemble'")

        fake.script = changed
        assert isinstance((await run(engine, RecordingSink())).error, Misconfigured)
        fake.script = None
        await run(engine, RecordingSink())
        assert fake.described == 3


async def test_only_tensors_that_exist_are_sent_and_a_field_without_one_is_refused() -> None:
    async with serving() as (fake, engine):
        for name in ("seed", "return_num_input_tokens", "return_num_output_tokens", "exclude_input_in_output"):
            del fake.inputs[name]
        await run(engine, RecordingSink(), temperature=0.5)
        assert set(fake.peers[0].inputs) == {"text_input", "max_tokens", "temperature", "top_p", "stream"}
        assert [output.name for output in fake.peers[0].request.outputs] == ["text_output"]
        sink = await run(engine, RecordingSink(), seed=3)
        assert isinstance(sink.error, Refused) and sink.error.param == "seed" and len(fake.peers) == 1
        whole = await run(engine, RecordingSink(), stream=False)
        assert fake.peers[-1].inputs["stream"] is True, "only in streams is the prompt never part of the text"
        assert json.loads(whole.body)["choices"][0]["message"]["content"] == fake.text


async def test_trace_context_and_the_key_go_along_and_nothing_else_of_the_client() -> None:
    async with serving({"api_key": "sk-engine"}) as (fake, engine):
        attempt = engine.open(
            make_call(headers=(("traceparent", "00-a-b-01"), ("x-other", "1"))), sink := RecordingSink()
        )
        await sink.over.wait()
        await attempt.closed()
        metadata = fake.peers[0].metadata
    assert metadata["traceparent"] == "00-a-b-01" and metadata["authorization"] == "Bearer sk-engine"
    assert "x-other" not in metadata


async def test_aclose_ends_every_attempt_and_later_calls_are_unreached() -> None:
    async def script(peer: Peer) -> None:
        await peer.pause()

    async with serving(script=script) as (fake, engine):
        sink = RecordingSink()
        engine.open(make_call(), sink)
        await fake.paused.wait()
        sink.silent = True
        await engine.aclose()
        await fake.cancelled.wait()
        late = await run(engine, RecordingSink())
    assert type(late.error) is Unreached


async def test_b41_cancelled_calls_leave_no_descriptor_and_no_task() -> None:
    async def script(peer: Peer) -> None:
        await peer.pause()

    async with serving(script=script) as (fake, engine):
        before: int | None = None
        for number in range(40):
            fake.paused.clear()
            fake.cancelled.clear()
            sink = RecordingSink()
            attempt = engine.open(make_call(stream=number % 2 == 0), sink)
            await fake.paused.wait()
            sink.silent = True
            attempt.abort("left")
            await fake.cancelled.wait()
            await attempt.closed()
            if number == 9:
                before = len(os.listdir("/proc/self/fd"))
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == before
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_on_uvloop() -> None:
    async def main() -> None:
        async with serving(text=HARD, piece=1) as (fake, engine):
            for _ in range(3):
                assert (await run(engine, RecordingSink())).text == HARD

            async def script(peer: Peer) -> None:
                await peer.send(b"x")
                await peer.pause()

            fake.script = script
            sink = RecordingSink()
            attempt = engine.open(make_call(), sink)
            await sink.got(1)
            sink.silent = True
            attempt.abort("left")
            await fake.cancelled.wait()
            await attempt.closed()

    uvloop.run(main())
