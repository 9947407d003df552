"""The default: most calls within their SLO, by what is measured. Until it learns, the matrix is its prior."""

from __future__ import annotations

from collections.abc import Sequence

from router.contract import Objective, View
from router.objectives import matrix

__all__ = ["build", "why"]


def build() -> Objective:
    """The matrix, which every measurement will be held against."""
    return matrix.build()


def why(views: Sequence[View]) -> str:
    """By what order it goes."""
    return f"as matrix, {matrix.why(views)}"
