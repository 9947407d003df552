"""What a row of the table of guards is."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Guard"]


class Guard(NamedTuple):
    """One guard.

    Attributes:
        report: the bug report. file: from the tree's root. test: a pytest node id, or several separated by a blank.
    """

    report: str
    file: str
    find: str
    instead: str
    test: str
