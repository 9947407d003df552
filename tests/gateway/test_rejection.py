"""A rejected call is told each endpoint's reason, with the status that says whether asking again can help."""

from __future__ import annotations

import pytest

from gateway.errors import answer, render
from gateway.rejection import rejection
from router import Candidate, Decision


def decision(reason: str, retry_after: float | None = None, **removed: tuple[str, str]) -> Decision:
    return Decision(
        id="c",
        attempt="c",
        action="reject",
        reason=reason,
        retry_after=retry_after,
        candidates={n: Candidate(name=n, engine="vllm", removed_by=r, detail=d) for n, (r, d) in removed.items()},
    )


@pytest.mark.parametrize(
    ("rejected", "status", "code"),
    [
        (decision("down", 5.0, a=("down", ""), b=("too_long", "9 > 8")), 503, "no_endpoint"),
        (decision("too_long", None, a=("too_long", "9 > 8")), 400, "context_length_exceeded"),
        (decision("lacks_feature", None, a=("lacks_feature", "tools")), 400, "unsupported_parameter"),
        (decision("too_long", None, a=("too_long", "9 > 8"), b=("lacks_feature", "n")), 400, "context_length_exceeded"),
        (decision("queue_full", 2.0), 429, "queue_full"),
        (decision("on_hold", 30.0, a=("on_hold", "30 s")), 429, "engine_overloaded"),
        (decision("no_endpoints", 1.0), 503, "no_endpoint"),
    ],
)
def test_a_reason_has_its_status(rejected: Decision, status: int, code: str) -> None:
    told = answer(rejection(rejected, "m"))

    assert (told.status, told.code) == (status, code)


def test_each_endpoint_is_named_with_its_reason_and_figures() -> None:
    error = rejection(decision("down", 5.0, a=("down", ""), b=("too_long", "2,310 > 2,048")), "m")

    assert error.message == "No endpoint of 'm' can take this call: a: down; b: too long (2,310 > 2,048)."


def test_a_missing_feature_names_the_field() -> None:
    assert (
        rejection(decision("lacks_feature", None, a=("lacks_feature", "json_schema")), "m").param == "response_format"
    )


def test_b13_the_predicted_wait_is_passed_on() -> None:
    _, headers, _ = render(rejection(decision("on_hold", 29.2, a=("on_hold", "30 s")), "m"))

    assert ("retry-after", "30") in list(headers)
