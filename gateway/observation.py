"""What the relay measures of one attempt: stamps of tokens, and the few figures made from them.

Pure functions over monotonic seconds; nothing here reads a clock.
"""

from __future__ import annotations

import math
from array import array
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["MAX_STAMPS", "Stamps", "estimate_tokens", "tpot"]

MAX_STAMPS: Final = 65_536
"""Stamps that one stream keeps exactly (512 KiB)."""

# Seconds between tokens are learnt from text of any language; UTF-8 makes a Chinese character, which is about
# three quarters of a token, three bytes, and an English token about four letters. So one figure serves both.
BYTES_PER_TOKEN: Final = 4


class Stamps:
    """When the blocks of one stream that carried tokens came.

    Up to `limit` stamps are kept as they are and the fold is exact. A longer stream keeps a uniform random sample of
    its gaps instead, at most `limit` of them, so that memory stays bounded; the largest gap stays exact. (Every
    second gap would be a biased sample: speculative decoding alternates bursts and pauses.) The draw has a fixed
    seed, so that the same stamps give the same figures.

    Attributes:
        first, last: the first and the latest stamp, None before there was one.
        count: stamps added so far.
    """

    __slots__ = ("_at", "_dropped", "_gaps", "_limit", "_longest", "_random", "_share", "first")

    def __init__(self, limit: int = MAX_STAMPS) -> None:
        if limit < 2:
            raise ValueError("limit must be at least 2")
        self.first: float | None = None
        self._limit = limit
        self._at = array("d")
        self._gaps: npt.NDArray[np.float64] | None = None
        self._share = 1.0
        self._longest = 0.0
        self._dropped = 0
        self._random: np.random.Generator | None = None

    def add(self, now: float) -> None:
        """Note that a token-bearing block came at `now`. Called once per block, so it does nothing else."""
        at = self._at
        if not at:
            self.first = now
        at.append(now)
        if len(at) > self._limit:
            self._thin()

    @property
    def last(self) -> float | None:
        return self._at[-1] if self._at else None

    @property
    def count(self) -> int:
        return len(self._at) + self._dropped

    def fold(self) -> tuple[float | None, float | None, float | None]:
        """Return the gaps' p50, p99 (nearest rank) and maximum in seconds; None thrice under two stamps."""
        gaps = np.diff(np.frombuffer(self._at)) if len(self._at) > 1 else np.empty(0)
        longest = max(self._longest, float(gaps.max())) if gaps.size else self._longest
        if self._gaps is not None:
            gaps = np.concatenate([self._gaps, self._sample(gaps)])
        if not gaps.size:
            return None, None, None
        middle, high = _rank(gaps.size, 0.5), _rank(gaps.size, 0.99)
        gaps.partition([middle, high])
        return float(gaps[middle]), float(gaps[high]), longest

    def _thin(self) -> None:
        """Turn the stamps into a sample of their gaps and begin again from the last one."""
        gaps = np.diff(np.frombuffer(self._at))
        self._longest = max(self._longest, float(gaps.max()))
        kept = self._sample(gaps)
        if self._gaps is not None:
            kept = np.concatenate([self._gaps, kept])
        while kept.size > self._limit // 2:
            self._share /= 2
            kept = kept[self._draws(kept.size) < 0.5]
        self._gaps = kept
        last = self._at[-1]
        self._dropped += len(self._at) - 1
        self._at = array("d", [last])

    def _sample(self, gaps: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return gaps if self._share == 1.0 else gaps[self._draws(gaps.size) < self._share]

    def _draws(self, size: int) -> npt.NDArray[np.float64]:
        if self._random is None:
            self._random = np.random.default_rng(0)
        return self._random.random(size)


def tpot(first: float | None, last: float | None, output_tokens: int | None) -> float | None:
    """Return seconds per output token: (last - first) / (output tokens - 1).

    None without a first token, without the engine's count, under two tokens, and where all tokens came in one block
    (no time between them was seen; 0 would claim an infinitely fast engine).
    """
    if first is None or last is None or output_tokens is None or output_tokens < 2 or last <= first:
        return None
    return (last - first) / (output_tokens - 1)


def estimate_tokens(size: int) -> int:
    """Return about how many tokens `size` bytes of UTF-8 text are. An estimate: mark it wherever it is shown."""
    return -(-size // BYTES_PER_TOKEN) if size > 0 else 0


def _rank(size: int, share: float) -> int:
    return max(0, math.ceil(share * size) - 1)
