"""Label values come from the configuration alone. Whatever a client or an engine can make up becomes `other`.

Without this each misspelt model name is a new series for ever, and `/metrics` grows until a restart (B29).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import engines.errors
from gateway.contract import Pool

__all__ = ["ERRORS", "NONE", "OPERATIONS", "OTHER", "OUTCOMES", "Words", "known_endpoint", "known_policy"]

OTHER: Final = "other"
NONE: Final = "none"

OPERATIONS: Final[Mapping[str, str]] = {
    "chat": "chat",
    "completions": "text_completion",
    "embeddings": "embeddings",
    OTHER: OTHER,
}
"""The call's kind -> the convention's `gen_ai.operation.name`."""

OUTCOMES: Final = frozenset({"ok", "cancelled", "error", "overload", "rejected"})
ERRORS: Final = frozenset(engines.errors.__all__)


class Words:
    """Lets through words that code made (reasons, error codes), as long as they are few and look like words."""

    def __init__(self, limit: int = 64) -> None:
        self._limit = limit
        self._seen: set[str] = set()

    def __call__(self, word: str) -> str:
        if word in self._seen:
            return word
        if len(self._seen) < self._limit and re.fullmatch(r"[a-z][a-z0-9_]{0,47}", word):
            self._seen.add(word)
            return word
        return OTHER


def known_endpoint(pool: Pool | None, endpoint: str | None) -> tuple[str, str]:
    """Return (engine kind, endpoint name) as configured; `none` where no endpoint was chosen."""
    if endpoint is None:
        return NONE, NONE
    engine = None if pool is None else pool.engines.get(endpoint)
    return (OTHER, OTHER) if engine is None else (engine.kind, endpoint)


def known_policy(pool: Pool | None, policy: str) -> str:
    if pool is not None and (policy == pool.policy or policy in pool.allowed_policies):
        return policy
    return OTHER if policy else NONE
