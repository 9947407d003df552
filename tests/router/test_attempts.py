"""Second attempts, mirrors, and endpoints that come and go under their attempts."""

from __future__ import annotations

import pytest

from engines.contract import Load
from router.breaker import IN_A_ROW
from tests.router.build import ask, endpoint, fill, gauges, measure, ready, removals


def test_retry_and_hedge_of_unknown_attempts_are_rejected_and_counted() -> None:
    router = ready(endpoint("a"))
    for decision in (router.retry("x", 1.0), router.hedge("x", 1.0)):
        assert (decision.action, decision.reason) == ("reject", "unknown_attempt")
        assert removals(decision) == {"a": "unknown_attempt"}
    assert router.counters["unknown_attempts"] == 2
    router.decide(ask("r1"), 1.0)
    router.finish("r1", 1.0)
    assert router.retry("r1", 2.0).reason == "unknown_attempt"


def test_hedge_is_a_second_live_attempt_elsewhere() -> None:
    router = ready(endpoint("a"), endpoint("b"))
    first = router.decide(ask("r1"), 1.0)
    second = router.hedge("r1", 1.5)
    assert (second.attempt, second.action) == ("r1/2", "send")
    assert {first.endpoint, second.endpoint} == {"a", "b"}
    assert [gauges(router, name)[0] for name in "ab"] == [1, 1]
    none_left = router.hedge("r1", 1.6)
    assert (none_left.action, none_left.reason) == ("reject", "tried_all")
    router.finish("r1", 2.0, outcome="cancelled")
    assert router.hedge("r1/2", 2.0).action == "reject"
    router.finish("r1/2", 2.1)
    assert [gauges(router, name)[0] for name in "ab"] == [0, 0]


def test_hedge_never_waits() -> None:
    router = ready(endpoint("a", slots=1), endpoint("b", slots=1))
    fill(router, 2, 1.0)
    decision = router.hedge("f0", 1.0)
    assert (decision.action, decision.reason) == ("reject", "full")
    assert router.next_wake() is None
    assert router.wake(1.0) == []


def test_b38_a_mirror_is_in_flight_and_teaches_but_touches_no_breaker_and_no_turn() -> None:
    router = ready(endpoint("a"), endpoint("b"), policy="round_robin")
    for number in range(3 * IN_A_ROW):
        attempt = router.mirror(ask(f"r{number}"), "a", 1.0)
        assert attempt == f"r{number}/m1"
        assert gauges(router, "a")[0] == 1
        router.finish(attempt, 1.5, outcome="error" if number % 2 else "overload")
    assert router.states(1.5)["a"].breaker == "closed"
    assert router.states(1.5)["a"].eligible
    measure(router, "a", 0.2, 0.01, 2.0)
    assert router.decide(ask("x"), 3.0).candidates["a"].ttft == pytest.approx(0.2)


def test_mirrors_of_one_ask_have_their_own_ids_and_are_not_retried() -> None:
    router = ready(endpoint("a"), endpoint("b"))
    router.decide(ask("r1"), 1.0)
    assert [router.mirror(ask("r1"), name, 1.0) for name in ("a", "b")] == ["r1/m1", "r1/m2"]
    decision = router.retry("r1/m1", 1.1)
    assert (decision.action, decision.reason) == ("reject", "mirror")
    router.finish("r1/m2", 1.2)
    assert sum(state.inflight for state in router.states(1.2).values()) == 1


def test_a_mirror_to_an_endpoint_that_is_not_there_is_ignored_and_counted() -> None:
    router = ready(endpoint("a"))
    router.finish(router.mirror(ask("r1"), "nowhere", 1.0), 2.0)
    assert router.counters == {"unknown_attempts": 1, "unknown_endpoints": 1}


def test_a_removed_endpoints_attempts_end_silently_also_when_its_name_comes_back() -> None:
    router = ready(endpoint("a"), endpoint("b"), policy="round_robin")
    for number in range(4):
        router.decide(ask(f"r{number}", prompt_tokens=7), 1.0)
    router.remove("a", 2.0)
    assert set(router.states(2.0)) == {"b"}
    router.set_endpoint(endpoint("a"), 3.0)
    for number in range(4):
        router.first_token(f"r{number}", 4.0)
        router.progress(f"r{number}", 5, 4.0)
        router.finish(f"r{number}", 5.0, outcome="error")
    assert gauges(router, "a", 5.0) == gauges(router, "b", 5.0) == (0, 0, 0, 0)
    assert router.decide(ask("x"), 5.0).candidates["a"].samples == 0
    assert set(router.counters) == {"sent"}


def test_a_call_of_a_removed_endpoint_can_be_retried() -> None:
    router = ready(endpoint("a"))
    router.decide(ask("r1"), 1.0)
    router.set_endpoint(endpoint("b"), 1.0)
    router.remove("a", 1.0)
    assert router.retry("r1", 2.0, failure="connect").endpoint == "b"


def test_a_change_of_engine_forgets_what_was_learnt_and_a_change_of_limits_does_not() -> None:
    router = ready(endpoint("a"))
    measure(router, "a", 0.2, 0.02, 1.0)
    router.set_endpoint(endpoint("a", slots=3), 2.0)
    assert router.decide(ask("r1"), 3.0).candidates["a"].ttft is not None
    router.set_endpoint(endpoint("a", "tgi", slots=3), 4.0)
    assert router.decide(ask("r2"), 5.0).candidates["a"].ttft is None


def test_an_id_in_use_gets_a_further_attempt_so_that_nothing_is_counted_twice() -> None:
    router = ready(endpoint("a"))
    assert [router.decide(ask("r1"), 1.0).attempt for _ in range(3)] == ["r1", "r1/2", "r1/3"]
    assert router.counters["reused_ids"] == 2
    for attempt in ("r1/3", "r1", "r1/2"):
        router.finish(attempt, 2.0)
    assert gauges(router, "a") == (0, 0, 0, 0)
    assert router.decide(ask("r1"), 3.0).attempt == "r1"


def test_ids_that_look_like_attempts_do_not_collide() -> None:
    router = ready(endpoint("a"), endpoint("b"))
    router.decide(ask("r1/2"), 1.0)
    router.decide(ask("r1"), 1.0)
    assert router.retry("r1", 2.0).attempt == "r1/3"
    router.finish("r1/2", 3.0)
    router.finish("r1/3", 3.0)
    assert sum(state.inflight for state in router.states(3.0).values()) == 0


def test_a_mirror_never_takes_the_id_of_an_ask_that_waits() -> None:
    router = ready(endpoint("a", slots=1), endpoint("b", slots=0))
    fill(router, 1, 1.0)
    assert router.decide(ask("r1/m1"), 1.0).action == "wait"
    assert router.mirror(ask("r1"), "b", 1.0) == "r1/m2"


def test_stale_load_is_not_shown() -> None:
    router = ready(endpoint("a"))
    router.set_load("a", Load(running=3, kv_used=0.5), 1.0)
    assert router.states(2.0)["a"].load == Load(running=3, kv_used=0.5)
    assert router.states(31.0)["a"].load is None
