"""What is learnt of one time, and when it is forgotten."""

from __future__ import annotations

import math
import random

import pytest

from router.model import FORGET_S, MEMORY, Model, Track


def test_nothing_measured_is_none_and_not_zero() -> None:
    assert Track().value is None


def test_the_first_sample_is_the_mean_and_its_p90_is_above_it() -> None:
    track = Track()
    track.add(0.1, 5.0)
    assert track.value == pytest.approx(0.1)
    assert track.p90 > 0.1
    assert (track.count, track.last) == (1, 5.0)


def test_mean_variance_and_p90_approach_those_of_the_source() -> None:
    rng = random.Random(7)
    track = Track()
    means, p90s = [], []
    for number in range(4000):
        track.add(rng.lognormvariate(math.log(0.2), 0.4), number * 0.01)
        if number > 200:
            means.append(track.mean)
            p90s.append(track.p90)
    assert sum(means) / len(means) == pytest.approx(0.2 * math.exp(0.08), rel=0.03)
    assert sum(p90s) / len(p90s) == pytest.approx(0.2 * math.exp(0.4 * 1.2816), rel=0.06)


def test_a_busy_endpoint_that_changes_is_followed() -> None:
    track = Track()
    for _ in range(1000):
        track.add(0.1, 1.0)
    for _ in range(int(3 * MEMORY)):
        track.add(0.5, 1.0)
    assert track.mean == pytest.approx(0.5, rel=0.06)


def test_old_samples_weigh_less_than_new_ones() -> None:
    fresh, aged = Track(), Track()
    for track, gap in ((fresh, 0.0), (aged, 10 * FORGET_S)):
        for _ in range(20):
            track.add(0.1, 0.0)
        track.add(0.5, gap)
    assert fresh.mean < 0.15
    assert aged.mean > 0.49


@pytest.mark.parametrize("seconds", [0.0, 5e-324, 1e-280, 1e-9])
def test_times_that_no_clock_can_tell_do_no_harm(seconds: float) -> None:
    track = Track()
    for number in range(3):
        track.add(seconds * number, 1.0)
    assert 0.0 <= track.mean <= track.p90 < 1e-8


@pytest.mark.parametrize("seconds", [1e300, -0.1, math.nan, math.inf, -math.inf])
def test_what_is_no_duration_is_not_learnt(seconds: float) -> None:
    track = Track()
    track.add(seconds, 1.0)
    assert track.count == 0
    track.add(0.1, 1.0)
    track.add(seconds, 2.0)
    assert (track.count, track.mean) == (1, 0.1)


def test_p90_is_never_below_the_mean() -> None:
    track = Track()
    for seconds in (1e-6, 1e-6, 1e-6, 1000.0, 1e-6):
        track.add(seconds, 0.0)
        assert track.p90 >= track.mean


def test_time_that_runs_backwards_does_no_harm() -> None:
    track = Track()
    track.add(0.1, 100.0)
    track.add(0.2, 50.0)
    assert track.last == 100.0
    assert 0.1 < track.mean < 0.2


def test_a_total_teaches_nothing_without_a_model() -> None:
    model = Model()
    model.split(1.0, 10.0, 0.0, 0.3)
    assert model.ttft.value is None
    assert model.tpot.value is None


def test_a_total_is_split_as_the_model_would_split_it() -> None:
    model = Model()
    model.ttft.add(0.2, 0.0)
    model.tpot.add(0.02, 0.0)
    model.split(2 * (0.2 + 0.02 * 9), 10.0, 0.0, 0.3)
    assert model.ttft.mean / model.tpot.mean == pytest.approx(10.0)
    assert 0.2 < model.ttft.mean < 0.4
