"""What a configuration may name: the engines and policies that are there."""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import msgspec

__all__ = ["engine_kinds", "engine_options", "policy_names"]


class _Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Stands in until `engines.options_type` is there."""

    url: str
    model: str | None = None
    api_key: str | None = None
    timeout: Annotated[float, msgspec.Meta(gt=0)] | None = None


def engine_kinds() -> tuple[str, ...]:
    """The kinds of engine that an endpoint may have."""
    available: Any = getattr(importlib.import_module("engines"), "available", None)
    return tuple(available()) if available else ("llamacpp", "tensorrt_llm", "tgi", "vllm")


def engine_options(kind: str) -> type[msgspec.Struct]:
    """The struct of an engine's own options."""
    options: Any = getattr(importlib.import_module("engines"), "options_type", None)
    found: type[msgspec.Struct] = options(kind) if options else _Options
    return found


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
