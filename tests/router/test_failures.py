"""What failed, who is asked instead, and what is said where nobody can be asked."""

from __future__ import annotations

import pytest

from router import Router
from router.breaker import FIRST_PAUSE_S, IN_A_ROW
from router.contract import Failure
from tests.router.build import ask, endpoint, fill, gauges, names, ready, removals


def test_retry_goes_elsewhere_and_ends_the_first_attempt() -> None:
    router = ready(endpoint("a"), endpoint("b"))
    first = router.decide(ask("r1"), 1.0)
    second = router.retry("r1", 1.5, failure="connect")
    assert (second.id, second.attempt, second.action) == ("r1", "r1/2", "send")
    assert {first.endpoint, second.endpoint} == {"a", "b"}
    assert removals(second)[str(first.endpoint)] == "tried"
    assert gauges(router, str(first.endpoint))[0] == 0
    third = router.retry("r1/2", 2.0)
    assert (third.attempt, third.action, third.reason) == ("r1/3", "reject", "tried_all")
    assert sum(state.inflight for state in router.states(2.0).values()) == 0


@pytest.mark.parametrize("failure", ["connect", "timeout", "error", "bad_output"])
def test_failures_open_the_breaker_and_a_trial_closes_it(failure: Failure) -> None:
    router = ready(endpoint("a"))
    for number in range(IN_A_ROW):
        router.decide(ask(f"r{number}"), 1.0)
        router.retry(f"r{number}", 1.0, failure=failure)
    refused = router.decide(ask("x"), 1.0)
    assert (refused.action, refused.reason, refused.retry_after) == ("reject", "breaker_open", FIRST_PAUSE_S)
    assert router.states(1.0)["a"].breaker == "open"
    now = 1.0 + FIRST_PAUSE_S
    assert router.states(now)["a"].breaker == "half_open"
    assert router.decide(ask("trial"), now).action == "send"
    assert router.decide(ask("second"), now).reason == "breaker_open"
    router.first_token("trial", now + 0.1)
    router.finish("trial", now + 0.2)
    assert router.states(now + 0.2)["a"].breaker == "closed"
    assert router.decide(ask("third"), now + 0.2).action == "send"


def test_finish_with_error_counts_against_the_endpoint_and_cancel_does_not() -> None:
    router = ready(endpoint("a"), endpoint("b"), policy="round_robin")
    for number in range(4 * IN_A_ROW):
        router.decide(ask(f"r{number}"), 1.0)
        router.finish(f"r{number}", 1.0, outcome="cancelled")
    assert {state.breaker for state in router.states(1.0).values()} == {"closed"}
    for number in range(2 * IN_A_ROW):
        router.decide(ask(f"x{number}"), 1.0)
        router.finish(f"x{number}", 1.0, outcome="error")
    assert {state.breaker for state in router.states(1.0).values()} == {"open"}


def test_overload_never_trips_the_breaker_but_counts_as_full_for_a_moment() -> None:
    router = ready(endpoint("a"), endpoint("b"))
    for number in range(3 * IN_A_ROW):
        now = 10.0 * number
        first = router.decide(ask(f"r{number}"), now)
        second = router.retry(first.attempt, now, failure="overload")
        assert second.action == "send"
        other = router.decide(ask(f"o{number}"), now)
        assert removals(other)[str(first.endpoint)] == "full"
        router.finish(second.attempt, now + 1.0)
        router.finish(other.attempt, now + 1.0)
    assert {state.breaker for state in router.states(now).values()} == {"closed"}


def test_b13_retry_after_rests_the_whole_quota_group_and_is_passed_on() -> None:
    router = ready(endpoint("a", "vllm", "quota:acme"), endpoint("b", "vllm", "quota:acme"))
    router.decide(ask("r1"), 100.0)
    answer = router.retry("r1", 100.0, failure="overload", retry_after=30.0)
    assert (answer.action, answer.reason, answer.retry_after) == ("reject", "on_hold", 30.0)
    later = router.decide(ask("r2"), 110.0)
    assert (later.action, later.reason, later.retry_after) == ("reject", "on_hold", 20.0)
    assert router.decide(ask("r3"), 130.0).action == "send"


def test_b13_another_quota_group_takes_the_call() -> None:
    router = ready(endpoint("a", "vllm", "quota:acme"), endpoint("b", "vllm", "quota:acme"), endpoint("c"))
    router.set_health("c", "down", 1.0)
    router.decide(ask("r1"), 1.0)
    router.set_health("c", "ready", 1.0)
    assert router.retry("r1", 1.0, failure="overload", retry_after=30.0).endpoint == "c"
    assert set(names(fill(router, 10, 2.0))) == {"c"}


def test_b13_retry_after_of_zero_is_obeyed_and_absurd_ones_are_capped() -> None:
    router = ready(endpoint("a"))
    router.decide(ask("r1"), 1.0)
    router.retry("r1", 1.0, failure="overload", retry_after=0.0)
    assert router.decide(ask("r2"), 1.0).action == "send"
    router.retry("r2", 1.0, failure="overload", retry_after=1e7)
    assert router.decide(ask("r3"), 1.0).retry_after == 300.0


@pytest.mark.parametrize("retry_after", [-1.0, float("nan")])
def test_a_retry_after_that_is_no_time_is_taken_for_none(retry_after: float) -> None:
    router = ready(endpoint("a"))
    router.decide(ask("r1"), 1.0)
    router.retry("r1", 1.0, failure="overload", retry_after=retry_after)
    assert router.decide(ask("r2"), 1.0).action == "wait"


def test_b16_a_loading_engine_gets_nothing_trips_nothing_and_comes_back_by_itself() -> None:
    router = ready(endpoint("a"))
    router.set_health("a", "loading", 0.0)
    for second in range(60):
        refused = router.decide(ask(f"r{second}"), float(second))
        assert (refused.action, refused.reason) == ("reject", "loading")
        assert refused.retry_after is not None and 0.0 < refused.retry_after <= 10.0
    router.set_health("a", "ready", 60.0)
    assert router.states(60.0)["a"].breaker == "closed"
    assert router.decide(ask("x"), 60.0).action == "send"


def test_b19_tools_go_to_engines_that_declare_them() -> None:
    fleet = [
        endpoint("can", features=frozenset({"tools"})),
        endpoint("cannot", features=frozenset({"images"})),
        endpoint("silent"),
    ]
    router = ready(*fleet)
    decisions = fill(router, 50, 1.0, features=frozenset({"tools"}))
    assert set(names(decisions)) == {"can"}
    assert removals(decisions[0]) == {"can": None, "cannot": "lacks_feature", "silent": "feature_unknown"}
    assert decisions[0].candidates["cannot"].detail == "tools"
    router.set_health("can", "down", 1.0)
    assert router.decide(ask(features=frozenset({"tools"})), 1.0).endpoint == "silent"


def test_b19_what_no_endpoint_can_serve_is_rejected_for_good() -> None:
    router = ready(endpoint("a", features=frozenset({"images"})))
    decision = router.decide(ask(features=frozenset({"tools"})), 1.0)
    assert (decision.action, decision.reason, decision.retry_after) == ("reject", "lacks_feature", None)


def test_an_ask_that_fits_nowhere_is_rejected_for_good_even_while_endpoints_are_down_or_full() -> None:
    router = ready(endpoint("a", max_input_tokens=10), endpoint("b", max_total_tokens=10, slots=0))
    router.set_health("a", "down", 1.0)
    decision = router.decide(ask(prompt_tokens=11), 1.0)
    assert (decision.action, decision.reason, decision.retry_after) == ("reject", "too_long", None)
    assert decision.candidates["a"].detail == "11 > 10"


def test_the_endpoint_that_will_be_back_first_speaks_for_all() -> None:
    router = ready(endpoint("a"), endpoint("b"), endpoint("c", max_input_tokens=1))
    router.decide(ask("r1", prompt_tokens=5), 1.0)
    held = router.retry("r1", 1.0, failure="overload", retry_after=2.0)
    router.set_health(str(held.endpoint), "down", 1.0)
    decision = router.decide(ask("r2", prompt_tokens=5), 1.0)
    assert (decision.reason, decision.retry_after) == ("on_hold", 2.0)


def test_a_router_without_endpoints_rejects() -> None:
    decision = Router().decide(ask(), 1.0)
    assert (decision.action, decision.reason, decision.candidates) == ("reject", "no_endpoints", {})
    assert decision.retry_after is not None


def test_degraded_endpoints_serve_behind_ready_ones() -> None:
    router = ready(endpoint("good", slots=1), endpoint("poor"))
    router.set_health("poor", "degraded", 0.0)
    first = router.decide(ask("r1"), 100.0)
    assert (first.ranking, first.propensities) == (("good", "poor"), {"good": 1.0, "poor": 0.0})
    assert router.decide(ask("r2"), 100.0).endpoint == "poor"


def test_an_unprobed_endpoint_ranks_behind_ready_ones_until_a_probe_should_have_spoken() -> None:
    router = Router([endpoint("new"), endpoint("old")], policy="round_robin")
    router.set_health("old", "ready", 10.0)
    assert names(fill(router, 3, 10.0)) == ["old"] * 3
    assert router.decide(ask("r1"), 16.0).endpoint == "new"


def test_unknown_health_serves_where_nothing_is_ready() -> None:
    assert Router([endpoint("a")]).decide(ask(), 1.0).action == "send"
