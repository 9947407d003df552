"""The router's only randomness: a hash, so that the same seed and attempt draw the same in every process."""

from __future__ import annotations

from hashlib import blake2b

__all__ = ["draw"]

_SCALE = 2.0**-53


def draw(seed: int, attempt: str) -> float:
    """A number in [0, 1), uniform over attempts."""
    digest = blake2b(f"{seed}:{attempt}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) * _SCALE
