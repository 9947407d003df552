"""What an engine said when it failed: one reading of the many shapes of its error bodies, made safe to show."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from engines.rawjson import UNREADABLE

__all__ = ["Said", "excerpt", "lacks_route", "read_error", "safe"]

_MESSAGE_LIMIT = 500
_BODY_LIMIT = 1 << 20

# What must not reach a client even where the engine's own sentence may: credentials, hosts, paths of the host.
_REDACTIONS = (
    (re.compile(r"(?i)\b(?:bearer|basic)\s+[\w.~+/=-]{6,}"), "[redacted]"),
    (re.compile(r"\b(?:sk|pk|hf|ghp|nvapi|xox[bp])[-_][\w-]{6,}"), "[redacted]"),
    (
        re.compile(r"(?i)\b(?:api[_-]?key|token|secret|password|authorization)[\"']?\s*[=:]\s*[\"']?[^\s\"',;&]{4,}"),
        "[redacted]",
    ),
    (re.compile(r"\b[a-z][a-z0-9+.-]*://\S+"), "[url]"),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"), "[address]"),
    (re.compile(r"(?<![\w/.])/(?:[\w.@+-]+/)+[\w.@+-]*"), "[path]"),
)
_BLANKS = re.compile(r"[\s\x00-\x1f\x7f]+")


class Said(msgspec.Struct, frozen=True):
    """An engine's error, as it put it (nothing here is redacted).

    Attributes:
        message: its sentence. type: its word for the kind of error, "" where it gave none.
        param: the field at fault. code: the HTTP status that it wrote into the body, None where none.
        tgi_stream: the form that TGI writes into streams, whose code is the same whatever the cause.
    """

    message: str
    type: str = ""
    param: str | None = None
    code: int | None = None
    tgi_stream: bool = False


def read_error(body: bytes) -> Said | None:
    """What the error body says, None where it is not JSON or holds no sentence.

    Knows `{"error": {...}}`, `{"error": "...", "error_type": "..."}`, the flat `{"object": "error", ...}`,
    FastAPI's `{"detail": ...}`, `{"message": ...}`, a bare string, and a list that holds one of these.
    """
    if len(body) > _BODY_LIMIT:
        return None
    try:
        data = msgspec.json.decode(body)
    except UNREADABLE:
        return None
    return _read(data)


def lacks_route(body: bytes) -> bool:
    """Whether a 404 with this body speaks of the path, as web frameworks say it, and not of a model."""
    said = read_error(body)
    return said is None or said.message.strip().lower() in ("not found", "file not found")


def _read(data: Any, depth: int = 0) -> Said | None:
    if isinstance(data, str) and data.strip():
        return Said(data)
    if isinstance(data, list) and data and depth < 2:
        return _read(data[0], depth + 1)
    if not isinstance(data, dict):
        return None
    error = data.get("error")
    if isinstance(error, dict):
        return _from_object(error)
    if isinstance(error, str):
        return Said(error, type=_text(data.get("error_type") or data.get("type")), code=_code(data.get("code")))
    if "detail" in data:
        return _from_detail(data["detail"])
    return _from_object(data) if "message" in data or "msg" in data else None


def _from_object(error: dict[str, Any]) -> Said:
    message = error.get("message", error.get("msg"))
    if not isinstance(message, str):
        message = "" if message is None else msgspec.json.encode(message).decode()
    param = error.get("param")
    code = _code(error.get("code"))
    status = _code(error.get("http_status_code"))
    return Said(
        message,
        type=_text(error.get("type")) or ("" if code is not None else _text(error.get("code"))),
        param=param if isinstance(param, str) and param else None,
        code=code if code is not None else status,
        tgi_stream="http_status_code" in error,
    )


def _from_detail(detail: Any) -> Said | None:
    if isinstance(detail, list) and detail and isinstance(detail[0], dict):
        first = detail[0]
        where = ".".join(str(part) for part in first.get("loc", ()) if part != "body")
        message = _text(first.get("msg")) or "invalid request"
        return Said(f"{where}: {message}" if where else message, param=where or None)
    return _read(detail, 1)


def _code(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) == 3:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 400 <= value <= 599 else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def safe(text: str) -> str:
    """`text` on one line, with credentials, addresses and paths taken out, cut to a sentence or two."""
    text = text[: 4 * _MESSAGE_LIMIT]
    for pattern, instead in _REDACTIONS:
        text = pattern.sub(instead, text)
    text = _BLANKS.sub(" ", text).strip()
    return text if len(text) <= _MESSAGE_LIMIT else text[: _MESSAGE_LIMIT - 1] + "…"


def excerpt(body: bytes, limit: int = 2000) -> str:
    """The beginning of a body as text, for the operator's log. Not redacted."""
    return body[:limit].decode("utf-8", "replace")
