"""Policies by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from router import Router, objectives, policies
from tests.router.build import ask, endpoint, ready

PROMISED = {
    "adaptive", "cpu", "ecosystem", "latency", "least_requests", "least_tokens", "matrix", "memory", "p2c_ewma",
    "round_robin", "throughput",
}  # fmt: skip


def test_every_promised_policy_is_there() -> None:
    assert set(policies.names()) >= PROMISED


@pytest.mark.parametrize("name", ["nonsense", "", "..contract", "Matrix", "__init__", "matrix\n"])
def test_an_unknown_policy_is_refused_naming_the_known_ones(name: str) -> None:
    with pytest.raises(ValueError, match="known are adaptive, cpu"):
        Router(policy=name)


def test_an_unknown_policy_of_one_ask_changes_nothing() -> None:
    router = ready(endpoint("a"))
    before = router.dump()
    with pytest.raises(ValueError, match="unknown policy"):
        router.decide(ask(), 1.0, policy="nonsense")
    assert router.dump() == before


def test_an_ask_may_go_by_another_policy() -> None:
    router = ready(endpoint("t", "tgi"), endpoint("v", "vllm"), policy="throughput")
    assert router.decide(ask("a"), 1.0).endpoint == "v"
    other = router.decide(ask("b"), 1.0, policy="ecosystem")
    assert (other.endpoint, other.policy) == ("t", "ecosystem")


def test_a_new_objective_is_one_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "last_name.py").write_text(
        "from router.contract import Scored\n"
        "PICKER = 'best'\n"
        "def build():\n"
        "    return lambda ask, views, now: {v.endpoint.name: Scored(-float(ord(v.endpoint.name))) for v in views}\n"
    )
    monkeypatch.setattr(objectives, "__path__", [*objectives.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "router.objectives.last_name", raising=False)
    router = ready(endpoint("a"), endpoint("b"), policy="last_name")
    assert router.decide(ask(), 1.0).ranking == ("b", "a")
    monkeypatch.delitem(sys.modules, "router.objectives.last_name")
