"""Which error a word of Triton is: its gRPC codes, and the texts that come without one.

    INVALID_ARGUMENT OUT_OF_RANGE        Refused, 400 (ContextTooLong by its words)
    NOT_FOUND UNIMPLEMENTED              Misconfigured: another model or layout than the one that is there
    UNAUTHENTICATED PERMISSION_DENIED    Misconfigured
    RESOURCE_EXHAUSTED                   Overloaded, 429
    UNAVAILABLE                          Overloaded or Loading where Triton says so; the connection's own are
                                         Unreached or Lost, by whether the call was sent
    DEADLINE_EXCEEDED                    TimedOut
    CANCELLED                            Faulted, 499: someone else cancelled it
    anything else                        Faulted, 500

Triton checks a request before the model sees it, and what it says then comes as a text without a code.
"""

from __future__ import annotations

import re

from engines.classify import classify
from engines.errors import EngineError, Faulted, Misconfigured
from engines.rawjson import encode

__all__ = ["from_code", "from_text", "says_unavailable"]

_STATUS = {
    "INVALID_ARGUMENT": 400,
    "OUT_OF_RANGE": 400,
    "FAILED_PRECONDITION": 400,
    "ALREADY_EXISTS": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "UNIMPLEMENTED": 404,
    "RESOURCE_EXHAUSTED": 429,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
_UNKNOWN_MODEL = re.compile(r"unknown model|is not found|no (?:version is available|available versions)", re.IGNORECASE)
_WRONG_TENSORS = re.compile(
    r"expected (?:number of inputs|\d+ inputs)|unexpected (?:inference )?(?:input|output|shape)|data-?type|"
    r"streaming is only supported|decoupled transaction policy|decoupled mode",
    re.IGNORECASE,
)
_FULL = re.compile(r"maximum queue size", re.IGNORECASE)
_NOT_READY = re.compile(r"is not ready|server is (?:exiting|not ready)", re.IGNORECASE)
_PREFIX = re.compile(r"^(?:\[request id: [^\]]*\] |in ensemble '[^']*', )+")
_TRACEBACK = re.compile(r"\n\s*At:\n.*", re.DOTALL)


def from_code(code: str, text: str) -> EngineError:
    """The error of a call that ended with this gRPC code ("INVALID_ARGUMENT", ...) and these details."""
    if code == "CANCELLED":
        return Faulted("The engine's side cancelled the request.", status=499, detail=text)
    if code == "UNAVAILABLE" and _UNKNOWN_MODEL.search(text):
        return _classified(404, text)
    if code in ("INTERNAL", "UNKNOWN", "INVALID_ARGUMENT") and _WRONG_TENSORS.search(text):
        return _outdated(text)
    return _classified(_STATUS.get(code, 500), text)


def from_text(text: str) -> EngineError:
    """The error that a message of the stream, or a body, states in words alone."""
    if _UNKNOWN_MODEL.search(text):
        return _classified(404, text)
    if _WRONG_TENSORS.search(text):
        return _outdated(text)
    if _FULL.search(text) or _NOT_READY.search(text):
        return _classified(503, text)
    return _classified(500, text)


def says_unavailable(text: str) -> bool:
    """The words are Triton's own for a request that it did not take, and not those of a broken connection."""
    return any(pattern.search(text) for pattern in (_FULL, _NOT_READY, _UNKNOWN_MODEL))


def _outdated(text: str) -> Misconfigured:
    return Misconfigured("The engine's model takes other tensors than it did.", detail=text)


def _classified(status: int, text: str) -> EngineError:
    said = _TRACEBACK.sub("", _PREFIX.sub("", text)).strip()
    error = classify(status, encode({"error": said}), "application/json")
    error.detail = text
    return error
