"""What the gateway itself refuses, and the one table from an exception to what the client is told.

    GatewayError
      BadRequest            the request cannot mean anything, or asks for what is not allowed
      BrokenHttp            what came is no HTTP
      Unauthorized          no API key, or none of ours
      Forbidden             the API key is known, but not for this
      NotFound              nothing lives at this path
        UnknownModel        no pool has this name
      MethodNotAllowed      the path is known, the method is not
      TooSlow               the request did not arrive in time
      TooLarge              the body is over the limit
      UrlTooLong
      UnsupportedEncoding   the body is compressed
      HeadTooLarge          the header section is over the limit
      QueueFull             the gateway holds as many waiting calls as it may
      Hopeless              the call would miss its SLO everywhere, and the pool refuses such calls
      NoEndpoint            no endpoint of the pool can take the call now
      ShuttingDown
      Internal              a fault of the gateway

`TABLE` holds a row for every class of this tree and of `engines.errors`; a test walks both. A row states the status,
OpenAI's `type`, and the `code` where the exception has none of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from engines import errors as engine
from engines.contract import Headers
from engines.errors import EngineError
from gateway.redact import redact

__all__ = [
    "TABLE",
    "Answer",
    "BadRequest",
    "BrokenHttp",
    "Forbidden",
    "GatewayError",
    "HeadTooLarge",
    "Hopeless",
    "Internal",
    "MethodNotAllowed",
    "NoEndpoint",
    "NotFound",
    "QueueFull",
    "ShuttingDown",
    "TooLarge",
    "TooSlow",
    "Unauthorized",
    "UnknownModel",
    "UnsupportedEncoding",
    "UrlTooLong",
    "answer",
    "envelope",
    "error_event",
    "redact",
    "render",
]

RETRY_AFTER_MAX = 3600
MESSAGE_MAX = 2000  # characters; an engine may quote a whole prompt


class GatewayError(Exception):
    """Base of the tree.

    Args:
        message: one sentence, safe for the client, naming what is wrong and, where known, what would be right.
        param: the request field that is at fault.
        code: OpenAI's error code where a more exact one than the row's is known.
        retry_after: seconds until it is worth asking again.
        allow: the methods that the path knows (MethodNotAllowed).
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        allow: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after
        self.allow = tuple(allow)


class BadRequest(GatewayError):
    pass


class BrokenHttp(GatewayError):
    pass


class Unauthorized(GatewayError):
    pass


class Forbidden(GatewayError):
    pass


class NotFound(GatewayError):
    pass


class UnknownModel(NotFound):
    pass


class MethodNotAllowed(GatewayError):
    pass


class TooSlow(GatewayError):
    pass


class TooLarge(GatewayError):
    pass


class UrlTooLong(GatewayError):
    pass


class UnsupportedEncoding(GatewayError):
    pass


class HeadTooLarge(GatewayError):
    pass


class QueueFull(GatewayError):
    pass


class Hopeless(GatewayError):
    pass


class NoEndpoint(GatewayError):
    pass


class ShuttingDown(GatewayError):
    pass


class Internal(GatewayError):
    pass


class Answer(NamedTuple):
    """What the client is told of an exception: HTTP status, OpenAI's `type`, OpenAI's `code`."""

    status: int
    type: str
    code: str | None


_REQUEST, _LIMIT, _SERVER = "invalid_request_error", "rate_limit_error", "server_error"

TABLE: dict[type[Exception], Answer] = {
    GatewayError: Answer(500, _SERVER, "internal_error"),
    BadRequest: Answer(400, _REQUEST, None),
    BrokenHttp: Answer(400, _REQUEST, "malformed_http"),
    Unauthorized: Answer(401, _REQUEST, "invalid_api_key"),
    Forbidden: Answer(403, _REQUEST, "insufficient_permissions"),
    NotFound: Answer(404, _REQUEST, None),
    UnknownModel: Answer(404, _REQUEST, "model_not_found"),
    MethodNotAllowed: Answer(405, _REQUEST, "method_not_supported"),
    TooSlow: Answer(408, _REQUEST, "request_timeout"),
    TooLarge: Answer(413, _REQUEST, "request_too_large"),
    UrlTooLong: Answer(414, _REQUEST, "url_too_long"),
    UnsupportedEncoding: Answer(415, _REQUEST, "unsupported_content_encoding"),
    HeadTooLarge: Answer(431, _REQUEST, "headers_too_large"),
    QueueFull: Answer(429, _LIMIT, "queue_full"),
    Hopeless: Answer(429, _LIMIT, "slo_unreachable"),
    NoEndpoint: Answer(503, _SERVER, "no_endpoint"),
    ShuttingDown: Answer(503, _SERVER, "shutting_down"),
    Internal: Answer(500, _SERVER, "internal_error"),
    EngineError: Answer(502, _SERVER, "engine_error"),
    engine.Unreached: Answer(503, _SERVER, "engine_unreachable"),
    engine.Overloaded: Answer(503, _SERVER, "engine_overloaded"),
    engine.Loading: Answer(503, _SERVER, "model_loading"),
    engine.Refused: Answer(400, _REQUEST, None),
    engine.ContextTooLong: Answer(400, _REQUEST, "context_length_exceeded"),
    engine.Unsupported: Answer(400, _REQUEST, "unsupported_parameter"),
    engine.Misconfigured: Answer(502, _SERVER, "engine_misconfigured"),
    engine.Faulted: Answer(502, _SERVER, "engine_failed"),
    engine.Lost: Answer(502, _SERVER, "engine_lost"),
    engine.Gone: Answer(502, _SERVER, "engine_lost"),
    engine.TimedOut: Answer(504, _SERVER, "engine_timeout"),
    engine.Malformed: Answer(502, _SERVER, "engine_bad_answer"),
    engine.Aborted: Answer(503, _SERVER, "aborted"),
}

_MISCONFIGURED = "The gateway is not set up rightly for the engine behind this model; its operator has to look at it."
# Clients know this error by words: LangChain by the code's own in the message, LiteLLM by OpenAI's sentence.
_TOO_LONG = "This model's maximum context length is exceeded (context_length_exceeded):"
_INTERNAL = "The gateway made a mistake; its log has the details."

# A status that an engine gave for the client's request; these speak of the gateway's own dealings with the engine.
_NOT_THE_CLIENTS = frozenset({401, 403, 404, 405, 407, 408, 429})


def answer(exc: BaseException) -> Answer:
    """Look `exc` up in the table, and let the status that an engine gave stand where it means the client.

    An exception that is none of ours is an internal error.
    """
    row = next((TABLE[cls] for cls in type(exc).__mro__ if cls in TABLE), TABLE[Internal])
    status = row.status
    if isinstance(exc, EngineError) and exc.status is not None:
        if type(exc) is engine.Overloaded and exc.status == 429:
            return Answer(429, _LIMIT, exc.code or row.code)
        request = isinstance(exc, engine.Refused) and exc.status // 100 == 4 and exc.status not in _NOT_THE_CLIENTS
        server = isinstance(exc, engine.Faulted | engine.Malformed) and exc.status // 100 == 5
        if request or server:
            status = exc.status
    own = exc.code if isinstance(exc, GatewayError | EngineError) else None
    return Answer(status, row.type, own or row.code)


def envelope(exc: BaseException, call: str | None = None) -> bytes:
    """Give OpenAI's error object as JSON bytes. `call` is the id that an internal error can be found by in the log."""
    row = answer(exc)
    param = None
    if isinstance(exc, engine.Misconfigured):
        message = _MISCONFIGURED  # whatever an adapter put there: it speaks of the operator's own credentials
    elif isinstance(exc, GatewayError | EngineError):
        message, param = exc.message, exc.param
    else:
        message = _INTERNAL
    if row.code == "context_length_exceeded":
        message = f"{_TOO_LONG} {message}"
    message = redact(message)
    if len(message) > MESSAGE_MAX:
        message = message[: MESSAGE_MAX - 1] + "…"
    if row.code == "internal_error" and call is not None:
        message = f"{message} (call {call})"
    body = {
        "message": message,
        "type": row.type,
        "param": None if param is None else redact(param)[:200],
        "code": row.code,
    }
    return msgspec.json.encode({"error": body})


def render(exc: BaseException, call: str | None = None) -> tuple[int, Headers, bytes]:
    """Turn any exception into an answer: (status, headers, body).

    429 and 503 always carry `Retry-After`: whole seconds, rounded up, 1 at least and 3,600 at most; other statuses
    carry it where the exception states it.
    """
    row = answer(exc)
    body = envelope(exc, call)
    headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
    wait = exc.retry_after if isinstance(exc, GatewayError | EngineError) else None
    if wait is not None or row.status in (429, 503):
        headers.append(("retry-after", str(_whole_seconds(wait))))
    if isinstance(exc, Unauthorized):
        headers.append(("www-authenticate", "Bearer"))
    if isinstance(exc, MethodNotAllowed):
        headers.append(("allow", ", ".join(exc.allow)))
    return row.status, headers, body


def error_event(exc: BaseException, call: str | None = None) -> bytes:
    """Give the server-sent event that ends a stream whose 200 has gone out already."""
    return b"data: " + envelope(exc, call) + b"\n\n"


def _whole_seconds(wait: float | None) -> int:
    if wait is None or math.isnan(wait) or wait <= 1:
        return 1
    return RETRY_AFTER_MAX if wait >= RETRY_AFTER_MAX else math.ceil(wait)
