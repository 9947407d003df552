"""A circuit breaker as a function of outcomes and the time.

    closed     attempts pass; failures in a row, or a high share of failures, open it
    open       nothing passes until a time that doubles with each opening
    half_open  one attempt passes as a trial; its first token or success closes the breaker, its failure opens it

A breaker that a first token closed is on probation: until a call ends well there, one failure opens it again.
Overload and cancelled calls are no failures: they only give a trial's place back.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

__all__ = ["Breaker", "BreakerState"]

BreakerState = Literal["closed", "open", "half_open"]

IN_A_ROW = 5
SHARE = 0.5
AT_LEAST = 20.0
"""Outcomes that must be seen, fading over `WINDOW_S`, before their share of failures opens the breaker."""
WINDOW_S = 30.0
FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 60.0
TRIAL_S = 60.0
"""A trial that is silent for this long no longer keeps others from being one."""


class Breaker(msgspec.Struct):
    """`until`: when an open breaker lets a trial pass, None while closed. `trial`: the attempt that is it."""

    failures: int = 0
    good: float = 0.0
    bad: float = 0.0
    seen: float = 0.0
    until: float | None = None
    pause: float = 0.0
    trial: str | None = None
    trial_ends: float = 0.0

    def state(self, now: float) -> BreakerState:
        if self.until is None:
            return "closed"
        return "open" if now < self.until else "half_open"

    def wait(self, now: float) -> float:
        """Seconds until an attempt may pass; 0: it may pass now."""
        if self.until is None:
            return 0.0
        ends = self.until if self.trial is None else max(self.until, self.trial_ends)
        return max(0.0, ends - now)

    def sent(self, attempt: str, now: float) -> None:
        """An attempt was dispatched; in the half-open state it is the trial."""
        if self.state(now) == "half_open":
            self.trial = attempt
            self.trial_ends = now + TRIAL_S

    def answered(self, attempt: str) -> bool:
        """An attempt's first token came. True: that closed the breaker."""
        if self.until is None or attempt != self.trial:
            return False
        self._close()
        self.failures = IN_A_ROW - 1
        return True

    def succeeded(self, attempt: str, now: float) -> bool:
        """An attempt ended well. True: that closed the breaker."""
        if self.until is not None:
            if attempt != self.trial:
                return False  # sent before it opened: says nothing of how the engine is now
            self._close()
            self.failures, self.pause = 0, 0.0
            return True
        self._fade(now)
        self.good += 1.0
        self.failures, self.pause = 0, 0.0
        return False

    def failed(self, attempt: str, now: float) -> bool:
        """An attempt failed. True: that opened the breaker."""
        if self.until is not None:
            if attempt != self.trial:
                return False
            self._open(now)
            return True
        self._fade(now)
        self.bad += 1.0
        self.failures += 1
        outcomes = self.good + self.bad
        if self.failures >= IN_A_ROW or (outcomes >= AT_LEAST and self.bad >= SHARE * outcomes):
            self._open(now)
            return True
        return False

    def released(self, attempt: str) -> None:
        """An attempt ended without saying anything of the engine's health."""
        if attempt == self.trial:
            self.trial = None

    def shift(self, seconds: float) -> None:
        """Move every time stamp, for a clock that started anew."""
        self.seen += seconds
        self.trial_ends += seconds
        if self.until is not None:
            self.until += seconds

    def _open(self, now: float) -> None:
        self.pause = min(LONGEST_PAUSE_S, 2.0 * self.pause) if self.pause else FIRST_PAUSE_S
        self.until = now + self.pause
        self.trial = None

    def _close(self) -> None:
        self.until = self.trial = None
        self.good = self.bad = 0.0

    def _fade(self, now: float) -> None:
        keep = math.exp(-max(0.0, now - self.seen) / WINDOW_S)
        self.good *= keep
        self.bad *= keep
        self.seen = max(self.seen, now)
