"""The default: most calls within their SLO, by what is measured. Until it learns, the matrix is its prior."""

from __future__ import annotations

from router.contract import Objective
from router.objectives import matrix

__all__ = ["build"]


def build() -> Objective:
    """The matrix, which every measurement will be held against."""
    return matrix.build()
