"""One header-safe line."""

from __future__ import annotations

import pytest

from router import Candidate, Decision, Router
from router.explain import LONGEST, explain
from router.policies import names
from tests.router.build import ask, endpoint, measure, ready


def test_says_by_which_policy_what_was_expected_and_why_others_were_not_asked() -> None:
    router = ready(endpoint("vllm-0"), endpoint("trt-0", "tensorrt_llm", max_input_tokens=2048), policy="latency")
    measure(router, "vllm-0", 0.0432, 0.0081, 1.0, times=212)
    assert explain(router.decide(ask(prompt_tokens=2310), 2.0)) == (
        "policy latency (tensorrt_llm before vllm before tgi before llamacpp): sent to vllm-0: rank 3, 0 in flight, "
        "expected 43 ms to first token, 8.1 ms per token (212 calls); trt-0: too long (2,310 > 2,048)"
    )


def test_one_call_is_no_calls() -> None:
    router = ready(endpoint("a"))
    measure(router, "a", 0.0432, 0.0081, 1.0, times=1)
    assert explain(router.decide(ask(), 2.0)).endswith("8.1 ms per token (1 call)")


def test_the_chosen_one_comes_first_and_the_unmeasured_are_called_so() -> None:
    router = ready(endpoint("a", "tgi"), endpoint("z", "tensorrt_llm"), policy="latency")
    assert explain(router.decide(ask(), 2.0)).endswith(
        ": sent to z: rank 1, 0 in flight, not measured yet; a: rank 4, 0 in flight, not measured yet"
    )


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ("matrix", "policy matrix (3 in flight with this one: tensorrt_llm first): sent to b: rank "),
        ("adaptive", "policy adaptive (as matrix, 3 in flight with this one: tensorrt_llm first): sent to b: rank "),
        ("round_robin", "policy round_robin (each in turn): sent to b: its last call was number 1, "),
        ("least_requests", "policy least_requests (fewest calls in flight): sent to b: 1 in flight, "),
        ("least_tokens", "policy least_tokens (fewest tokens in hand): sent to b: 0 tokens in hand, "),
        ("p2c_ewma", "policy p2c_ewma (the better of two drawn): sent to "),
        (
            "ecosystem",
            "policy ecosystem (hf before others, then tgi before vllm before tensorrt_llm before llamacpp): ",
        ),
    ],
)
def test_the_policys_own_reason_comes_first(policy: str, why: str) -> None:
    router = ready(endpoint("a"), endpoint("b"), policy=policy)
    router.decide(ask("r1"), 1.0, "round_robin")
    router.decide(ask("r2"), 1.0, "round_robin")
    decision = router.decide(ask("r3"), 1.0)
    assert explain(decision).startswith(why)
    assert decision.reason in why


def test_every_policy_has_a_word_on_its_order() -> None:
    for name in names():
        assert ready(endpoint("a"), policy=name).decide(ask(), 1.0).reason, name


@pytest.mark.parametrize("health", ["down", "loading", "draining"])
def test_a_rejection_says_so_once_with_the_cause(health: str) -> None:
    router = ready(endpoint("a"), endpoint("b"))
    router.set_health("a", health, 1.0, why="connection refused")
    router.set_health("b", health, 1.0)
    decision = router.decide(ask(), 1.0)
    assert explain(decision) == f"policy least_requests: rejected: a: {health} (connection refused); b: {health}"


def test_a_cause_is_forgotten_with_its_state() -> None:
    router = ready(endpoint("a"))
    router.set_health("a", "down", 1.0, why="connection refused")
    assert router.states(1.0)["a"].why == "connection refused"
    router.set_health("a", "down", 2.0, why="no answer")
    assert router.states(2.0)["a"].why == "no answer"
    router.set_health("a", "ready", 3.0)
    assert router.states(3.0)["a"].why == ""
    assert "no answer" not in explain(router.decide(ask(), 3.0))


def test_an_endpoint_that_ranks_last_for_its_health_says_so() -> None:
    router = ready(endpoint("a", "tensorrt_llm"), endpoint("b", "llamacpp"), policy="latency")
    router.set_health("a", "degraded", 1.0, why="no answer within 3 s")
    line = explain(router.decide(ask(), 1.0))
    assert ": sent to b: rank 5, " in line
    assert "; a: degraded, no answer within 3 s, rank 1, " in line


def test_waiting_says_so() -> None:
    router = ready(endpoint("a", slots=1))
    router.decide(ask("r1"), 1.0)
    assert explain(router.decide(ask("r2"), 1.0)) == "policy least_requests: waits: a: full (1 of 1)"


def test_a_reason_that_no_endpoint_gives_is_named() -> None:
    router = ready(endpoint("a"))
    assert explain(router.decide(ask(deadline=0.5), 1.0)).startswith("policy least_requests: rejected, deadline: a: ")


def test_the_line_is_one_line_of_printable_ascii_and_bounded() -> None:
    nasty = Candidate(name="e\r\nx-evil: 1\x00é漢", engine="vllm", removed_by="down", detail="\x7f\n")
    candidates = {"first": nasty} | {
        f"n{number}": Candidate(name="n" * 40, engine="vllm", removed_by="down") for number in range(200)
    }
    line = explain(Decision(id="r", attempt="r", action="reject", candidates=candidates))
    assert len(line) == LONGEST
    assert line.endswith("...")
    assert all(" " <= char <= "~" for char in line)
    assert line.startswith("rejected: e??x-evil: 1???: down (??)")


def test_a_router_without_endpoints_is_explained() -> None:
    assert explain(Router().decide(ask(), 1.0)) == "policy adaptive: rejected, no endpoints"
