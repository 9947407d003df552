"""Speaks to engines. Knows nothing of routing or serving."""

from engines.contract import Attempt, Call, Engine, Headers, Health, Limits, Load, Mark, Sink, Timings, Usage
from engines.errors import EngineError

__all__ = [
    "Attempt",
    "Call",
    "Engine",
    "EngineError",
    "Headers",
    "Health",
    "Limits",
    "Load",
    "Mark",
    "Sink",
    "Timings",
    "Usage",
]
