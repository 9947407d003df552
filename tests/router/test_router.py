"""The interface that others drive: decisions and events."""

from __future__ import annotations

import pytest

from engines.contract import Load
from router import Ask, Endpoint, Router, Slo
from tests.router.build import ask, endpoint, gauges, measure, ready


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
