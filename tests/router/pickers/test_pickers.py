"""Pickers: a ranking of all that was scored, and propensities that are true."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.contract import Picker, Scored
from router.pickers import best, two_choices

SCORES = st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from([0.0, 1.0, 1.5, 2.0]), max_size=8)
STEPS = 4000


def scored(scores: dict[str, float]) -> dict[str, Scored]:
    return {name: Scored(score) for name, score in scores.items()}


@pytest.mark.parametrize("picker", [best.pick, two_choices.pick])
@given(scores=SCORES, draw=st.floats(0.0, 1.0, exclude_max=True))
def test_ranks_exactly_what_was_scored_and_shares_sum_to_one(
    picker: Picker, scores: dict[str, float], draw: float
) -> None:
    ranking, odds = picker(scored(scores), draw)
    assert sorted(ranking) == sorted(scores)
    assert sorted(odds) == sorted(scores)
    assert sum(odds.values()) == pytest.approx(1.0 if scores else 0.0)
    if ranking:
        assert odds[ranking[0]] > 0.0


@pytest.mark.parametrize("picker", [best.pick, two_choices.pick])
@pytest.mark.parametrize(
    "scores",
    [
        {"a": 1.0},
        {"a": 1.0, "b": 1.0},
        {"a": 2.0, "b": 1.0},
        {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0},
        {"a": 1.0, "b": 1.0, "c": 1.0},
        {"d": 1.0, "c": 2.0, "b": 2.0, "a": 3.0, "e": 3.0},
    ],
)
def test_propensities_are_the_frequencies_over_all_draws(picker: Picker, scores: dict[str, float]) -> None:
    entries = scored(scores)
    _, odds = picker(entries, 0.0)
    firsts = Counter(picker(entries, (step + 0.5) / STEPS)[0][0] for step in range(STEPS))
    for name in scores:
        assert firsts[name] / STEPS == pytest.approx(odds[name], abs=0.002)


@pytest.mark.parametrize("picker", [best.pick, two_choices.pick])
@given(scores=SCORES, draw=st.floats(0.0, 1.0, exclude_max=True))
def test_the_order_in_which_scores_come_decides_nothing(picker: Picker, scores: dict[str, float], draw: float) -> None:
    backwards = dict(reversed(scores.items()))
    assert picker(scored(scores), draw)[0] == picker(scored(backwards), draw)[0]


def test_best_ranks_by_score() -> None:
    ranking, odds = best.pick(scored({"a": 3.0, "b": 1.0, "c": 2.0}), 0.99)
    assert ranking == ("b", "c", "a")
    assert odds == {"b": 1.0, "c": 0.0, "a": 0.0}


def test_two_choices_never_takes_the_worst_of_several_first() -> None:
    entries = scored({"a": 3.0, "b": 1.0, "c": 2.0})
    assert two_choices.pick(entries, 0.0)[1] == pytest.approx({"a": 0.0, "b": 2 / 3, "c": 1 / 3})
