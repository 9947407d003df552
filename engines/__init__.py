"""Speaks to engines. Knows nothing of routing or serving.

The file name is the name in the configuration: `build("vllm", ...)` imports `engines/vllm.py`, decodes its `Options`
and calls its `build(name, options)`. A module with a top-level `build` is a kind of engine; a further engine is one
further file and no other edit. Nothing is imported before it is used: `import engines` loads no HTTP client.
"""

import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from types import ModuleType

import msgspec

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
    "available",
    "build",
    "options_type",
]

_BUILD = re.compile(r"^def build\(", re.MULTILINE)


@cache
def available() -> tuple[str, ...]:
    """The kinds of engine there are, by name, without importing any of them."""
    names = (module.name for module in pkgutil.iter_modules(__path__))
    return tuple(sorted(name for name in names if not name.startswith("_") and _BUILD.search(_source(name))))


def options_type(kind: str) -> type[msgspec.Struct]:
    """The options that endpoints of this kind take.

    Raises:
        ValueError: there is no such kind, or what it needs is not installed.
    """
    options: type[msgspec.Struct] = _module(kind).Options
    return options


def build(kind: str, name: str, raw: Mapping[str, object]) -> Engine:
    """The engine of the endpoint `name`, with options as they stand in the configuration.

    Raises:
        ValueError: no such kind, an unknown option (the nearest known one is named) or a wrong value.
    """
    module = _module(kind)
    known = [field.encode_name for field in msgspec.structs.fields(module.Options)]
    for key in raw:
        if key not in known:
            near = get_close_matches(str(key), known, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(known)}."
            raise ValueError(f"endpoint {name!r} ({kind}): unknown option `{key}`; {hint}")
    try:
        options = msgspec.convert(dict(raw), module.Options, strict=True)
    except msgspec.ValidationError as error:
        raise ValueError(f"endpoint {name!r} ({kind}): {error}") from error
    engine: Engine = module.build(name, options)
    return engine


def _module(kind: str) -> ModuleType:
    if kind not in available():
        raise ValueError(f"there is no engine {kind!r}; known are {', '.join(available())}")
    try:
        return importlib.import_module(f"engines.{kind}")
    except ModuleNotFoundError as error:
        raise ValueError(f"engine {kind!r} needs the package {error.name!r}, which is not installed") from error


def _source(name: str) -> str:
    spec = importlib.util.find_spec(f"engines.{name}")
    source = spec.loader.get_source(spec.name) if spec and hasattr(spec.loader, "get_source") else None  # type: ignore[union-attr]
    return source or ""
