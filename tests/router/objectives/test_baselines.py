"""The baselines, and evenness of all policies over equal endpoints (B36)."""

from __future__ import annotations

from collections import Counter

import pytest

from engines.contract import Load
from router import Router
from router.policies import names as policy_names
from tests.router.build import ask, endpoint, fill, measure, names, ready


def three(policy: str, seed: int = 0) -> Router:
    return ready(endpoint("a"), endpoint("b"), endpoint("c"), policy=policy, seed=seed)


@pytest.mark.parametrize("policy", policy_names())
def test_b36_sequential_calls_spread_over_equal_idle_endpoints(policy: str) -> None:
    router = three(policy)
    chosen: Counter[str | None] = Counter()
    for number in range(3000):
        now = 0.1 * number
        decision = router.decide(ask(f"r{number}", prompt_tokens=100, max_tokens=50), now)
        chosen[decision.endpoint] += 1
        router.first_token(decision.attempt, now + 0.02 + 0.001 * (number % 7))
        router.finish(decision.attempt, now + 0.09, output_tokens=30, last_token=now + 0.08)
    assert all(0.25 <= chosen[name] / 3000 <= 0.42 for name in "abc"), chosen


@pytest.mark.parametrize("policy", [name for name in policy_names() if name != "p2c_ewma"])
@pytest.mark.parametrize("kind", ["generate", "embed"])
def test_b36_concurrent_slow_calls_spread_evenly(policy: str, kind: str) -> None:
    chosen = Counter(names(fill(three(policy), 90, 1.0, kind=kind, prompt_tokens=10)))
    assert all(27 <= chosen[name] <= 33 for name in "abc"), chosen


def test_b36_two_choices_spreads_concurrent_slow_calls_nearly_evenly() -> None:
    chosen = Counter(names(fill(three("p2c_ewma"), 90, 1.0)))
    assert all(27 <= chosen[name] <= 33 for name in "abc"), chosen


def test_b36_embeddings_and_chats_count_in_the_same_place() -> None:
    router = three("least_requests")
    fill(router, 30, 1.0, prefix="e", kind="embed")
    fill(router, 60, 1.0, prefix="g")
    assert [state.inflight for state in router.states(1.0).values()] == [30, 30, 30]


def test_round_robin_takes_strict_turns() -> None:
    chosen = names(fill(three("round_robin"), 9, 1.0))
    assert sorted(str(name) for name in chosen[:3]) == ["a", "b", "c"]
    assert chosen[:3] == chosen[3:6] == chosen[6:9]


def test_round_robin_keeps_its_turns_while_one_is_away() -> None:
    router = three("round_robin")
    fill(router, 3, 1.0)
    router.set_health("b", "down", 1.0)
    assert Counter(names(fill(router, 10, 2.0, prefix="g"))) == {"a": 5, "c": 5}
    router.set_health("b", "ready", 3.0)
    assert router.decide(ask(), 3.0).endpoint == "b"


def test_least_requests_takes_the_least_busy_counting_foreign_load() -> None:
    router = three("least_requests")
    router.set_load("a", Load(running=5), 1.0)
    router.set_load("b", Load(running=1, waiting=1), 1.0)
    assert sorted(str(name) for name in names(fill(router, 4, 1.0))) == ["b", "c", "c", "c"]
    assert router.decide(ask(), 2.0).candidates["a"].terms == {"calls": 5.0}


def test_least_tokens_takes_the_fewest_tokens_and_follows_progress() -> None:
    router = ready(endpoint("a"), endpoint("b"), policy="least_tokens")
    first = router.decide(ask("long", prompt_tokens=1000), 1.0)
    other = router.decide(ask("short", prompt_tokens=10), 1.0)
    assert {first.endpoint, other.endpoint} == {"a", "b"}
    assert router.decide(ask("next", prompt_tokens=1), 1.0).endpoint == other.endpoint
    router.first_token("short", 1.1)
    router.progress("short", 2000, 5.0)
    assert router.decide(ask("last", prompt_tokens=1), 5.0).endpoint == first.endpoint


def test_p2c_ewma_prefers_the_faster_of_two_and_states_true_odds() -> None:
    router = three("p2c_ewma")
    for name, ttft in (("a", 0.1), ("b", 0.2), ("c", 0.4)):
        measure(router, name, ttft, ttft / 10, 1.0)
    decision = router.decide(ask(), 2.0)
    assert decision.propensities == pytest.approx({"a": 2 / 3, "b": 1 / 3, "c": 0.0})
    router.finish("r1", 2.0, outcome="cancelled")
    firsts: Counter[str | None] = Counter()
    for number in range(3000):
        again = router.decide(ask(f"x{number}"), 2.0)
        firsts[again.endpoint] += 1
        router.finish(again.attempt, 2.0, outcome="cancelled")
    assert firsts["a"] / 3000 == pytest.approx(2 / 3, abs=0.03)


def test_p2c_ewma_takes_the_unmeasured_for_as_slow_as_the_slowest() -> None:
    router = three("p2c_ewma")
    measure(router, "a", 0.1, 0.01, 1.0)
    measure(router, "b", 0.4, 0.04, 1.0)
    terms = router.decide(ask(), 2.0).candidates
    assert terms["c"].terms["slowdown"] == terms["b"].terms["slowdown"] > 2.0


def test_one_bad_sample_does_not_keep_an_endpoint_away_for_ever() -> None:
    router = ready(endpoint("a"), endpoint("b"), endpoint("c"), policy="p2c_ewma")
    for name, ttft in (("a", 0.1), ("b", 0.1), ("c", 0.8)):
        measure(router, name, ttft, ttft / 10, 1.0, times=1)
    chosen: Counter[str | None] = Counter()
    for number in range(600):
        now = 10.0 + 5.0 * number
        decision = router.decide(ask(f"r{number}"), now)
        chosen[decision.endpoint] += 1
        router.first_token(decision.attempt, now + 0.1)
        router.finish(decision.attempt, now + 0.2, output_tokens=11)
    assert chosen["c"] > 50
