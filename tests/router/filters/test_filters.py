"""Each filter by table: what it removes, with which word and figures."""

from __future__ import annotations

import math

import pytest

from engines.contract import Load
from router import Ask, Limits
from router.breaker import FIRST_PAUSE_S, IN_A_ROW
from router.contract import Removal
from router.filters import breaker, features, health, hold, limits, reserved, saturation, tried
from router.state import HOLD_LONGEST_S, LOAD_FRESH_S, Live
from tests.router.build import ask, endpoint, standing


@pytest.mark.parametrize(
    ("fields", "limit", "removal"),
    [
        ({"prompt_tokens": 2048}, Limits(max_input_tokens=2048), None),
        ({"prompt_tokens": 2049}, Limits(max_input_tokens=2048), Removal("too_long", "2,049 > 2,048")),
        ({"prompt_tokens": 2310}, Limits(), None),
        ({"prompt_tokens": 1000, "max_tokens": 1048}, Limits(max_total_tokens=2048), None),
        (
            {"prompt_tokens": 1000, "max_tokens": 1049},
            Limits(max_total_tokens=2048),
            Removal("too_long", "2,049 > 2,048"),
        ),
        ({"prompt_tokens": 2049}, Limits(max_total_tokens=2048), Removal("too_long", "2,049 > 2,048")),
        ({"prompt_tokens": 9, "max_tokens": 9}, Limits(max_input_tokens=0), Removal("too_long", "9 > 0")),
    ],
)
def test_limits(fields: dict[str, int], limit: Limits, removal: Removal | None) -> None:
    view = standing(endpoint("a"))
    view.change(type(view.endpoint)("a", "vllm", limit))
    assert limits.judge(ask(**fields), view, 0.0) == removal


@pytest.mark.parametrize(
    ("needs", "declared", "removal"),
    [
        (set(), {"tools"}, None),
        ({"tools"}, {"tools", "images"}, None),
        ({"tools"}, set(), None),
        ({"tools", "audio", "images"}, {"images"}, Removal("lacks_feature", "audio, tools")),
    ],
)
def test_features(needs: set[str], declared: set[str], removal: Removal | None) -> None:
    view = standing(endpoint("a", features=frozenset(declared)))
    assert features.judge(ask(features=frozenset(needs)), view, 0.0) == removal


@pytest.mark.parametrize(
    ("word", "reason"),
    [("unknown", None), ("ready", None), ("degraded", None)]
    + [(word, word) for word in ("loading", "draining", "down")],
)
def test_health(word: str, reason: str | None) -> None:
    removal = health.judge(ask(), standing(endpoint("a"), word), 0.0)
    assert (removal and removal.reason) == reason


def test_breaker_removes_while_open_and_beside_a_trial() -> None:
    view = standing(endpoint("a"))
    assert breaker.judge(ask(), view, 0.0) is None
    for number in range(IN_A_ROW):
        view.breaker.failed(f"f{number}", 0.0)
    assert breaker.judge(ask(), view, 1.0) == Removal("breaker_open", "4.0 s")
    assert breaker.judge(ask(), view, FIRST_PAUSE_S) is None
    view.breaker.sent("trial", FIRST_PAUSE_S)
    removal = breaker.judge(ask(), view, FIRST_PAUSE_S)
    assert removal is not None and removal.reason == "breaker_open"


def test_hold_lasts_as_long_as_asked_and_no_longer_than_the_cap() -> None:
    view = standing(endpoint("a"))
    view.hold(30.0, 0.0)
    assert hold.judge(ask(), view, 20.0) == Removal("on_hold", "10.0 s")
    assert hold.judge(ask(), view, 30.0) is None
    view.hold(1e9, 40.0)
    assert view.held_for(40.0) == HOLD_LONGEST_S
    view.hold(math.inf, 40.0)
    assert view.held_for(40.0) == HOLD_LONGEST_S


def live(number: int, sequences: int = 1) -> Live:
    return Live(id=f"l{number}", ask="x", endpoint="a", dispatched=0.0, sequences=sequences)


@pytest.mark.parametrize(
    ("slots", "taken", "wanted", "full"),
    [
        (None, 500, 1, False),
        (4, 3, 1, False),
        (4, 4, 1, True),
        (4, 3, 2, True),
        (4, 0, 9, False),  # more than there are slots: goes when nothing else is there
        (4, 1, 9, True),
        (0, 0, 1, True),
    ],
)
def test_saturation_counts_sequences(slots: int | None, taken: int, wanted: int, full: bool) -> None:
    view = standing(endpoint("a", slots=slots))
    for number in range(taken):
        view.enter(live(number))
    removal = saturation.judge(ask(sequences=wanted), view, 0.0)
    assert removal == (Removal("full", f"{taken} of {slots}") if full else None)


def test_saturation_counts_foreign_load_while_it_is_fresh() -> None:
    view = standing(endpoint("a", slots=4))
    view.enter(live(1))
    view.set_load(Load(running=3, waiting=1), 10.0)
    assert view.foreign(10.0) == 3
    assert saturation.judge(ask(), view, 10.0) == Removal("full", "4 of 4")
    assert saturation.judge(ask(), view, 10.0 + LOAD_FRESH_S) is None


def test_saturation_believes_an_endpoint_that_says_it_is_full() -> None:
    view = standing(endpoint("a"))
    view.back_off(0.0)
    assert saturation.judge(ask(), view, 0.0) == Removal("full", "said so, 0.2 s")
    assert saturation.judge(ask(), view, 0.25) is None


@pytest.mark.parametrize("load", [Load(), Load(running=None, waiting=2), Load(running=0, waiting=0), Load(running=-5)])
def test_load_figures_may_be_missing_and_foreign_load_is_never_negative(load: Load) -> None:
    view = standing(endpoint("a"))
    for number in range(3):
        view.enter(live(number))
    view.set_load(load, 0.0)
    assert view.foreign(0.0) == 0


def test_tried_and_reserved_remove_those_that_they_name() -> None:
    a, b = standing(endpoint("a")), standing(endpoint("b"))
    assert tried.excluding({"a"})(Ask("r"), a, 0.0) == Removal("tried")
    assert tried.excluding({"a"})(Ask("r"), b, 0.0) is None
    assert reserved.keeping({"b"})(Ask("r"), b, 0.0) == Removal("full", "others wait for it")
    assert reserved.keeping({"b"})(Ask("r"), a, 0.0) is None
