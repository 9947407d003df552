"""Policies by name: filters, an objective and a picker. The name of a policy is the name of its objective's file."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Sequence

import msgspec

from router import objectives
from router.contract import Filter, Objective, Picker, View
from router.filters import breaker, features, health, hold, limits, saturation

__all__ = ["FOR_EVER", "FOR_NOW", "Policy", "build", "names"]

FOR_EVER: tuple[Filter, ...] = (features.judge, limits.judge)
"""What no waiting cures. Judged first, so that an ask that fits nowhere is told so, and not to come back."""

FOR_NOW: tuple[Filter, ...] = (health.judge, breaker.judge, hold.judge, saturation.judge)

_NAME = re.compile(r"[a-z][a-z0-9_]*")


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How one name decides. `filters` are the policy's own, judged after those that all policies share.

    `why` says in a few words by what order the policy goes, for an ask that comes now.
    """

    name: str
    filters: tuple[Filter, ...]
    objective: Objective
    picker: Picker
    why: Callable[[Sequence[View]], str]


def names() -> tuple[str, ...]:
    """Every policy that there is, sorted."""
    return tuple(sorted(found.name for found in pkgutil.iter_modules(objectives.__path__)))


def build(name: str) -> Policy:
    """Make the policy `name`, with state of its own. Raises ValueError, naming the known ones, for any other."""
    if not _NAME.fullmatch(name) or name not in names():
        raise ValueError(f"unknown policy {name!r}; known are {', '.join(names())}")
    module = importlib.import_module(f"{objectives.__name__}.{name}")
    picker = importlib.import_module(f"router.pickers.{getattr(module, 'PICKER', 'best')}")
    return Policy(
        name=name,
        filters=getattr(module, "FILTERS", ()),
        objective=module.build(),
        picker=picker.pick,
        why=getattr(module, "why", lambda views: ""),
    )
