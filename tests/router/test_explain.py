"""One header-safe line."""

from __future__ import annotations

import pytest

from router import Candidate, Decision, Router
from router.explain import LONGEST, explain
from tests.router.build import ask, endpoint, measure, ready


def test_says_what_was_expected_and_why_others_were_not_asked() -> None:
    router = ready(endpoint("vllm-0"), endpoint("trt-0", "tensorrt_llm", max_input_tokens=2048), policy="latency")
    measure(router, "vllm-0", 0.0432, 0.0081, 1.0, times=212)
    line = explain(router.decide(ask(prompt_tokens=2310), 2.0))
    assert (
        line == "vllm-0: expected 43 ms to first token, 8.1 ms per token (212 calls); trt-0: too long (2,310 > 2,048)"
    )


def test_the_chosen_one_comes_first_and_the_unmeasured_are_called_so() -> None:
    router = ready(endpoint("a", "tgi"), endpoint("z", "tensorrt_llm"), policy="latency")
    assert explain(router.decide(ask(), 2.0)) == "z: not measured yet; a: not measured yet"


@pytest.mark.parametrize(
    ("health", "line"), [("down", "rejected: down; a: down"), ("loading", "rejected: loading; a: loading")]
)
def test_a_rejection_says_so(health: str, line: str) -> None:
    router = ready(endpoint("a"))
    router.set_health("a", health, 1.0)
    assert explain(router.decide(ask(), 1.0)) == line


def test_waiting_says_so() -> None:
    router = ready(endpoint("a", slots=1))
    router.decide(ask("r1"), 1.0)
    assert explain(router.decide(ask("r2"), 1.0)) == "waits: full; a: full (1 of 1)"


def test_the_line_is_one_line_of_printable_ascii_and_bounded() -> None:
    nasty = Candidate(name="e\r\nx-evil: 1\x00é漢", engine="vllm", removed_by="down", detail="\x7f\n")
    candidates = {"first": nasty} | {
        f"n{number}": Candidate(name="n" * 40, engine="vllm", removed_by="down") for number in range(200)
    }
    line = explain(Decision(id="r", attempt="r", action="reject", candidates=candidates))
    assert len(line) == LONGEST
    assert line.endswith("...")
    assert all(" " <= char <= "~" for char in line)
    assert line.startswith("rejected; e??x-evil: 1???: down (??)")


def test_a_router_without_endpoints_is_explained() -> None:
    assert explain(Router().decide(ask(), 1.0)) == "rejected: no endpoints"
