"""Dump and restore: what is kept, what a new process leaves behind, and what happens to bad data."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import Router
from router.breaker import IN_A_ROW
from tests.router.build import ask, endpoint, fill, measure, ready


def lived() -> Router:
    router = ready(endpoint("a", slots=2), endpoint("b"))
    measure(router, "a", 0.1, 0.01, 5.0)
    for number in range(IN_A_ROW):
        attempt = router.decide(ask(f"x{number}"), 10.0, policy="round_robin").attempt
        router.finish(attempt, 10.0, outcome="error")
    fill(router, 3, 11.0)
    return router


DUMP = lived().dump()


def test_what_is_under_way_is_restored_too() -> None:
    first = ready(endpoint("a", slots=1))
    fill(first, 1, 1.0)
    first.decide(ask("w"), 2.0)
    second = Router([endpoint("a", slots=1)], policy="least_requests")
    second.restore(first.dump())
    second.finish("f0", 3.0)
    assert [decision.attempt for decision in second.wake(3.0)] == ["w"]
    second.finish("w", 4.0)
    assert second.states(4.0)["a"].inflight == 0


def test_a_new_process_takes_what_was_learnt_and_not_what_was_under_way() -> None:
    first = ready(endpoint("a"), endpoint("b"))
    measure(first, "a", 0.1, 0.01, 5.0)
    fill(first, 5, 6.0)
    second = Router([endpoint("a"), endpoint("b")])
    second.restore(first.dump(), live=False)
    assert {state.inflight for state in second.states(7.0).values()} == {0}
    assert {state.health for state in second.states(7.0).values()} == {"unknown"}
    decision = second.decide(ask(), 7.0)
    assert decision.candidates["a"].ttft == pytest.approx(0.1)


@pytest.mark.parametrize("begins", [3.0, 1_000_150.0])
def test_a_clock_that_started_anew_moves_what_is_remembered_along(begins: float) -> None:
    first = ready(endpoint("a"))
    measure(first, "a", 0.1, 0.01, 1_000_000.0)
    first.decide(ask("r1"), 1_000_100.0)
    first.retry("r1", 1_000_100.0, failure="overload", retry_after=100.0)
    second = Router([endpoint("a")])
    second.restore(first.dump(), live=False)
    decision = second.decide(ask("r2"), begins)
    assert decision.reason == "on_hold"
    assert decision.retry_after == pytest.approx(100.0 if begins == 3.0 else 50.0)
    assert decision.candidates["a"].age == pytest.approx(100.0 if begins == 3.0 else 150.0, abs=1.0)


def test_endpoints_stay_as_configured() -> None:
    router = Router([endpoint("a", "tgi"), endpoint("c")])
    router.restore(DUMP)
    decision = router.decide(ask(), 20.0)
    assert set(decision.candidates) == {"a", "c"}
    assert decision.candidates["a"].ttft is None, "another engine under the same name"
    for number in range(3):
        router.finish(f"f{number}", 21.0)


def test_the_same_state_gives_the_same_bytes() -> None:
    assert lived().dump() == lived().dump() == DUMP


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "not a dump"),
        (b"nonsense", "not a dump"),
        (DUMP[:40], "corrupt"),
        (DUMP[:-1], "corrupt"),
        (DUMP + b"x", "corrupt"),
        (DUMP.replace(b"router/1\n", b"router/2\n"), "version 2, where this router reads version 1"),
    ],
)
def test_bad_data_is_refused_with_a_clear_message_and_changes_nothing(data: bytes, complaint: str) -> None:
    router = lived()
    for live in (True, False):
        with pytest.raises(ValueError, match=complaint):
            router.restore(data, live=live)
    assert router.dump() == DUMP


@given(place=st.integers(0, len(DUMP) - 1), flip=st.integers(1, 255))
def test_one_changed_byte_anywhere_is_found(place: int, flip: int) -> None:
    data = bytearray(DUMP)
    data[place] ^= flip
    with pytest.raises(ValueError):
        Router([endpoint("a")]).restore(bytes(data))


def test_a_dump_that_names_an_unknown_policy_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    router = lived()
    with monkeypatch.context() as patch:
        patch.setattr("router.policies.names", lambda: ("adaptive",))
        other = Router([endpoint("a")])
        before = other.dump()
        with pytest.raises(ValueError, match="unknown policy"):
            other.restore(router.dump())
        assert other.dump() == before
