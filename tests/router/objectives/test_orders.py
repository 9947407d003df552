"""Every rank policy by table: who comes first, who next, when nothing was measured."""

from __future__ import annotations

import pytest

from engines.contract import Load
from router import Endpoint, Slo
from tests.router.build import ask, endpoint, fill, measure, names, ready

ENGINES = {
    "trt": "tensorrt_llm",
    "triton": "triton",
    "vllm": "vllm",
    "tgi": "tgi",
    "lcpp": "llamacpp",
    "emb": "embedded",
}
FLEET = [Endpoint(name, engine) for name, engine in ENGINES.items()]


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("latency", ["trt", "triton", "vllm", "tgi", "lcpp", "emb"]),
        ("throughput", ["vllm", "trt", "triton", "tgi", "lcpp", "emb"]),
        ("memory", ["lcpp", "emb", "trt", "triton", "vllm", "tgi"]),
        ("ecosystem", ["tgi", "vllm", "trt", "triton", "lcpp", "emb"]),
        ("cpu", ["vllm", "trt", "triton", "tgi", "lcpp", "emb"]),
    ],
)
def test_prior_order(policy: str, order: list[str]) -> None:
    decision = ready(*FLEET, policy=policy).decide(ask(), 1.0)
    assert list(decision.ranking) == order
    ranks = [decision.candidates[name].terms["rank"] for name in order]
    assert ranks == sorted(set(ranks)), "each engine is a rank of its own"


def test_an_engine_that_no_order_names_comes_last() -> None:
    decision = ready(Endpoint("new", "sglang"), Endpoint("tgi", "tgi"), policy="latency").decide(ask(), 1.0)
    assert decision.ranking == ("tgi", "new")


def test_ecosystem_puts_endpoints_from_the_hub_first() -> None:
    fleet = [endpoint("tgi", "tgi"), endpoint("vllm-hf", "vllm", "hf"), endpoint("tgi-hf", "tgi", "hf")]
    assert ready(*fleet, policy="ecosystem").decide(ask(), 1.0).ranking == ("tgi-hf", "vllm-hf", "tgi")


@pytest.mark.parametrize("policy", ["latency", "throughput", "memory", "ecosystem"])
def test_within_a_rank_the_measured_faster_endpoint_takes_more(policy: str) -> None:
    router = ready(endpoint("fast"), endpoint("slow"), policy=policy)
    measure(router, "fast", 0.1, 0.01, 1.0)
    measure(router, "slow", 0.4, 0.04, 1.0)
    chosen = names(fill(router, 20, 2.0))
    assert chosen[0] == "fast"
    assert 15 <= chosen.count("fast") <= 16  # about four times as fast, about four times as many


@pytest.mark.parametrize("policy", ["latency", "throughput", "memory"])
def test_within_a_rank_unknown_is_taken_for_as_slow_as_the_slowest(policy: str) -> None:
    router = ready(endpoint("fast"), endpoint("slow"), endpoint("unknown"), policy=policy)
    measure(router, "fast", 0.1, 0.01, 1.0)
    measure(router, "slow", 0.4, 0.04, 1.0)
    decision = router.decide(ask(), 2.0)
    assert decision.endpoint == "fast"
    assert decision.candidates["unknown"].terms["slowdown"] == decision.candidates["slow"].terms["slowdown"]


def test_small_differences_of_measured_time_pin_no_traffic() -> None:
    router = ready(endpoint("a"), endpoint("b"), policy="latency")
    measure(router, "a", 0.100, 0.010, 1.0)
    measure(router, "b", 0.115, 0.011, 1.0)
    assert router.decide(ask(), 2.0).propensities == {"a": 0.5, "b": 0.5}


MATRIX = [
    endpoint("trt", "tensorrt_llm"),
    endpoint("tgi", "tgi"),
    endpoint("vllm", "vllm"),
    endpoint("lcpp", "llamacpp"),
]


@pytest.mark.parametrize("policy", ["matrix", "adaptive"])
@pytest.mark.parametrize(
    ("calls", "first"),
    [(1, "trt"), (4, "trt"), (5, "tgi"), (15, "tgi"), (16, "vllm"), (40, "vllm")],
)
def test_matrix_goes_by_the_pools_calls_in_flight_with_this_one(policy: str, calls: int, first: str) -> None:
    router = ready(*MATRIX, policy=policy)
    fill(router, calls - 1, 1.0)
    assert router.decide(ask(), 2.0).endpoint == first


@pytest.mark.parametrize(
    ("calls", "order"),
    [(1, ["trt", "tgi", "vllm", "lcpp"]), (5, ["tgi", "vllm", "trt", "lcpp"]), (16, ["vllm", "tgi", "trt", "lcpp"])],
)
def test_matrix_goes_on_to_the_next(calls: int, order: list[str]) -> None:
    router = ready(*MATRIX, policy="matrix")
    fill(router, calls - 1, 1.0)
    for place, name in enumerate(order):
        decision = router.decide(ask(f"r{place}"), 2.0)
        assert decision.endpoint == name
        router.finish(decision.attempt, 2.0)
        router.set_health(name, "down", 2.0)


def test_matrix_comes_back_when_calls_end() -> None:
    router = ready(*MATRIX, policy="matrix")
    held = fill(router, 20, 1.0)
    assert router.decide(ask("a"), 2.0).endpoint == "vllm"
    router.finish("a", 2.0)
    for decision in held:
        router.finish(decision.attempt, 3.0)
    assert router.decide(ask("b"), 4.0).endpoint == "trt"


def test_matrix_counts_embeddings_and_leaves_mirrors_out() -> None:
    router = ready(*MATRIX, policy="matrix")
    for number in range(20):
        router.mirror(ask(f"m{number}"), "tgi", 1.0)
    assert router.decide(ask("a"), 2.0).endpoint == "trt"
    fill(router, 4, 2.0, kind="embed")
    assert router.decide(ask("b"), 2.0).endpoint == "tgi"


def test_matrix_sends_a_call_past_an_engine_whose_shape_it_does_not_fit() -> None:
    router = ready(endpoint("trt", "tensorrt_llm", max_input_tokens=2048), endpoint("vllm"), policy="matrix")
    decision = router.decide(ask(prompt_tokens=2310), 1.0)
    assert decision.endpoint == "vllm"
    assert decision.candidates["trt"].removed_by == "too_long"


def test_matrix_takes_trtllm_serve_and_triton_for_the_same() -> None:
    router = ready(endpoint("trt", "tensorrt_llm"), endpoint("triton", "triton"), policy="matrix")
    assert sorted(names(fill(router, 4, 1.0))) == ["triton", "triton", "trt", "trt"]


def test_matrix_and_cpu_go_by_tags_where_there_are_any() -> None:
    fleet = [endpoint("lcpp-gpu", "llamacpp", "gpu"), endpoint("vllm-cpu", "vllm", "cpu"), endpoint("tgi", "tgi")]
    for policy in ("matrix", "cpu"):
        assert ready(*fleet, policy=policy).decide(ask(), 1.0).ranking == ("tgi", "lcpp-gpu", "vllm-cpu")


CPU = endpoint("cpu", "llamacpp", slots=2)
GPU = endpoint("gpu", "vllm", slots=2)


def test_cpu_serves_only_where_no_gpu_can() -> None:
    router = ready(GPU, CPU, policy="cpu")
    assert names(fill(router, 3, 1.0)) == ["gpu", "gpu", "cpu"]
    router.set_health("gpu", "down", 1.0)
    assert router.decide(ask("last"), 1.0).endpoint == "cpu"


def test_cpu_without_a_free_slot_waits() -> None:
    router = ready(CPU, policy="cpu")
    fill(router, 2, 1.0)
    assert router.decide(ask(), 1.0).action == "wait"


def test_cpu_that_states_no_slots_is_taken_to_have_one() -> None:
    router = ready(endpoint("cpu", "llamacpp"), policy="cpu")
    fill(router, 1, 1.0)
    assert router.decide(ask(), 1.0).action == "wait"


def test_cpu_counts_what_others_run_there() -> None:
    router = ready(CPU, policy="cpu")
    router.set_load("cpu", Load(running=2), 1.0)
    assert router.decide(ask(), 1.0).action == "wait"


@pytest.mark.parametrize(
    ("slo", "action"),
    [
        (None, "send"),
        (Slo(ttft=0.6), "send"),
        (Slo(ttft=0.4), "reject"),
        (Slo(ttft=0.6, tpot=0.04), "reject"),
        (Slo(ttft=0.6, tpot=0.06), "send"),
        (Slo(), "send"),
    ],
)
def test_cpu_must_be_predicted_within_slo(slo: Slo | None, action: str) -> None:
    router = ready(CPU, policy="cpu")
    measure(router, "cpu", 0.5, 0.05, 1.0)
    decision = router.decide(ask(slo=slo), 2.0)
    assert decision.action == action
    if action == "reject":
        assert decision.reason == "over_slo"
        assert decision.retry_after is not None


def test_cpu_never_measured_takes_a_free_slot_under_an_slo_too() -> None:
    router = ready(CPU, policy="cpu")
    fill(router, 2, 1.0, slo=Slo(ttft=0.4))
    assert router.decide(ask(slo=Slo(ttft=0.4)), 1.0).action == "wait"
