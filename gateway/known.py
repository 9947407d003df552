"""The names of the policies that a configuration may choose."""

from __future__ import annotations

import importlib

__all__ = ["policy_names"]


def policy_names() -> tuple[str, ...]:
    """The policies that a pool may have."""
    try:
        policies = importlib.import_module("router.policies")
    except ModuleNotFoundError:
        return (
            "adaptive", "cpu", "ecosystem", "latency", "least_requests", "least_tokens", "matrix", "memory",
            "p2c_ewma", "round_robin", "throughput",
        )  # fmt: skip
    return tuple(policies.names())
