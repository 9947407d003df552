"""The interface that others drive: decisions, retries, hedges, mirrors, events."""

from __future__ import annotations

import pytest

from engines.contract import Load
from router import Ask, Decision, Endpoint, Router, Slo
from router.breaker import FIRST_PAUSE_S, IN_A_ROW
from router.contract import Failure
from tests.router.build import ask, endpoint, fill, measure, names, ready


def gauges(router: Router, name: str, now: float = 0.0) -> tuple[int, int, int, int]:
    state = router.states(now)[name]
    return state.inflight, state.waiting, state.context_tokens, state.queued_tokens


def removals(decision: Decision) -> dict[str, str | None]:
    return {name: candidate.removed_by for name, candidate in decision.candidates.items()}


def test_the_example_of_the_design_runs() -> None:
    router = Router([Endpoint("vllm-0", "vllm"), Endpoint("trt-0", "tensorrt_llm")])
    first = Ask("r1", prompt_tokens=512, max_tokens=256, slo=Slo(ttft=0.4, tpot=0.04))
    decision = router.decide(first, 10.0)
    assert (decision.id, decision.attempt, decision.action) == ("r1", "r1", "send")
    assert decision.endpoint == decision.ranking[0] == "trt-0"
    assert sum(decision.propensities.values()) == pytest.approx(1.0)
    assert set(decision.candidates) == {"vllm-0", "trt-0"}
    assert not decision.explored and decision.retry_after is None and decision.policy == "adaptive"


def test_a_call_is_counted_from_its_decision_to_its_end() -> None:
    router = ready(endpoint("a"))
    router.decide(ask("r1", prompt_tokens=100), 1.0)
    assert gauges(router, "a") == (1, 1, 0, 100)
    router.first_token("r1", 1.2)
    assert gauges(router, "a") == (1, 0, 100, 0)
    router.progress("r1", 40, 2.0)
    router.progress("r1", 30, 2.0)  # late, older
    assert gauges(router, "a") == (1, 0, 140, 0)
    router.finish("r1", 3.0, output_tokens=60, last_token=2.9)
    assert gauges(router, "a") == (0, 0, 0, 0)


def test_an_attempts_first_token_and_pace_are_learnt() -> None:
    router = ready(endpoint("a"), endpoint("b"))
    router.decide(ask("r1"), 1.0)
    there = router.decide(ask("r2"), 1.0)
    router.first_token("r2", 1.25)
    router.finish("r2", 9.0, output_tokens=11, last_token=2.25)
    seen = router.decide(ask("r3"), 19.0).candidates
    measured = seen[str(there.endpoint)]
    other = next(candidate for name, candidate in seen.items() if name != there.endpoint)
    assert measured.ttft == pytest.approx(0.25)
    assert measured.tpot == pytest.approx(0.1)
    assert measured.ttft_p90 is not None and measured.ttft_p90 > 0.25
    assert measured.tpot_p90 is not None and measured.tpot_p90 > 0.1
    assert (measured.samples, measured.age) == (1, 10.0)
    assert (other.ttft, other.ttft_p90, other.tpot, other.tpot_p90, other.samples, other.age) == (*[None] * 4, 0, None)


@pytest.mark.parametrize("outcome", ["cancelled", "error", "overload"])
def test_only_successful_first_tokens_teach(outcome: str) -> None:
    router = ready(endpoint("a"))
    router.decide(ask("r1"), 1.0)
    router.finish("r1", 1.001, outcome=outcome, output_tokens=50, last_token=1.001)  # type: ignore[arg-type]
    assert router.decide(ask("r2"), 60.0).candidates["a"].ttft is None


def test_embeddings_have_no_first_token_and_no_pace() -> None:
    router = ready(endpoint("a"))
    router.decide(ask("e1", kind="embed", prompt_tokens=10), 1.0)
    router.finish("e1", 1.5, output_tokens=0)
    assert router.decide(ask("r1"), 2.0).candidates["a"].ttft is None
    again = router.decide(ask("e2", kind="embed"), 2.0).candidates["a"]
    assert (again.ttft, again.tpot, again.samples) == (None, None, 1)


def test_a_call_without_stream_starts_to_run_at_its_predicted_first_token() -> None:
    router = ready(endpoint("a"))
    router.decide(ask("unpredicted", stream=False, prompt_tokens=5), 1.0)
    measure(router, "a", 0.5, 0.01, 1.0)
    router.decide(ask("r1", stream=False, prompt_tokens=100), 10.0)
    assert gauges(router, "a", 10.4) == (2, 2, 0, 105)
    assert gauges(router, "a", 10.5) == (2, 1, 100, 5)
    router.finish("r1", 11.0)
    router.finish("unpredicted", 11.0)
    assert gauges(router, "a", 11.0) == (0, 0, 0, 0)


def test_a_call_without_stream_teaches_by_the_engines_own_timings() -> None:
    router = ready(endpoint("a"))
    router.decide(ask("r1", stream=False), 1.0)
    router.finish("r1", 3.0, output_tokens=11, engine_prefill=0.5, engine_decode=1.0)
    measured = router.decide(ask("r2"), 4.0).candidates["a"]
    assert (measured.ttft, measured.tpot) == (pytest.approx(1.0), pytest.approx(0.1))


def test_several_sequences_are_put_out_side_by_side() -> None:
    router = ready(endpoint("a"))
    router.decide(ask("r1", sequences=4), 1.0)
    router.first_token("r1", 1.5)
    router.finish("r1", 2.5, output_tokens=44, last_token=2.5)
    assert router.decide(ask("r2"), 3.0).candidates["a"].tpot == pytest.approx(0.1)


def test_events_that_come_late_twice_or_for_nobody_are_counted_and_change_nothing() -> None:
    router = ready(endpoint("a"))
    router.decide(ask("r1", prompt_tokens=10), 1.0)
    router.first_token("r1", 1.1)
    router.first_token("r1", 1.2)
    router.finish("r1", 2.0)
    router.finish("r1", 2.0)
    router.first_token("r1", 2.1)
    router.progress("r1", 5, 2.1)
    router.finish("never", 2.2)
    router.first_token("never", 2.2)
    router.set_load("nowhere", Load(running=1), 2.2)
    router.set_health("nowhere", "ready", 2.2)
    router.remove("nowhere", 2.2)
    assert gauges(router, "a") == (0, 0, 0, 0)
    assert router.counters == {"late_events": 4, "sent": 1, "unknown_attempts": 2, "unknown_endpoints": 3}


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


def test_retry_and_hedge_of_unknown_attempts_are_rejected_and_counted() -> None:
    router = ready(endpoint("a"))
    for decision in (router.retry("x", 1.0), router.hedge("x", 1.0)):
        assert (decision.action, decision.reason) == ("reject", "unknown_attempt")
        assert removals(decision) == {"a": "unknown_attempt"}
    assert router.counters["unknown_attempts"] == 2
    router.decide(ask("r1"), 1.0)
    router.finish("r1", 1.0)
    assert router.retry("r1", 2.0).reason == "unknown_attempt"


def test_words_that_are_not_in_the_interface_are_refused_before_anything_changes() -> None:
    router = ready(endpoint("a"))
    router.decide(ask("r1"), 1.0)
    with pytest.raises(ValueError, match="unknown failure"):
        router.retry("r1", 1.0, failure="nonsense")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown outcome"):
        router.finish("r1", 1.0, outcome="nonsense")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown health"):
        router.set_health("a", "nonsense", 1.0)
    assert gauges(router, "a")[0] == 1


def test_two_endpoints_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two endpoints are named 'a'"):
        Router([endpoint("a"), endpoint("a")])


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


def test_ended_asks_are_forgotten() -> None:
    router = ready(endpoint("a"), endpoint("b", slots=2))
    sizes = []
    for number in range(30_000):
        now = 0.01 * number
        decision = router.decide(ask(f"r{number}", stream=bool(number % 3), deadline=now + 5.0), now)
        if number % 5 == 0:
            decision = router.retry(decision.attempt, now, failure="overload", retry_after=0.0)
        router.first_token(decision.attempt, now)
        router.finish(decision.attempt, now + 0.005, output_tokens=5)
        if number % 10_000 == 9_999:
            sizes.append(len(router.dump()))
    assert max(sizes) - min(sizes) < 200
    assert max(sizes) < 3000
