"""The guards against the faults of the bug reports: where each stands in the code, and which test misses it.

A row takes one guard out: `find` (which stands exactly once in `file`) is replaced by `instead`, and then `test` must
fail. `test_guards.py` tries every row on a copy of the tree.
"""

from __future__ import annotations

from tests.guards.calls import CALLS
from tests.guards.edge import EDGE
from tests.guards.guard import Guard
from tests.guards.stream import STREAM
from tests.guards.triton import TRITON
from tests.guards.wire import WIRE

__all__ = ["GUARDS", "IDS"]

IDS = (
    *("B01", "B03", "B05", "B06", "B07", "B08", "B09", "B10", "B12", "B17", "B20", "B21", "B22"),
    *("B33", "B34", "B35", "B36", "B39", "B41", "B42", "B43", "B45"),
)
"""The reports that must have a row."""

GUARDS: tuple[Guard, ...] = STREAM + CALLS + WIRE + EDGE + TRITON
