"""The line: commit, failover, cancel, and one word per attempt, whatever happens."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from engines import Call
from engines.errors import (
    EngineError,
    Faulted,
    Gone,
    Lost,
    Malformed,
    Overloaded,
    Refused,
    TimedOut,
    Unreached,
)
from gateway.contract import Pool, Request, Served
from gateway.relay import HIGH_WATER, PREFIX_CAP
from gateway.serve import Line
from gateway.waiting import Waiting
from router import Ask, Endpoint, Limits, Router
from tests.fakes.scripted import DONE, ROLE, RecordingClient, ScriptedEngine, answer, never, token, usage

WHOLE = [ROLE, token("Hel"), token("lo"), usage(3, 2), DONE]


class House:
    """A pool of scripted engines behind the real line and the real router."""

    def __init__(self, *engines: ScriptedEngine, limits: Limits | None = None, **settings: object) -> None:
        router = Router(
            [Endpoint(name=e.name, engine="vllm", limits=limits or Limits()) for e in engines], policy="round_robin"
        )
        for engine in engines:
            router.set_health(engine.name, "ready", time.monotonic())
        self.engines = {e.name: e for e in engines}
        self.router = router
        self.pool = Pool(
            model="m",
            router=router,
            waiting=Waiting(router, time.monotonic),
            engines=dict(self.engines),
            policy="round_robin",
            **settings,  # type: ignore[arg-type]
        )
        self.served: list[Served] = []
        self.line = Line(self.served.append, time.monotonic)
        self._n = 0

    def request(self, stream: bool = True, explain: bool = False) -> Request:
        self._n += 1
        call = Call(id=f"c{self._n}", request_id=f"r{self._n}", kind="chat", model="m", fields={}, stream=stream)
        now = time.monotonic()
        ask = Ask(id=call.id, prompt_tokens=3, stream=stream, arrived=now)
        return Request(call=call, ask=ask, arrived=now, started=time.time(), explain=explain)

    async def call(self, client: RecordingClient | None = None, **kind: bool) -> RecordingClient:
        client = client or RecordingClient()
        await self.line.serve(self.pool, self.request(**kind), client)
        return client

    def inflight(self) -> int:
        return sum(state.inflight for state in self.router.states(time.monotonic()).values())


def attempts(house: House) -> int:
    return sum(len(engine.calls) for engine in house.engines.values())


async def test_a_stream_arrives_whole_with_one_head_and_one_observation() -> None:
    house = House(ScriptedEngine("a", WHOLE))

    client = await house.call()

    assert client.status == 200
    assert client.body == b"".join(block for block, _ in WHOLE)
    assert client.ended
    assert client.headers["x-enginehouse-endpoint"] == "a"
    assert client.headers["x-enginehouse-engine"] == "vllm"
    assert client.headers["x-enginehouse-policy"] == "round_robin"
    assert float(client.headers["x-enginehouse-overhead-ms"]) >= 0
    assert client.headers["content-type"].startswith("text/event-stream")
    [served] = house.served
    [seen] = served.observations
    assert (served.outcome, served.status, seen.outcome) == ("ok", 200, "ok")
    assert (seen.prompt_tokens, seen.output_tokens, seen.tokens_estimated) == (3, 2, False)
    assert seen.call_ttft is not None and seen.attempt_ttft is not None and seen.tpot is not None
    assert house.inflight() == 0


async def test_b26_a_whole_answer_has_no_first_token_time() -> None:
    house = House(ScriptedEngine("a", [answer()]))

    client = await house.call(stream=False)

    assert client.headers["content-type"] == "application/json"
    assert int(client.headers["content-length"]) == len(client.body)
    assert json.loads(client.body)["object"] == "chat.completion"
    assert house.served[0].observations[0].call_ttft is None
    assert house.served[0].observations[0].finish == "stop"


@pytest.mark.parametrize("error", [Unreached("no"), Overloaded("full"), Faulted("broke"), Gone("died")])
async def test_a_failure_before_the_first_token_goes_to_another_endpoint(error: EngineError) -> None:
    plan = [[ROLE, error], WHOLE]
    house = House(ScriptedEngine("a", plan=plan), ScriptedEngine("b", plan=plan))

    client = await house.call()

    assert client.status == 200
    assert client.body == b"".join(block for block, _ in WHOLE), "the failed attempt's prefix must not show"
    assert [o.outcome for o in house.served[0].observations] == [
        "overload" if isinstance(error, Overloaded) else "error",
        "ok",
    ]
    assert house.inflight() == 0


@pytest.mark.parametrize(
    "error", [Lost("broke off"), TimedOut("silent"), Malformed("html"), Refused("bad", status=400)]
)
async def test_work_that_may_have_been_done_is_never_run_again(error: EngineError) -> None:
    house = House(ScriptedEngine("a", [error]), ScriptedEngine("b", [error]))

    client = await house.call()

    assert attempts(house) == 1
    assert client.status is not None and client.status >= 400
    assert json.loads(client.body)["error"]["message"] == error.message
    assert client.ended


async def test_a_call_that_brings_engines_down_is_run_again_only_once() -> None:
    house = House(*[ScriptedEngine(name, [Gone("died")]) for name in "abcd"], max_attempts=4)

    client = await house.call()

    assert attempts(house) == 2
    assert client.status == 502


async def test_no_work_is_run_again_where_the_pool_says_never() -> None:
    house = House(*[ScriptedEngine(name, [Gone("died")]) for name in "ab"], rerun="never")

    await house.call()

    assert attempts(house) == 1


async def test_b12_after_a_token_there_is_no_second_try_but_an_error_event() -> None:
    house = House(*[ScriptedEngine(name, [ROLE, token("Hel"), Gone("died")], WHOLE) for name in "ab"])

    client = await house.call()

    assert attempts(house) == 1
    assert client.status == 200
    _role, second, last = client.body.split(b"\n\n")[:3]
    assert b"Hel" in second
    assert json.loads(last.removeprefix(b"data: "))["error"]["message"] == "died"
    assert b"[DONE]" not in client.body and b"finish_reason" not in client.body
    assert client.ended
    assert house.served[0].outcome == "error"


async def test_b05_an_error_before_the_first_token_is_a_real_status() -> None:
    house = House(ScriptedEngine("a", [ROLE, Refused("too hot", status=400, param="temperature")]))

    client = await house.call()

    assert client.status == 400
    assert json.loads(client.body)["error"]["param"] == "temperature"


@pytest.mark.parametrize("stream", [True, False])
async def test_b09_a_client_that_leaves_before_the_first_token_ends_the_attempt(stream: bool) -> None:
    engine = ScriptedEngine("a", [never])
    house = House(engine)
    client = RecordingClient()
    task = asyncio.ensure_future(house.call(client, stream=stream))
    await engine.opened.wait()

    client.gone.set()
    await task

    assert engine.attempts[0].aborted.is_set()
    assert house.served[0].outcome == "cancelled" and house.served[0].status == 499
    assert [o.outcome for o in house.served[0].observations] == ["cancelled"]
    assert house.inflight() == 0
    assert house.router.states(time.monotonic())["a"].breaker == "closed"


async def test_b09_a_client_that_leaves_mid_stream_ends_the_attempt() -> None:
    engine = ScriptedEngine("a", [ROLE, token("Hel"), never])
    house = House(engine)
    client = RecordingClient()
    task = asyncio.ensure_future(house.call(client))
    await client.wrote.wait()

    client.gone.set()
    await task

    assert engine.attempts[0].aborted.is_set()
    assert house.inflight() == 0


async def test_b10_two_hundred_departures_leave_nothing_behind() -> None:
    engine = ScriptedEngine("a", [ROLE, token("Hel"), never])
    house = House(engine)
    before = len(asyncio.all_tasks())

    for _ in range(200):
        client = RecordingClient()
        task = asyncio.ensure_future(house.call(client))
        await client.wrote.wait()
        client.gone.set()
        await task
        await engine.attempts[-1].closed()

    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == before
    assert house.inflight() == 0
    assert len(house.served) == 200


async def test_b10_a_cancelled_handler_still_ends_its_attempt() -> None:
    engine = ScriptedEngine("a", [never])
    house = House(engine)
    task = asyncio.ensure_future(house.call())
    await engine.opened.wait()

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert engine.attempts[0].aborted.is_set()
    assert house.inflight() == 0
    assert len(house.served) == 1


async def test_b10_a_client_that_stops_reading_holds_the_engine_back_and_can_leave() -> None:
    block = token("x" * 8192)
    engine = ScriptedEngine("a", [ROLE, *[block] * 1000, DONE])
    house = House(engine)
    client = RecordingClient()
    client.stall = asyncio.Event()
    task = asyncio.ensure_future(house.call(client))
    await engine.opened.wait()

    await engine.attempts[0].blocked.wait()
    client.gone.set()
    client.stall.set()
    await task

    assert len(client.body) <= HIGH_WATER + 16384
    assert house.inflight() == 0


async def test_a_client_that_reads_slowly_gets_everything() -> None:
    block = token("x" * 8192)
    engine = ScriptedEngine("a", [ROLE, *[block] * 200, DONE])
    house = House(engine)
    client = RecordingClient()
    client.stall = asyncio.Event()
    task = asyncio.ensure_future(house.call(client))
    await engine.opened.wait()
    await engine.attempts[0].blocked.wait()

    client.stall.set()
    await task

    assert client.body.count(b"x" * 8192) == 200
    assert client.body.endswith(DONE[0])


async def test_a_prefix_without_tokens_is_not_held_for_ever() -> None:
    role = (b"data: " + b"r" * PREFIX_CAP + b"\n\n", ROLE[1])
    engine = ScriptedEngine("a", [role, never])
    house = House(engine)
    client = RecordingClient()
    task = asyncio.ensure_future(house.call(client))

    await client.wrote.wait()
    client.gone.set()
    await task

    assert client.status == 200


async def test_after_commit_after_the_head_goes_out_with_comments_and_failover_still_works() -> None:
    begin = asyncio.Event()
    plan = [[begin.wait, Unreached("no")], [token("Hi"), DONE]]
    house = House(ScriptedEngine("a", plan=plan), ScriptedEngine("b", plan=plan), commit_after=0.05, heartbeat=0.05)
    client = RecordingClient()
    task = asyncio.ensure_future(house.call(client))

    await client.wrote.wait()
    begin.set()
    await task

    assert client.status == 200
    assert client.body.startswith(b": ")
    assert client.body.endswith(token("Hi")[0] + DONE[0])
    assert attempts(house) == 2


async def test_after_commit_after_a_failure_is_an_error_event() -> None:
    begin = asyncio.Event()
    house = House(ScriptedEngine("a", [begin.wait, Lost("broke off")]), commit_after=0.05, heartbeat=0.05)
    client = RecordingClient()
    task = asyncio.ensure_future(house.call(client))

    await client.wrote.wait()
    begin.set()
    await task

    assert client.status == 200
    event = client.body.strip().split(b"\n\n")[-1]
    assert json.loads(event.removeprefix(b"data: "))["error"]["message"] == "broke off"


async def test_a_full_pool_makes_calls_wait_their_turn() -> None:
    begin = asyncio.Event()
    engine = ScriptedEngine("a", [begin.wait, *WHOLE], WHOLE)
    house = House(engine, limits=Limits(max_concurrency=1))
    first = asyncio.ensure_future(house.call())
    await engine.opened.wait()
    second = asyncio.ensure_future(house.call())
    await asyncio.sleep(0)
    assert len(engine.calls) == 1

    begin.set()
    await asyncio.gather(first, second)

    assert [served.outcome for served in house.served] == ["ok", "ok"]
    assert house.served[1].observations[0].queue_wait >= 0
    assert house.inflight() == 0


async def test_a_stream_that_waits_for_a_place_gets_its_head_and_comments_after_commit_after() -> None:
    begin = asyncio.Event()
    engine = ScriptedEngine("a", [begin.wait, *WHOLE], WHOLE)
    house = House(engine, limits=Limits(max_concurrency=1), commit_after=0.05, heartbeat=0.05)
    first = asyncio.ensure_future(house.call(stream=False))
    await engine.opened.wait()
    waiter = RecordingClient()
    second = asyncio.ensure_future(house.call(waiter))

    await waiter.wrote.wait()
    assert len(engine.calls) == 1, "it must be waiting still"
    assert waiter.status == 200 and "x-enginehouse-endpoint" not in waiter.headers
    begin.set()
    await asyncio.gather(first, second)

    assert waiter.body.startswith(b": ") and waiter.body.endswith(DONE[0])
    assert house.inflight() == 0


async def test_b09_a_client_that_leaves_while_it_waits_gives_its_turn_up() -> None:
    begin = asyncio.Event()
    engine = ScriptedEngine("a", [begin.wait, *WHOLE], WHOLE)
    house = House(engine, limits=Limits(max_concurrency=1))
    first = asyncio.ensure_future(house.call())
    await engine.opened.wait()
    leaver = RecordingClient()
    second = asyncio.ensure_future(house.call(leaver))
    await asyncio.sleep(0.01)

    leaver.gone.set()
    await second
    begin.set()
    await first

    assert len(engine.calls) == 1
    assert {served.outcome for served in house.served} == {"ok", "cancelled"}
    assert house.inflight() == 0


async def test_no_endpoint_is_a_503_that_says_why() -> None:
    house = House(ScriptedEngine("a", WHOLE))
    house.router.set_health("a", "down", time.monotonic())

    client = await house.call()

    assert client.status == 503
    assert "a: down" in json.loads(client.body)["error"]["message"]
    assert house.served[0].outcome == "rejected"


async def test_a_prompt_that_fits_nowhere_is_a_400_with_each_endpoint_named() -> None:
    house = House(ScriptedEngine("a", WHOLE), ScriptedEngine("b", WHOLE), limits=Limits(max_input_tokens=2))

    client = await house.call()

    assert client.status == 400
    error = json.loads(client.body)["error"]
    assert error["code"] == "context_length_exceeded"
    assert "a: too long (3 > 2)" in error["message"] and "b: too long (3 > 2)" in error["message"]


async def test_explain_says_in_one_header_line_what_was_decided() -> None:
    house = House(ScriptedEngine("a", WHOLE))

    client = await house.call(explain=True)

    assert client.headers["x-enginehouse-explain"].startswith("policy round_robin (each in turn): sent to a: ")
    assert "\n" not in client.headers["x-enginehouse-explain"]
