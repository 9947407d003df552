"""Counters and histograms in plain Python, cheap enough for the path of a call, and their Prometheus form.

A series is one list of numbers that the caller may keep and add to (`cell`), so that the hot path pays one
`bisect` and two additions. Prometheus's own children cost five times that. The lists are read by another thread
while the loop adds to them: a copy of a list is taken in one step, so a histogram's buckets always agree with its
count.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import Metric
from prometheus_client.samples import Sample

__all__ = ["Cell", "Counter", "Histogram", "put"]

Cell = list[float]
"""A counter's is its value; a histogram's is one count per bucket, the last of them unbounded, then the sum."""

# A rendering thread holds the interpreter's lock; it lets the loop in after so many samples.
SAMPLES_AT_ONCE = 64


def put(cell: Cell, bounds: Sequence[float], value: float) -> None:
    """Count `value` in a histogram's cell."""
    cell[bisect_left(bounds, value)] += 1
    cell[-1] += value


class Counter:
    """A family of counters that differ in the values of `labels`. `name` ends in `_total`."""

    __slots__ = ("_cells", "help", "labels", "name")

    def __init__(self, name: str, help: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self.help = help
        self.labels = tuple(labels)
        self._cells: dict[tuple[str, ...], Cell] = {}

    def cell(self, *values: str) -> Cell:
        """Return the one-number list of these label values, made where it is new."""
        found = self._cells.get(values)
        if found is None:
            found = self._cells[values] = [0.0]
        return found

    def collect(self) -> Metric:
        metric = Metric(self.name.removesuffix("_total"), self.help, "counter")
        metric.samples = _Yielding(self._samples)
        return metric

    def _samples(self) -> Iterator[Sample]:
        for values, cell in self._cells.copy().items():
            if cell[0]:
                yield Sample(self.name, dict(zip(self.labels, values, strict=True)), cell[0])


class Histogram:
    """A family of histograms with the same upper bounds (ascending, `+Inf` implied)."""

    __slots__ = ("_cells", "_marks", "bounds", "help", "labels", "name")

    def __init__(self, name: str, help: str, bounds: Sequence[float], labels: Sequence[str] = ()) -> None:
        self.name = name
        self.help = help
        self.bounds = tuple(bounds)
        self.labels = tuple(labels)
        self._marks = (*(repr(float(bound)) for bound in self.bounds), "+Inf")
        self._cells: dict[tuple[str, ...], Cell] = {}

    def cell(self, *values: str) -> Cell:
        """Return the list to `put` into for these label values, made where it is new."""
        found = self._cells.get(values)
        if found is None:
            found = self._cells[values] = [0.0] * (len(self.bounds) + 2)
        return found

    def collect(self) -> Metric:
        metric = Metric(self.name, self.help, "histogram")
        metric.samples = _Yielding(self._samples)
        return metric

    def _samples(self) -> Iterator[Sample]:
        for values, cell in self._cells.copy().items():
            *counts, total = cell.copy()
            running = list(accumulate(counts))
            if not running[-1]:
                continue  # made with its siblings and never used: no sample is not a sample of nothing
            labels = dict(zip(self.labels, values, strict=True))
            for mark, count in zip(self._marks, running, strict=True):
                yield Sample(self.name + "_bucket", {**labels, "le": mark}, count)
            yield Sample(self.name + "_count", labels, running[-1])
            yield Sample(self.name + "_sum", labels, total)


class _Yielding(list[Sample]):
    """Samples made anew at each pass, so that the rendering thread gives way between a few of them.

    A list only by type, as `Metric.samples` must be one; prometheus_client does nothing but iterate over it.
    """

    def __init__(self, samples: Callable[[], Iterator[Sample]]) -> None:
        super().__init__()
        self._samples = samples

    def __iter__(self) -> Iterator[Sample]:
        for index, sample in enumerate(self._samples(), start=1):
            if not index % SAMPLES_AT_ONCE:
                time.sleep(0)
            yield sample
