"""The header `Retry-After`, in either of its forms."""

from __future__ import annotations

from email.utils import formatdate, parsedate_to_datetime

__all__ = ["read_retry_after"]


def read_retry_after(value: str | None, date: str | None) -> float | None:
    """Seconds to wait, not negative; None where `value` says nothing that can be understood.

    Args:
        value: the header: whole seconds, or an HTTP date.
        date: the header `Date` of the same answer, since the engine's clock and ours may differ.
    """
    if value is None:
        return None
    if value.strip().isdecimal():
        return float(value.strip()[:10])
    try:
        wait = parsedate_to_datetime(value) - parsedate_to_datetime(date or formatdate(usegmt=True))
    except (TypeError, ValueError):
        return None
    return max(0.0, wait.total_seconds())
