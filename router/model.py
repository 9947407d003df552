"""What is learnt of one endpoint: mean and spread of its times, newer samples and recent ones weighing more."""

from __future__ import annotations

import math

import msgspec

__all__ = ["Model", "Track"]

FORGET_S = 300.0
"""After this long without samples the old ones weigh 1/e of what they did."""

MEMORY = 32.0
"""Weight of at most so many samples is kept, so that a busy endpoint that changes is seen to change."""

Z90 = 1.2815515655446004
"""The normal distribution's 90th percentile, in standard deviations."""

FEW = 0.25
"""Squared relative spread that is assumed of a single sample; it shrinks as samples come."""


LONGEST_S = 1e6
RESOLUTION_S = 1e-9
"""No clock tells shorter times apart; of them no spread is computed."""


class Track(msgspec.Struct):
    """One measured time: weighted mean and variance in seconds, `count` samples, the last one at `last`."""

    mean: float = 0.0
    var: float = 0.0
    weight: float = 0.0
    count: int = 0
    last: float = 0.0
    p90: float = 0.0

    def add(self, seconds: float, now: float, weight: float = 1.0) -> None:
        """Learn one sample. What is no duration (negative, NaN, longer than `LONGEST_S`) is left out."""
        if not 0.0 <= seconds <= LONGEST_S or weight <= 0.0:
            return
        kept = self.weight * math.exp(-max(0.0, now - self.last) / FORGET_S) if self.count else 0.0
        self.weight = min(kept + weight, MEMORY)
        share = min(1.0, weight / self.weight)
        step = seconds - self.mean
        self.mean += share * step
        self.var = (1.0 - share) * (self.var + share * step * step)
        self.count += 1
        self.last = max(self.last, now) if self.count > 1 else now
        self.p90 = self._p90()

    @property
    def value(self) -> float | None:
        """The mean, None where nothing was measured."""
        return self.mean if self.count else None

    def _p90(self) -> float:
        """By the log-normal distribution of the same mean and variance: times are skewed, and never negative."""
        if self.mean < RESOLUTION_S:
            return self.mean
        spread = math.log1p(self.var / (self.mean * self.mean) + FEW / self.count)
        # Above a spread of about 2.6 the 90th percentile of a log-normal falls below its mean, which helps nobody.
        return max(self.mean, self.mean * math.exp(Z90 * math.sqrt(spread) - spread / 2.0))


class Model(msgspec.Struct):
    """First token and time per output token of generating calls; `total` of calls that have neither."""

    ttft: Track = msgspec.field(default_factory=Track)
    tpot: Track = msgspec.field(default_factory=Track)
    total: Track = msgspec.field(default_factory=Track)

    def split(self, seconds: float, tokens: float, now: float, weight: float) -> None:
        """Learn from a total alone, split as the model itself would split it. Without a model it teaches nothing."""
        expected = self.ttft.mean + self.tpot.mean * (tokens - 1.0)
        if self.ttft.count and self.tpot.count and expected > 0.0:
            ratio = seconds / expected
            self.ttft.add(self.ttft.mean * ratio, now, weight)
            self.tpot.add(self.tpot.mean * ratio, now, weight)

    def shift(self, seconds: float) -> None:
        """Move every time stamp, for a clock that started anew."""
        for track in (self.ttft, self.tpot, self.total):
            track.last += seconds
