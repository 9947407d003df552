"""The breaker as a function of outcomes and time."""

from __future__ import annotations

from router.breaker import AT_LEAST, FIRST_PAUSE_S, IN_A_ROW, LONGEST_PAUSE_S, TRIAL_S, Breaker


def opened(now: float = 0.0) -> Breaker:
    breaker = Breaker()
    for number in range(IN_A_ROW):
        breaker.failed(f"f{number}", now)
    return breaker


def test_opens_after_failures_in_a_row_and_not_one_before() -> None:
    breaker = Breaker()
    for number in range(IN_A_ROW - 1):
        assert not breaker.failed(f"f{number}", 0.0)
    assert breaker.state(0.0) == "closed"
    assert breaker.failed("last", 0.0)
    assert breaker.state(0.0) == "open"


def test_a_success_between_failures_starts_the_row_anew() -> None:
    breaker = Breaker()
    for number in range(3 * IN_A_ROW):
        breaker.failed(f"f{number}", 0.0)
        breaker.succeeded(f"s{number}", 0.0)
        breaker.succeeded(f"t{number}", 0.0)
    assert breaker.state(0.0) == "closed"


def test_opens_by_the_share_of_failures_once_enough_was_seen() -> None:
    breaker = Breaker()
    outcomes = 0
    while breaker.state(0.0) == "closed" and outcomes < 100:
        breaker.succeeded("s", 0.0)
        breaker.failed("f", 0.0)
        outcomes += 2
    assert outcomes == AT_LEAST


def test_old_outcomes_fade() -> None:
    breaker = Breaker()
    for number in range(60):
        now = number * 30.0  # each leaves 1/e of what was there
        breaker.succeeded("s", now)
        breaker.failed("f", now)
    assert breaker.state(now) == "closed"


def test_half_open_lets_one_trial_pass() -> None:
    breaker = opened()
    assert breaker.wait(0.0) == FIRST_PAUSE_S
    assert breaker.state(FIRST_PAUSE_S) == "half_open"
    assert breaker.wait(FIRST_PAUSE_S) == 0.0
    breaker.sent("trial", FIRST_PAUSE_S)
    assert breaker.wait(FIRST_PAUSE_S) > 0.0


def test_a_trial_that_ends_well_closes_it() -> None:
    breaker = opened()
    breaker.sent("trial", 6.0)
    assert breaker.succeeded("trial", 7.0)
    assert breaker.state(7.0) == "closed"
    assert not breaker.failed("next", 7.0)


def test_a_trials_first_token_closes_it_on_probation() -> None:
    breaker = opened()
    breaker.sent("trial", 6.0)
    assert breaker.answered("trial")
    assert breaker.state(6.0) == "closed"
    assert breaker.failed("trial", 7.0), "one failure on probation opens it again"
    assert breaker.wait(7.0) == 2 * FIRST_PAUSE_S


def test_a_trial_that_fails_opens_it_for_twice_as_long_up_to_a_cap() -> None:
    breaker = opened()
    now, pauses = 0.0, []
    for number in range(8):
        now += breaker.wait(now)
        breaker.sent(f"t{number}", now)
        breaker.failed(f"t{number}", now)
        pauses.append(breaker.wait(now))
    assert pauses[:3] == [10.0, 20.0, 40.0]
    assert pauses[-1] == LONGEST_PAUSE_S


def test_a_cancelled_trial_gives_its_place_back() -> None:
    breaker = opened()
    breaker.sent("trial", 6.0)
    breaker.released("other")
    assert breaker.wait(6.0) > 0.0
    breaker.released("trial")
    assert breaker.wait(6.0) == 0.0


def test_a_silent_trial_does_not_block_for_ever() -> None:
    breaker = opened()
    breaker.sent("trial", 6.0)
    assert breaker.wait(6.0 + TRIAL_S) == 0.0


def test_outcomes_of_attempts_from_before_it_opened_change_nothing() -> None:
    breaker = opened()
    assert not breaker.succeeded("old", 1.0)
    assert not breaker.failed("old", 6.0)
    assert breaker.state(6.0) == "half_open"
