"""Stamps, TPOT and estimates: exact where they can be, bounded always, silent where nothing was measured."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.observation import Stamps, estimate_tokens, tpot


def stamped(times: list[float], limit: int = 65_536) -> Stamps:
    stamps = Stamps(limit)
    for time in times:
        stamps.add(time)
    return stamps


def test_gaps_between_stamps_are_folded_exactly() -> None:
    times = [0.0]
    for gap in [0.01] * 98 + [0.2, 0.5]:
        times.append(times[-1] + gap)
    middle, high, longest = stamped(times).fold()
    assert middle == pytest.approx(0.01)
    assert high == pytest.approx(0.2)
    assert longest == pytest.approx(0.5)


@pytest.mark.parametrize("times", [[], [3.0]])
def test_under_two_stamps_nothing_is_claimed(times: list[float]) -> None:
    stamps = stamped(times)
    assert stamps.fold() == (None, None, None)
    assert stamps.count == len(times)
    assert stamps.last == (times[-1] if times else None)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=200))
def test_the_fold_is_the_nearest_rank_of_all_gaps(gaps: list[float]) -> None:
    times = [0.0]
    for gap in gaps:
        times.append(times[-1] + gap)
    seen = sorted(later - earlier for earlier, later in itertools.pairwise(times))
    expected = (seen[math.ceil(0.5 * len(seen)) - 1], seen[math.ceil(0.99 * len(seen)) - 1], seen[-1])
    assert stamped(times).fold() == expected


def test_a_stream_without_end_keeps_bounded_memory_and_true_figures() -> None:
    limit = 1_000
    times = [0.0]
    # Bursts of two, as speculative decoding gives them: every second gap is nearly nothing.
    for index in range(50_000):
        times.append(times[-1] + (0.001 if index % 2 else 0.040))
    times.append(times[-1] + 2.0)  # one stall, which the sample may miss and the maximum may not
    stamps = Stamps(limit)
    for time in times:
        stamps.add(time)
        kept = len(stamps._at) + (0 if stamps._gaps is None else stamps._gaps.size)
        assert kept <= 2 * limit
    middle, high, longest = stamps.fold()
    assert stamps.count == len(times)
    assert (stamps.first, stamps.last) == (0.0, times[-1])
    assert longest == pytest.approx(2.0)
    assert high == pytest.approx(0.040)
    # A sample of every second gap would hold one kind alone; this one holds both, about half and half.
    assert stamps._gaps is not None
    assert 0.4 < statistics.mean(float(gap < 0.02) for gap in stamps._gaps) < 0.6
    assert middle in (pytest.approx(0.001), pytest.approx(0.040))


def test_the_same_stamps_give_the_same_figures() -> None:
    times = [index**1.5 for index in range(5_000)]
    assert stamped(times, 100).fold() == stamped(times, 100).fold()


def test_folding_twice_changes_nothing() -> None:
    stamps = stamped([1.0, 3.0, 4.0])
    assert stamps.fold() == stamps.fold()
    stamps.add(10.0)
    assert stamps.fold()[2] == 6.0


@pytest.mark.parametrize(
    ("first", "last", "tokens", "expected"),
    [
        (1.0, 3.0, 5, 0.5),
        (1.0, 3.0, 2, 2.0),
        (1.0, 3.0, 1, None),
        (1.0, 3.0, 0, None),
        (1.0, 3.0, None, None),
        (None, 3.0, 5, None),
        (1.0, None, 5, None),
        (3.0, 3.0, 5, None),
    ],
)
def test_tpot_is_undefined_where_it_was_not_seen(
    first: float | None, last: float | None, tokens: int | None, expected: float | None
) -> None:
    assert tpot(first, last, tokens) == expected


def test_estimates_grow_with_the_bytes_and_are_nought_for_nothing() -> None:
    assert estimate_tokens(0) == 0
    assert estimate_tokens(1) == 1
    assert estimate_tokens(8_000) == 2_000
