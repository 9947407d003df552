"""Which error an engine's answer is. One place for the tables of all engines.

    status        text or type                                   error
    401, 403                                                     Misconfigured (fixed message)
    404, 405, 3xx                                                Misconfigured (fixed message)
    400 413 422   the prompt or the cap does not fit             ContextTooLong, 400
    500           ... or the input is over the batch             ContextTooLong, 400
    400 500 501   tools, images, a route that it was not         Unsupported, 400
                  started for
    500           chat template or request parser failed         Refused, 400
    400, 422                                                     Refused, 400 (clients know no 422 of ours)
    413, other 4xx                                               Refused, the status
    429                                                          Overloaded
    503           loading                                        Loading
    503           failed, please retry                           Faulted
    503                                                          Overloaded
    500           is shutting down, takes no new work            Overloaded, 503
    408, 504                                                     TimedOut
    424 and 5xx                                                  Faulted, the status (424: 500)
    2xx           no answer                                      Malformed

The engine's own sentence reaches the client, made safe, where it is about the request (Refused and below) or is the
only word on what failed (Faulted, Overloaded). A body that is not JSON is never shown, except the plain text with
which TGI's HTTP layer refuses a request.
"""

from __future__ import annotations

import re

from engines.errors import (
    ContextTooLong,
    EngineError,
    Faulted,
    Loading,
    Malformed,
    Misconfigured,
    Overloaded,
    Refused,
    TimedOut,
    Unsupported,
)
from engines.said import Said, excerpt, read_error, safe

__all__ = ["classify", "classify_event"]


def _words(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


_CONTEXT = _words(
    r"exceed_context_size_error",
    r"maximum context length",
    r"longer than the maximum model length",
    r"cannot be greater than max_model_len",
    r"exceeds the available context size",
    r"exceeds? (?:the )?(?:model's )?maximum input length",
    r"is too large to process",
    r"tokens \+ `max_new_tokens` must be <=",
    r"`inputs` must have less than",
    r"should not exceed max_(?:num_tokens|seq_len)",
    r"default_max_tokens.*must be greater than 0",
)
_CAPABILITY = (
    (_words(r"enable-auto-tool-choice", r"tool-call-parser", r"tools? param requires", r"--jinja"), "tools"),
    (_words(r"(?:image|audio|video) input is not supported", r"mmproj", r"not a multimodal model"), "messages"),
)
_EMBEDDINGS = _words(r"does not support embeddings")
_NO_EMBEDDINGS = (
    "The engine behind this model was not started for embeddings. Its operator sets `launch: {embeddings: true}` for "
    "an engine that the gateway starts, or starts llama-server with `--embeddings`."
)
# llama.cpp answers 500 to what the request, not the engine, is to blame for.
_REQUEST_AT_FAULT = _words(
    r"json\.exception\.",
    r"\bjinja\b",
    r"chat template",
    r"template error",
    r"apply(?:ing)? (?:the )?template",
    r"raise_exception",
    r"roles must alternate",
    r"system role not supported",
    r"invalid_request_error",
    r"failed to parse (?:grammar|messages|tools|json)",
    r"unsupported (?:content|message)",
    r"json schema",
)
_CLOSING = _words(r"cannot schedule new futures after shutdown", r"is shutting down", r"server is draining")
_LOADING = _words(r"\bloading\b", r"currently scaling", r"not ready", r"starting up")
_RETRY = _words(r"please retry", r"ServiceUnavailableError")
_OVERLOADED = _words(
    r"overloaded", r"currently busy", r"backlog limit", r"queue (?:is )?full", r"rate.?limit", r"no slot"
)
_INVALID = _words(r"^input validation error", r"^tool error", r"^template error", r"invalid_request_error")
# llama.cpp begins with the field at fault: "Field 'n': Value must be between 1 <= value <= 2, but got 3"
_FIELD = re.compile(r"Field '(?P<name>\w{1,64})': ")
_INTERNAL = _words(r"\bcuda\b", r"out of memory", r"cppexecutorerror", r"executor (?:worker|failed|died)", r"traceback")

# Words by which engines name their errors in a stream, where no HTTP status says it.
_TYPES = {
    "authentication_error": 401,
    "badrequesterror": 400,
    "exceed_context_size_error": 400,
    "generation": 424,
    "invalid_request_error": 400,
    "not_found_error": 404,
    "notfounderror": 404,
    "not_supported_error": 501,
    "notimplementederror": 501,
    "overloaded": 429,
    "overloaded_error": 429,
    "permission_error": 403,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "service unavailable": 503,
    "template_error": 422,
    "tool_error": 422,
    "unavailable_error": 503,
    "validation": 422,
}


def classify(status: int, body: bytes, content_type: str = "", retry_after: float | None = None) -> EngineError:
    """The error that an HTTP answer is.

    Args:
        status: the HTTP status; of 200 only where the body was no answer.
        body: as much of it as was read, which may be cut off.
        content_type: the header, as it came.
        retry_after: seconds, from the header.
    """
    detail = f"{status} {content_type}: {excerpt(body)}".strip()
    said = read_error(body)
    if said is None and status in (400, 413, 415, 422) and content_type.startswith("text/plain"):
        text = excerpt(body, 400).strip()
        said = Said(text) if text and "<" not in text else None
    if status < 300:
        if said is None or b'"error"' not in body:
            return Malformed("The engine's answer is not one of the kind that was asked for.", detail=detail)
        return _judge(_stream_status(said), said, retry_after, detail)
    return _judge(status, said, retry_after, detail)


def classify_event(payload: bytes) -> EngineError:
    """The error that an event of a stream (or a 200 body) holds, in whatever form its engine writes it."""
    said = read_error(payload) or Said("")
    return _judge(_stream_status(said), said, None, excerpt(payload))


def _stream_status(said: Said) -> int:
    if said.code is not None and not said.tgi_stream:
        return said.code
    if said.type.lower() in _TYPES:
        return _TYPES[said.type.lower()]
    if _OVERLOADED.search(said.message):
        return 429
    if _INVALID.search(said.message) or _CONTEXT.search(said.message):
        return 422
    return 500


def _judge(status: int, said: Said | None, retry_after: float | None, detail: str) -> EngineError:
    if status in (401, 403):
        return Misconfigured("The engine refused the gateway's credentials.", detail=detail)
    if status in (404, 405) or 300 <= status < 400:
        return Misconfigured("The engine does not know the model or the path that it was asked for.", detail=detail)
    words = f"{said.type}: {said.message}" if said is not None else ""
    if status in (429, 503):
        return _busy(status, words, said, retry_after, detail)
    if status in (408, 504):
        return TimedOut(f"The engine's side timed out ({status}).", status=504, retry_after=retry_after, detail=detail)
    if status in (400, 413, 422, 500, 501):
        error = _of_the_request(status, words, said, detail)
        if error is not None:
            return error
    if status == 500 and _CLOSING.search(words):
        return Overloaded("The engine is shutting down.", status=503, retry_after=retry_after, detail=detail)
    if 400 <= status < 500 and status != 424 and not (status == 400 and _INTERNAL.search(words)):
        return Refused(
            _sentence(said, f"The engine refused the request ({status})."),
            status=400 if status in (400, 422) else status,
            param=_param(said),
            detail=detail,
        )
    seen = status if status >= 500 else 500
    message = _sentence(said, f"The engine failed ({status}).")
    return Faulted(message, status=seen, retry_after=retry_after, detail=detail)


def _busy(status: int, words: str, said: Said | None, retry_after: float | None, detail: str) -> EngineError:
    if status == 503 and _RETRY.search(words):
        message = _sentence(said, "The engine failed.")
        return Faulted(message, status=503, retry_after=retry_after, detail=detail)
    if status == 503 and _LOADING.search(words):
        return Loading("The engine is loading its model.", status=503, retry_after=retry_after, detail=detail)
    message = _sentence(said, "The engine takes no more requests now.")
    return Overloaded(message, status=status, retry_after=retry_after, detail=detail)


def _of_the_request(status: int, words: str, said: Said | None, detail: str) -> EngineError | None:
    """The error that is the request's fault although the status may say otherwise, None where it is not."""
    if _CONTEXT.search(words):
        param = _param(said)
        return ContextTooLong(
            _sentence(said, "The prompt does not fit the model's context."),
            status=400,
            param=param if param in ("max_tokens", "max_completion_tokens") else None,
            code="context_length_exceeded",
            detail=detail,
        )
    for pattern, param in _CAPABILITY:
        if pattern.search(words):
            return Unsupported(
                f"The engine was not started for what the request's {param} need.",
                status=400,
                param=param,
                code="unsupported_parameter",
                detail=detail,
            )
    if status == 501:
        otherwise = "The engine does not serve this kind of request."
        message = _NO_EMBEDDINGS if _EMBEDDINGS.search(words) else _sentence(said, otherwise)
        return Unsupported(message, status=400, detail=detail)
    if status == 500 and _REQUEST_AT_FAULT.search(words):
        return Refused(_sentence(said, "The request is invalid."), status=400, param=_param(said), detail=detail)
    return None


def _sentence(said: Said | None, otherwise: str) -> str:
    return (safe(said.message) if said is not None else "") or otherwise


def _param(said: Said | None) -> str | None:
    if said is None:
        return None
    named = _FIELD.match(said.message) if said.param is None else None
    given = named["name"] if named is not None else said.param
    if given is None:
        return None
    param = safe(given.removeprefix("body."))
    return param if 0 < len(param) <= 100 else None
