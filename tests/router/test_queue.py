"""Asks that wait: order, deadlines, bounds, and that nobody is forgotten."""

from __future__ import annotations

from engines.contract import Load
from router import Router, Slo
from router.queue import QUEUE_LONGEST
from router.state import LOAD_FRESH_S
from tests.router.build import ask, endpoint, fill, measure, ready


def full(slots: int = 1, **fields: object) -> Router:
    """One endpoint, all of its slots taken by calls f0, f1, ..."""
    router = ready(endpoint("a", slots=slots, **fields))
    fill(router, slots, 1.0)
    return router


def woken(router: Router, now: float) -> list[tuple[str, str, str | None]]:
    return [(decision.attempt, decision.action, decision.endpoint) for decision in router.wake(now)]


def test_an_ask_waits_while_all_are_full_and_goes_when_a_slot_frees() -> None:
    router = full()
    decision = router.decide(ask("w"), 2.0)
    assert (decision.action, decision.reason, decision.endpoint, decision.propensities) == ("wait", "full", None, {})
    assert router.wake(2.0) == []
    router.finish("f0", 3.0)
    assert woken(router, 3.0) == [("w", "send", "a")]
    assert router.states(3.0)["a"].inflight == 1
    assert router.wake(3.0) == []


def test_priority_then_arrival() -> None:
    router = full()
    for id, priority in (("low", -1), ("first", 0), ("second", 0), ("high", 5)):
        router.decide(ask(id, priority=priority), 2.0)
    order = []
    last = "f0"
    for step in range(4):
        router.finish(last, 3.0 + step)
        ((last, _, _),) = woken(router, 3.0 + step)
        order.append(last)
    assert order == ["high", "first", "second", "low"]


def test_arrival_is_the_calls_own_not_the_time_of_the_decision() -> None:
    router = full()
    router.decide(ask("later", arrived=1.9), 2.0)
    router.decide(ask("earlier", arrived=1.5), 2.1)
    router.finish("f0", 3.0)
    assert woken(router, 3.0) == [("earlier", "send", "a")]


def test_a_newcomer_does_not_overtake_one_that_waits() -> None:
    router = full()
    router.decide(ask("w"), 2.0)
    router.finish("f0", 3.0)
    assert router.decide(ask("new"), 3.0).action == "wait"
    assert woken(router, 3.0) == [("w", "send", "a")]
    router.finish("w", 4.0)
    assert woken(router, 4.0) == [("new", "send", "a")]


def test_a_newcomer_of_higher_priority_goes_at_the_next_wake() -> None:
    router = full(slots=4)
    router.decide(ask("large", sequences=4), 2.0)
    router.finish("f0", 3.0)
    assert router.wake(3.0) == []
    assert router.decide(ask("urgent", priority=1), 3.0).action == "wait"
    assert router.next_wake() == 3.0
    assert woken(router, 3.0) == [("urgent", "send", "a")]


def test_a_small_call_does_not_starve_a_large_one() -> None:
    router = full(slots=4)
    router.decide(ask("large", sequences=4), 2.0)
    for number in range(4):
        router.finish(f"f{number}", 3.0)
        router.decide(ask(f"small{number}"), 3.0)
        sent = woken(router, 3.0)
        assert sent == ([] if number < 3 else [("large", "send", "a")])


def test_a_newcomer_takes_room_that_nobody_waits_for() -> None:
    router = ready(endpoint("a", slots=1, features=frozenset({"tools"})), endpoint("b", slots=1))
    fill(router, 1, 1.0, features=frozenset({"tools"}))
    assert router.decide(ask("w", features=frozenset({"tools"})), 2.0).action == "wait"
    assert router.decide(ask("plain"), 2.0).endpoint == "b"


def test_one_wake_serves_as_many_as_there_is_room_for() -> None:
    router = full(slots=3)
    for number in range(5):
        router.decide(ask(f"w{number}"), 2.0)
    for number in range(3):
        router.finish(f"f{number}", 3.0)
    assert [attempt for attempt, _, _ in woken(router, 3.0)] == ["w0", "w1", "w2"]
    assert router.wake(3.0) == []


def test_a_deadline_that_passes_rejects() -> None:
    router = full()
    router.decide(ask("w", deadline=5.0), 2.0)
    assert router.next_wake() == 5.0
    assert router.wake(4.9) == []
    (decision,) = router.wake(5.0)
    assert (decision.action, decision.reason, decision.retry_after) == ("reject", "deadline", None)
    assert router.next_wake() is None
    assert router.decide(ask("late", deadline=5.0), 5.0).reason == "deadline"


def test_a_slot_that_frees_at_the_deadline_comes_too_late() -> None:
    router = full()
    router.decide(ask("w", deadline=5.0), 2.0)
    router.finish("f0", 5.0)
    (decision,) = router.wake(5.0)
    assert decision.reason == "deadline"
    assert router.states(5.0)["a"].inflight == 0


def test_an_ask_that_waits_can_be_withdrawn() -> None:
    router = full()
    router.decide(ask("w"), 2.0)
    router.finish("w", 2.5, outcome="cancelled")
    router.finish("f0", 3.0)
    assert router.wake(3.0) == []
    assert router.decide(ask("x"), 3.0).action == "send"
    router.finish("w", 4.0)
    assert router.counters["late_events"] == 1


def test_who_waits_for_an_endpoint_that_goes_away_is_rejected_with_the_reason() -> None:
    router = full()
    router.decide(ask("w"), 2.0)
    router.set_health("a", "down", 3.0)
    (decision,) = router.wake(3.0)
    assert (decision.action, decision.reason) == ("reject", "down")
    assert decision.retry_after is not None


def test_who_waits_takes_an_endpoint_that_comes() -> None:
    router = full()
    router.decide(ask("w"), 2.0)
    router.set_endpoint(endpoint("b", slots=1), 3.0)
    assert woken(router, 3.0) == [("w", "send", "b")]


def test_who_waits_takes_an_endpoint_that_had_gone_and_came_back_unseen() -> None:
    router = ready(endpoint("a", slots=1), endpoint("b", slots=1))
    there = {decision.endpoint: decision.attempt for decision in fill(router, 2, 1.0)}
    router.decide(ask("w0"), 1.0)
    router.set_load("a", Load(), 1.0)
    router.wake(1.0)
    router.finish("w0", 1.0, outcome="cancelled")
    router.set_health("b", "down", 2.0)
    assert router.decide(ask("w"), 2.0).action == "wait"
    router.finish(there["b"], 2.5)
    router.set_health("b", "ready", 3.0)
    assert woken(router, 3.0) == [("w", "send", "b")]


def test_who_comes_later_takes_the_room_that_is_not_kept_for_one_before() -> None:
    tools = frozenset({"tools"})
    fleet = [endpoint("best", "tensorrt_llm", slots=4, features=tools), endpoint("next", slots=1)]
    router = ready(*fleet, policy="latency")
    fill(router, 5, 1.0)
    router.decide(ask("large", sequences=4, features=tools), 2.0)
    router.decide(ask("small"), 2.0)
    for number in (0, 1, 2, 4):
        router.finish(f"f{number}", 3.0)
    assert woken(router, 3.0) == [("small", "send", "next")]


def test_next_wake_names_the_end_of_a_moment_of_overload() -> None:
    router = ready(endpoint("a"))
    router.decide(ask("r1"), 1.0)
    router.retry("r1", 1.0, failure="overload")
    assert router.decide(ask("w"), 1.0).action == "wait"
    router.wake(1.0)
    moment = router.next_wake()
    assert moment == 1.25
    assert woken(router, moment) == [("w", "send", "a")]


def test_next_wake_names_the_time_when_foreign_load_is_no_longer_believed() -> None:
    router = ready(endpoint("a", slots=2))
    router.set_load("a", Load(running=2), 1.0)
    assert router.decide(ask("w"), 2.0).action == "wait"
    router.wake(2.0)
    assert router.next_wake() == 1.0 + LOAD_FRESH_S
    assert woken(router, 1.0 + LOAD_FRESH_S) == [("w", "send", "a")]


def test_next_wake_names_the_end_of_another_endpoints_hold() -> None:
    router = ready(endpoint("a", slots=1), endpoint("b", slots=1))
    first = router.decide(ask("r1"), 1.0)
    router.retry("r1", 1.0, failure="overload", retry_after=20.0)
    assert router.decide(ask("w"), 2.0).action == "wait"
    router.wake(2.0)
    assert router.next_wake() == 21.0
    assert woken(router, 21.0) == [("w", "send", first.endpoint)]


def test_next_wake_moves_on_after_a_wake_that_found_nothing() -> None:
    router = full()
    router.decide(ask("w", deadline=9.0), 2.0)
    router.set_load("a", Load(running=1), 3.0)
    assert router.next_wake() == 3.0
    assert router.wake(3.0) == []
    assert router.next_wake() == 9.0


def test_without_anything_to_wait_for_there_is_no_next_wake() -> None:
    router = full()
    assert router.next_wake() is None
    router.decide(ask("w"), 2.0)
    router.wake(2.0)
    assert router.next_wake() is None, "only an event can help, and that wakes by itself"


def test_a_retry_waits_for_the_endpoints_that_it_has_not_been_to() -> None:
    router = ready(endpoint("a", slots=1), endpoint("b", slots=1))
    fill(router, 2, 1.0)
    there = router.retry("f0", 2.0, failure="connect")
    assert (there.attempt, there.action) == ("f0/2", "wait")
    assert router.wake(2.0) == [], "its first endpoint has room, but it has been there"
    router.finish("f1", 3.0)
    ((attempt, action, _),) = woken(router, 3.0)
    assert (attempt, action) == ("f0/2", "send")
    router.finish("f0/2", 4.0)
    assert sum(state.inflight for state in router.states(4.0).values()) == 0


def test_an_ask_that_waits_for_a_retry_and_loses_its_hedge_waits_once() -> None:
    router = ready(endpoint("a", slots=1), endpoint("b", slots=1), endpoint("c", slots=1))
    router.decide(ask("r1"), 1.0)
    router.hedge("r1", 1.0)
    fill(router, 1, 1.0)
    assert router.retry("r1", 2.0).attempt == "r1/3"
    waiting = router.retry("r1/2", 3.0)
    assert (waiting.attempt, waiting.action) == ("r1/3", "wait")
    router.finish("f0", 4.0)
    assert [(attempt, action) for attempt, action, _ in woken(router, 4.0)] == [("r1/3", "send")]
    router.finish("r1/3", 5.0)
    assert router.next_wake() is None


def test_deciding_anew_about_an_ask_that_waits_keeps_one_place() -> None:
    router = full()
    assert router.decide(ask("w"), 2.0).action == "wait"
    again = router.decide(ask("w"), 2.5)
    assert (again.attempt, again.action) == ("w", "wait")
    router.finish("f0", 3.0)
    assert woken(router, 3.0) == [("w", "send", "a")]
    assert router.counters == {"queued": 2, "sent": 2}


def test_a_full_queue_rejects_with_a_time() -> None:
    router = full()
    for number in range(QUEUE_LONGEST):
        router.decide(ask(f"w{number}"), 2.0)
    refused = router.decide(ask("over"), 2.0)
    assert (refused.action, refused.reason) == ("reject", "queue_full")
    assert refused.retry_after is not None and refused.retry_after > 0.0
    router.finish("w17", 2.0, outcome="cancelled")
    assert router.decide(ask("fits"), 2.0).action == "wait"


def test_who_waits_for_gpus_is_not_rejected_because_the_cpu_is_too_slow() -> None:
    router = ready(endpoint("gpu", slots=1), endpoint("cpu", "llamacpp", slots=4), policy="cpu")
    measure(router, "cpu", 5.0, 0.5, 1.0)
    fill(router, 1, 10.0)
    decision = router.decide(ask("w", slo=Slo(ttft=0.4)), 10.0)
    assert (decision.action, decision.candidates["cpu"].removed_by) == ("wait", "over_slo")
    router.finish("f0", 11.0)
    assert woken(router, 11.0) == [("w", "send", "gpu")]
