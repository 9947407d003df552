"""Numbers that an engine states: what is no count and no time is taken as not given."""

from __future__ import annotations

import msgspec
import pytest

from engines.contract import Timings, Usage
from engines.counts import read_timings, read_usage


@pytest.mark.parametrize("count", [-1, 2**53 + 1, 10**30, 10**400])
def test_a_count_that_no_metric_could_hold_is_not_given(count: int) -> None:
    assert read_usage(b'{"prompt_tokens": 3, "completion_tokens": %d}' % count) is None
    assert read_usage(b'{"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": %d}}' % count) is None


def test_counts_in_bounds_are_given() -> None:
    assert read_usage(b'{"prompt_tokens": 0, "completion_tokens": 9007199254740992}') == Usage(0, 2**53)


@pytest.mark.parametrize("text", [b"-0.5", b"1e300", b"1e999"])
def test_a_time_that_cannot_be_is_not_given(text: bytes) -> None:
    assert read_timings(b'{"prompt_ms": 1, "predicted_ms": %s}' % text) is None


def test_times_in_bounds_are_given() -> None:
    assert read_timings(b'{"prompt_ms": 0, "predicted_ms": 2000}') == Timings(0.0, 2.0)


@pytest.mark.parametrize("read", [read_usage, read_timings])
def test_nesting_too_deep_to_be_read_is_not_given(read: object) -> None:
    deep = b'{"prompt_tokens": 1, "prompt_ms": 1, "more": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert read(msgspec.Raw(deep)) is None  # type: ignore[operator]
