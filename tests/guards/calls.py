"""Guards of what becomes of a call: clients that leave, second tries, even load."""

from __future__ import annotations

from tests.guards.guard import Guard

__all__ = ["CALLS"]

_CANCEL = "tests/e2e/test_bugs_cancel.py::test_"
_FAILOVER = "tests/e2e/test_bugs_failover.py::test_"
_HUNDREDS = f"{_CANCEL}b10_hundreds_of_clients_that_leave_leave_nothing_behind"

CALLS: tuple[Guard, ...] = (
    # Clients that leave
    Guard(
        "B09",
        "gateway/serve.py",
        '            if outcome != "ok":\n                current.attempt.abort(',
        '            if outcome == "ok":\n                current.attempt.abort(',
        f"{_CANCEL}b09_the_engine_sees_at_once_that_the_client_is_gone[vllm-before the first token]",
    ),
    Guard(
        "B09",
        "gateway/relay.py",
        "        await self._client.gone.wait()\n        self._news.set()",
        "        await self._client.gone.wait()",
        f"{_CANCEL}b09_the_engine_sees_at_once_that_the_client_is_gone[vllm-without a stream]",
    ),
    Guard(
        "B09",
        "gateway/serve.py",
        "events: set[asyncio.Future[Any]] = {waiting, gone}",
        "events: set[asyncio.Future[Any]] = {waiting}",
        f"{_CANCEL}b09_a_call_that_waits_for_a_place_is_never_sent_for_a_client_that_left",
    ),
    Guard(
        "B09",
        "gateway/serve.py",
        '            self._pool.router.finish(decision.attempt, self._clock(), "cancelled")\n',
        "",
        f"{_CANCEL}b09_a_call_that_waits_for_a_place_is_never_sent_for_a_client_that_left",
    ),
    Guard(
        "B09",
        "gateway/serve.py",
        '        outcome, error = "cancelled", None',
        '        outcome, error = "error", None',
        f"{_CANCEL}b09_the_engine_sees_at_once_that_the_client_is_gone[vllm-mid-stream]",
    ),
    # What is left of them
    Guard(
        "B10",
        "gateway/serve.py",
        "            if following is None:\n                self._end(",
        '            if following is None and outcome != "cancelled":\n                self._end(',
        f"{_HUNDREDS}[mid-stream]",
    ),
    Guard(
        "B10",
        "gateway/relay.py",
        "            watch.cancel()",
        "            pass",
        f"{_CANCEL}b10_calls_that_end_well_leave_no_task_behind",
    ),
    Guard(
        "B10",
        "engines/http_attempt.py",
        "        if self._exchange is not None:\n            self._exchange.abort()\n        self.task.cancel(why)",
        "",
        f"{_HUNDREDS}[before the head]",
    ),
    # Second tries
    Guard(
        "B12",
        "gateway/serve.py",
        "elif error.failure is not None and not current.relay.passed and may_go_on(",
        "elif error.failure is not None and may_go_on(",
        f"{_FAILOVER}b12_what_has_begun_to_reach_the_client_is_never_begun_again[content-killed]",
    ),
    Guard(
        "B12",
        "gateway/relay.py",
        "if mark.token or mark.terminal or self._queued > PREFIX_CAP:",
        "if True:",
        f"{_FAILOVER}b12_where_only_a_role_had_come_a_killed_engine_does_not_show[a role]",
    ),
    Guard(
        "B12",
        "gateway/outcome.py",
        'return error.retry == "free" or (error.retry == "once" and pool.rerun == "gone" and not reran)',
        "return True",
        f"{_FAILOVER}b12_an_engine_that_lives_on_may_still_be_at_work_so_its_call_is_not_run_again",
    ),
    Guard(
        "B12",
        "engines/answer.py",
        '        fields["id"] = self._id\n',
        "",
        f"{_FAILOVER}b12_a_stream_has_one_id_whatever_the_engine_says[tensorrt_llm]",
    ),
    # Even load
    Guard(
        "B36",
        "router/pickers/best.py",
        "turn = int(draw * equals)",
        "turn = 0",
        f"{_FAILOVER}b36_sequential_calls_of_every_route_spread_over_idle_engines[least_requests]",
    ),
    Guard(
        "B36",
        "gateway/serve.py",
        "            if following is None:\n                self._end(",
        '            if following is None and outcome != "ok":\n                self._end(',
        f"{_FAILOVER}b36_slow_calls_of_every_route_spread_evenly_and_leave_no_count_behind[answered]",
    ),
    Guard(
        "B36",
        "router/state.py",
        "        self.live[live.id] = live\n        self.inflight += 1",
        '        self.live[live.id] = live\n        self.inflight += live.kind != "embed"',
        f"{_FAILOVER}b36_slow_calls_of_every_route_spread_evenly_and_leave_no_count_behind[answered]",
    ),
)
