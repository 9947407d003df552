"""What a log line says, and how it is written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import msgspec
import structlog
from structlog.typing import Processor

from engines.contract import Health
from gateway.contract import Observation, Served

__all__ = ["call_fields", "event_fields", "level_of", "level_of_health", "processors"]

STOPPED = "stopped"
"""The launcher's cause where it was told to stop: no fault."""

# What ends a line or drives a terminal, as a client may put it into a model's name.
CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}


def level_of(served: Served) -> int:
    """Return logging's level: errors of the house or its engines are errors, refusals warnings, the rest is info."""
    if served.outcome == "error":
        return logging.ERROR if served.status >= 500 or served.status < 400 else logging.WARNING
    if served.outcome in ("overload", "rejected"):
        return logging.WARNING
    return logging.INFO


def level_of_health(health: Health) -> int:
    """Return logging's level: an endpoint that fails or falters is a warning, all else, its recovery too, is info."""
    if health.state in ("down", "degraded") and health.why != STOPPED:
        return logging.WARNING
    return logging.INFO


def event_fields(fields: Mapping[str, object]) -> dict[str, object]:
    """Return an operator's event's fields: numbers rounded, what is empty or not known left out."""
    return {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in fields.items()
        if value is not None and value != ""
    }


def call_fields(served: Served) -> dict[str, object]:
    """Return the line's fields: seconds become `_ms`, what is not known is left out."""
    last = next((seen for seen in reversed(served.observations) if not seen.shadow), None)
    fields: dict[str, object | None] = {
        "call": served.call,
        "request_id": served.request_id,
        "model": served.model,
        "asked_model": served.asked_model,
        "kind": served.kind,
        "stream": served.stream,
        "policy": served.policy,
        "status": served.status,
        "outcome": served.outcome,
        "endpoint": served.endpoint,
        "engine": served.engine,
        "key": served.key,
        "code": served.code,
        "detail": served.detail or None,
        "started": round(served.started, 3),
        "total_ms": _ms(served.total),
        "overhead_ms": _ms(served.overhead),
        "attempts": sum(not seen.shadow for seen in served.observations),
    }
    if last is not None:
        fields |= _attempt_fields(last)
    failed = [f"{seen.endpoint}: {seen.error}" for seen in served.observations if seen.error and not seen.shadow]
    if failed:
        fields["failed"] = failed
    return {name: value for name, value in fields.items() if value is not None}


def processors(redact: Callable[[str], str], *, pretty: bool) -> Sequence[Processor]:
    """Return structlog's chain: level, traceback, redaction, and one of the two forms."""
    chain: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.format_exc_info,
        _Redact(redact),
    ]
    if pretty:
        return [*chain, _escape, structlog.dev.ConsoleRenderer(colors=True)]
    return [*chain, structlog.processors.JSONRenderer(serializer=_json)]


class _Redact:
    """Redacts every text of a line, however deep it lies, keys excepted: they are ours."""

    def __init__(self, redact: Callable[[str], str]) -> None:
        self._redact = redact

    def __call__(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        for name, value in event.items():
            event[name] = self._clean(value)
        return event

    def _clean(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, Mapping):
            return {self._redact(str(name)): self._clean(each) for name, each in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self._clean(each) for each in value]
        return self._redact(str(value))


def _attempt_fields(seen: Observation) -> dict[str, object | None]:
    return {
        "queue_ms": _ms(seen.queue_wait),
        "ttft_ms": _ms(seen.call_ttft),
        "tpot_ms": _ms(seen.tpot),
        "itl_max_ms": _ms(seen.itl_max),
        "prompt_tokens": seen.prompt_tokens,
        "cached_tokens": seen.cached_tokens,
        "output_tokens": seen.output_tokens,
        "tokens_estimated": seen.tokens_estimated or None,
        "finish": seen.finish,
        "explored": seen.explored or None,
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 3)


def _escape(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Keep a text from ending its line or driving the terminal. A traceback keeps its lines: we made it."""
    for name, value in event.items():
        if isinstance(value, str):
            table = {code: text for code, text in CONTROL.items() if code != 10} if name == "exception" else CONTROL
            event[name] = value.translate(table)
        elif isinstance(value, list):
            event[name] = [each.translate(CONTROL) if isinstance(each, str) else each for each in value]
    return event


def _json(event: Any, **_: object) -> str:
    return msgspec.json.encode(event).decode()
