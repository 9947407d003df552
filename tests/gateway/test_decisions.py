"""The last calls are found by either id, and take bounded memory."""

from __future__ import annotations

import json

import msgspec

from gateway.decisions import RecentCalls
from gateway.redact import redact
from router import Candidate
from tests.gateway.served import decision, observation, served


def recent(**bounds: int) -> RecentCalls:
    return RecentCalls(redact, **bounds)


def test_a_call_is_found_by_the_gateway_s_id_and_by_the_client_s() -> None:
    calls = recent()
    calls.add(served(call="c1", request_id="mine"))
    assert calls.find("c1") is calls.find("mine") is not None
    assert calls.find("c2") is None


def test_the_oldest_calls_go_first() -> None:
    calls = recent(limit=10)
    for index in range(1_000):
        calls.add(served(call=f"c{index}", request_id=f"r{index}"))
    assert len(calls) == 10
    assert calls.find("c989") is None
    assert calls.find("r989") is None
    assert calls.find("r990") is not None
    assert len(calls._by_request) == 10


def test_a_request_id_used_again_names_the_latest_call_also_when_the_first_is_forgotten() -> None:
    calls = recent(limit=2)
    for name in ("c1", "c2", "c3"):
        calls.add(served(call=name, request_id="same"))
    found = calls.find("same")
    assert found is not None
    assert found.call == "c3"


def test_decisions_over_many_endpoints_are_bounded_by_their_candidates() -> None:
    calls = recent(max_candidates=1_000)
    wide = {f"e{index}": Candidate(name=f"e{index}", engine="vllm") for index in range(100)}
    for index in range(500):
        calls.add(served(call=f"c{index}", decisions=(decision(candidates=wide),)))
    assert len(calls) == 10
    one = recent(max_candidates=1)
    one.add(served(decisions=(decision(candidates=wide),)))
    assert len(one) == 1  # the latest is always there


def test_a_call_seen_twice_is_one_call() -> None:
    calls = recent(limit=2)
    for _ in range(3):
        calls.add(served(call="c1"))
    assert len(calls) == 1
    assert calls._candidates == 2


def test_b34_what_an_engine_said_is_redacted_and_cut_before_it_is_kept() -> None:
    calls = recent()
    calls.add(served(detail="key sk-proj-s3cret-0123456789 refused " + "x" * 100_000))
    found = calls.find("c1")
    assert found is not None
    assert "s3cret" not in found.detail
    assert "[redacted]" in found.detail
    assert len(found.detail) <= 2_000


def test_a_call_is_written_as_json_with_its_reasons_and_without_what_json_has_not() -> None:
    said = json.loads(msgspec.json.encode(served(observations=(observation(tpot=float("nan")),))))
    assert said["decisions"][0]["candidates"]["tgi-0"]["removed_by"] == "too_long"
    assert said["observations"][0]["tpot"] is None
