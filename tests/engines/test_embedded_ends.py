"""The embedded engine where something ends early: the client leaves, the line is full, the worker crashes or hangs."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import psutil
import pytest

from engines import Attempt, embedded_pipe
from engines.embedded import Embedded, Options
from engines.errors import Gone, Loading, Overloaded, TimedOut, Unreached
from engines.launch import LaunchError
from tests.engines.embedded_house import House, calling, house, prompt
from tests.engines.harness import RecordingSink

LONG = "abcdefghij" * 150


def _abort(attempt: Attempt, sink: RecordingSink) -> None:
    sink.silent = True
    attempt.abort("the client left")
    attempt.abort("again")


async def _held(here: House, text: str = LONG) -> tuple[Attempt, RecordingSink]:
    """A call that is under way and cannot go on, because its client takes nothing."""
    sink = RecordingSink(room=1)
    attempt = here.engine.open(calling(text), sink)
    await sink.full.wait()
    return attempt, sink


# -- the client leaves ---------------------------------------------------------------------------------------------


async def test_b09_a_call_that_waits_in_line_and_whose_client_left_never_starts(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        first, held = await _held(here)
        sink = RecordingSink()
        waiting = here.engine.open(calling("never"), sink)
        third = asyncio.ensure_future(here.ask("third"))
        await asyncio.sleep(0)
        _abort(waiting, sink)
        await waiting.closed()
        held.reopen()
        await first.closed()
        assert (await third).text == "third"
        begun = [line for line in here.journal if line.startswith("begins")]
        assert begun == [f"begins {LONG[:40]}", "begins third"]


async def test_b09_before_anything_was_sent(shared: House) -> None:
    sink = RecordingSink()
    attempt = shared.engine.open(calling("never"), sink)
    _abort(attempt, sink)
    await attempt.closed()
    assert (await shared.ask("abc")).text == "abc"
    assert "begins never" not in shared.journal


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("stream", [True, False])
async def test_b09_the_model_stops_in_the_middle_of_a_prompt(tmp_path: Path, slots: int, stream: bool) -> None:
    async with house(tmp_path, slots=slots) as here:
        sink = RecordingSink()
        attempt = here.engine.open(calling(prompt("stuck", wait=0), stream=stream), sink)
        await here.noted("waits")
        _abort(attempt, sink)
        await attempt.closed()
        assert "interrupted" in here.journal
        assert (await here.ask("abc")).text == "abc"


async def test_b09_the_model_stops_in_the_middle_of_an_answer(shared: House) -> None:
    attempt, sink = await _held(shared)
    _abort(attempt, sink)
    await attempt.closed()
    assert (await shared.ask("abc")).text == "abc"


@pytest.mark.parametrize("name", ["model.gguf", "forgetful.gguf"])
async def test_b09_who_leaves_disturbs_nobody_whose_tokens_were_in_the_same_batch(tmp_path: Path, name: str) -> None:
    async with house(tmp_path, name, slots=3) as here:
        other = RecordingSink()
        going_on = here.engine.open(calling(prompt(LONG, slow=0.001)), other)
        await other.got(3)
        for round in range(1, 6):
            sink = RecordingSink()
            attempt = here.engine.open(calling(prompt(f"stuck {round}", wait=0)), sink)
            await here.noted("waits", round)
            _abort(attempt, sink)
            await attempt.closed()
        await going_on.closed()
        assert here.journal.count("interrupted") >= 5
    assert (other.error, other.text) == (None, LONG)


async def test_b09_from_within_the_sink(shared: House) -> None:
    sink = RecordingSink(on_data=lambda: _abort(attempt, sink))
    attempt = shared.engine.open(calling(LONG), sink)
    await attempt.closed()
    assert len(sink.blocks) == 1
    assert (await shared.ask("abc")).text == "abc"


async def test_b09_embeddings_stop_between_texts_and_within_one(tmp_path: Path) -> None:
    async with house(tmp_path, embeddings=True) as here:
        sink = RecordingSink()
        texts = ["a", prompt("stuck", wait=0), "b"]
        attempt = here.engine.open(calling(kind="embeddings", stream=False, input=texts), sink)
        await here.noted("embeds stuck")
        _abort(attempt, sink)
        await attempt.closed()
        after = await here.ask("ab", kind="embeddings", stream=False)
        assert after.error is None


async def test_after_the_end_an_abort_does_nothing(shared: House) -> None:
    sink = RecordingSink()
    old = shared.engine.open(calling("abc"), sink)
    await old.closed()
    attempt, held = await _held(shared)
    old.abort("late")
    held.reopen()
    await attempt.closed()
    assert held.text == LONG


async def test_a_second_cancellation_does_not_keep_the_call_in_the_worker(shared: House) -> None:
    attempt, sink = await _held(shared)
    sink.silent = True
    for _ in range(3):
        attempt.task.cancel()  # type: ignore[attr-defined]
        await asyncio.sleep(0)
    await attempt.closed()
    assert (await shared.ask("abc")).text == "abc"


async def test_b10_two_hundred_clients_that_leave_leave_nothing_behind(tmp_path: Path) -> None:
    draw = random.Random(0)
    async with house(tmp_path, slots=2, queue=1000) as here:
        await here.ask("warm")
        worker = psutil.Process(here.engine.supervisor.pid)
        before = (len(os.listdir("/proc/self/fd")), worker.num_fds(), worker.num_threads())
        calls = []
        for number in range(200):
            script = {"wait": 0} if number % 10 == 0 else {}
            sink = RecordingSink()
            attempt = here.engine.open(calling(prompt(LONG, **script), stream=number % 3 != 0), sink)
            calls.append((attempt, sink))
            for _ in range(draw.randrange(40)):
                await asyncio.sleep(0)
            # The oldest first or the newest: in the worker, or in the line.
            leaver, left = calls.pop(draw.choice((0, -1)))
            _abort(leaver, left)
        for attempt, sink in calls:
            _abort(attempt, sink)
            await attempt.closed()
        assert (await here.ask("abc")).text == "abc"
        assert (len(os.listdir("/proc/self/fd")), worker.num_fds(), worker.num_threads()) == before
        places = here.engine.places
        assert (places.free, places.waiting) == (2, 0)
        assert here.engine.supervisor.restarts == 0


# -- the line and the client's pace --------------------------------------------------------------------------------


async def test_a_line_that_is_full_says_so_and_is_free_to_retry(tmp_path: Path) -> None:
    async with house(tmp_path, queue=1) as here:
        first, held = await _held(here)
        waiting = asyncio.ensure_future(here.ask("second"))
        await asyncio.sleep(0)
        third = await here.ask("third")
        assert isinstance(third.error, Overloaded) and third.error.retry == "free"
        assert "1 running and 1 waiting" in third.error.message
        held.reopen()
        await first.closed()
        assert (await waiting).text == "second"


async def test_backpressure_stops_the_model_and_loses_nothing(tmp_path: Path) -> None:
    async with house(tmp_path, slots=2) as here:
        attempt, held = await _held(here)
        for _ in range(3):
            assert (await here.ask("abc")).text == "abc"  # in steps that the held call could have gone on in
        assert len(held.blocks) == 1
        held.reopen()
        await attempt.closed()
        assert held.text == LONG
        # The worker never ran ahead by more than its credit: all that was sent, was sent for.
        assert len(held.blocks) >= len(LONG)


async def test_the_worker_sends_no_more_events_than_it_has_credit_for(tmp_path: Path) -> None:
    async with house(tmp_path, slots=2) as here:
        attempt, held = await _held(here)
        for _ in range(3):
            await here.ask("x" * 2 * embedded_pipe.WINDOW)
        queued = len(attempt.ticket.queued)  # type: ignore[attr-defined]
        assert 0 < queued <= embedded_pipe.WINDOW + 1
        _abort(attempt, held)
        await attempt.closed()


# -- the worker ends -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 3])
async def test_a_crash_is_told_to_its_calls_and_the_worker_starts_again(tmp_path: Path, at: int) -> None:
    async with house(tmp_path) as here:
        pid = here.engine.supervisor.pid
        waiting = RecordingSink()
        crashing = RecordingSink()
        first = here.engine.open(calling(prompt("abcdef", crash=at)), crashing)
        second = here.engine.open(calling("abc"), waiting)
        await first.closed()
        await second.closed()
        assert type(crashing.error) is Gone and crashing.error.retry == "once"
        assert crashing.text == "abcdef"[:at]
        assert isinstance(waiting.error, Unreached) and waiting.error.retry == "free"
        await _restarted(here, 1)
        assert (await here.ask("abc")).text == "abc"
        assert here.engine.supervisor.restarts == 1 and here.engine.supervisor.pid != pid
        assert "SIGSEGV" in "".join(here.whys)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_worker_that_hangs_is_timed_out_ended_and_started_again(tmp_path: Path, stream: bool) -> None:
    async with house(tmp_path, stall_timeout=0.2) as here:
        sink = await here.ask(prompt("abcdef", hang=2), stream=stream)
        assert type(sink.error) is TimedOut
        await _restarted(here, 1)
        assert (await here.ask("abc")).text == "abc"


async def test_a_worker_that_does_not_hear_of_a_cancel_is_ended(tmp_path: Path) -> None:
    async with house(tmp_path, stall_timeout=0.2) as here:
        sink = RecordingSink()
        attempt = here.engine.open(calling(prompt("abcdef", hang=1)), sink)
        await sink.got(2)  # the role and the first token
        _abort(attempt, sink)
        await attempt.closed()
        await _restarted(here, 1)
        assert (await here.ask("abc")).text == "abc"


async def test_a_slow_client_is_not_the_workers_silence(tmp_path: Path) -> None:
    async with house(tmp_path, slots=2, stall_timeout=0.25) as here:
        attempt, held = await _held(here)
        ended = await here.ask(prompt("abc", slow=0.12))  # as long as two silences together
        assert ended.text == "abc"
        assert not held.over.is_set()
        held.reopen()
        await attempt.closed()
    assert held.text == LONG


async def test_a_slow_model_shows_signs_of_life(tmp_path: Path) -> None:
    async with house(tmp_path, stall_timeout=1.5) as here:
        sink = await here.ask(prompt("abcdef", slow=0.3), stream=False)
    assert sink.error is None


async def test_a_worker_that_sends_garbage_is_ended_and_started_again(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        sink = await here.ask(prompt("abcdef", garbage=2))
        assert type(sink.error) is Gone
        await _restarted(here, 1)
        assert (await here.ask("abc")).text == "abc"


async def test_while_the_model_loads_the_endpoint_says_so(tmp_path: Path) -> None:
    async with house(tmp_path, "waits.gguf", ready=False) as here:
        assert (await here.engine.probe()).state == "loading"
        sink = await here.ask("abc")
        assert isinstance(sink.error, Loading) and sink.error.retry == "free"
        (tmp_path / "go").touch()
        await here.engine.supervisor.ready()
        assert (await here.engine.probe()).state == "ready"
        assert here.engine.supervisor.deployment_time is not None
        assert (await here.ask("abc")).text == "abc"


async def test_a_model_that_cannot_be_loaded_is_down_with_the_reason(tmp_path: Path) -> None:
    async with house(tmp_path, "broken.gguf", ready=False) as here:
        await here.engine.probe()
        with pytest.raises(LaunchError, match="the fake's file is said to be broken"):
            await here.engine.supervisor.ready()
        while (health := await here.engine.probe()).state != "down":
            await here.engine.supervisor.changed()
        assert "said to be broken" in health.why
        sink = await here.ask("abc")
        assert isinstance(sink.error, Unreached | Loading)


async def test_without_the_package_the_reason_is_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF\x03\x00\x00\x00")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    engine = Embedded("emb-0", Options(model=str(file)))
    await engine.probe()
    with pytest.raises(LaunchError, match=r"pip install 'enginehouse\[llama-cpp-python\]'"):
        await engine.supervisor.ready()
    await engine.aclose()


async def test_a_file_that_is_no_model_is_refused_before_anything_starts(tmp_path: Path) -> None:
    engine = Embedded("emb-0", Options(model=str(tmp_path / "none.gguf")))
    await engine.probe()
    with pytest.raises(LaunchError, match=r"none\.gguf cannot be read"):
        await engine.supervisor.ready()
    await engine.aclose()


async def test_closing_the_engine_ends_every_call_and_the_worker(tmp_path: Path) -> None:
    async with house(tmp_path, slots=2) as here:
        pid = here.engine.supervisor.pid
        assert pid is not None
        calls = [await _held(here) for _ in range(2)]
        waiting = RecordingSink()
        third = here.engine.open(calling("never"), waiting)
        await asyncio.sleep(0)
        for _, sink in [*calls, (third, waiting)]:
            sink.silent = True
        await here.engine.aclose()
        assert not psutil.pid_exists(pid)
        late = await here.ask("abc")
        assert isinstance(late.error, Unreached)
        assert (await here.engine.probe()).state == "down"
        assert "begins never" not in here.journal


async def test_the_worker_ends_by_itself_when_the_gateway_hangs_up(shared: House) -> None:
    process = psutil.Process(shared.engine.supervisor.pid)
    shared.engine.link.close()  # type: ignore[union-attr]
    await asyncio.to_thread(process.wait, 30)


async def test_a_fault_of_the_gateway_itself_still_ends_the_attempt(shared: House) -> None:
    def broken() -> None:
        raise RuntimeError("sink")

    sink = RecordingSink(on_data=broken)
    attempt = shared.engine.open(calling(LONG), sink)
    await attempt.closed()
    assert isinstance(attempt.task.exception(), RuntimeError)  # type: ignore[attr-defined]
    assert sink.error is not None
    assert (await shared.ask("abc")).text == "abc"


async def _restarted(here: House, times: int) -> None:
    while here.engine.supervisor.restarts < times or here.engine.supervisor.state.state != "ready":
        await here.engine.supervisor.changed()
