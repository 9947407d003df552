"""The HTTP API: thin Litestar handlers over plain functions. Nothing below this package knows Litestar or ASGI.

application     every route over one `House`, as a Litestar app
routes          the handlers alone
exception_handlers   OpenAI's envelope for whatever else Litestar would answer
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from litestar import Litestar, Request, Response
from litestar.exceptions import HTTPException
from litestar.handlers import ASGIRouteHandler, HTTPRouteHandler

from gateway.api import admin, chat, completions, embeddings, health, metrics, models
from gateway.api.client import header_map, label, new_id
from gateway.contract import House
from gateway.errors import BadRequest, GatewayError, Internal, MethodNotAllowed, NotFound, answer, redact, render

__all__ = ["application", "exception_handlers", "routes"]

logger = logging.getLogger(__name__)

HINT = "The API is under /v1 (POST /v1/chat/completions, GET /v1/models, ...)."

Lifespan = Callable[[Litestar], AbstractAsyncContextManager[Any]]


def application(house: House, lifespan: Sequence[Lifespan] = ()) -> Litestar:
    """Build the app: no CORS, no OpenAPI pages, no compression (it would hold events back), no own body limit."""
    return Litestar(
        route_handlers=routes(house),
        exception_handlers=exception_handlers(),
        lifespan=list(lifespan),
        openapi_config=None,
        logging_config=None,
        request_max_body_size=None,
        debug=False,
    )


def routes(house: House) -> list[ASGIRouteHandler | HTTPRouteHandler]:
    """Every handler of the API."""
    parts = (chat, completions, embeddings, models, health, metrics, admin)
    return [handler for part in parts for handler in part.routes(house)]


def exception_handlers() -> dict[int | type[Exception], Callable[[Request[Any, Any, Any], Exception], Response[bytes]]]:
    """What Litestar does with exceptions that handlers raise, and with its own."""
    return {Exception: _handle}


def _handle(request: Request[Any, Any, Any], exc: Exception) -> Response[bytes]:
    failed = new_id()
    translated = _translate(request, exc)
    if isinstance(translated, Internal):
        trace = "".join(traceback.format_exception(exc))
        logger.error("request %s failed\n%s", failed, redact(trace))
    status, headers, body = render(translated, failed)
    request_id = label(header_map(request.scope), otherwise=failed)
    told = answer(translated)
    logger.warning("%s was refused: %d %s, request %s", _asked(request), status, told.code or told.type, request_id)
    labelled = {**dict(headers), "x-request-id": request_id}
    del labelled["content-type"], labelled["content-length"]  # Litestar states both
    return Response(body, status_code=status, media_type="application/json", headers=labelled)


def _asked(request: Request[Any, Any, Any]) -> str:
    return f"{request.method} {redact(request.scope['path'])[:200]}"


def _translate(request: Request[Any, Any, Any], exc: Exception) -> GatewayError:
    if isinstance(exc, GatewayError):
        return exc
    if not isinstance(exc, HTTPException) or exc.status_code >= 500:
        return Internal("The gateway made a mistake; its log has the details.")
    if exc.status_code == 404:
        known = request.scope["path"].removeprefix("/v1/") not in ("", request.scope["path"])
        return NotFound(f"Invalid URL ({_asked(request)})" + ("" if known else f". {HINT}"))
    if exc.status_code == 405:
        allow = sorted({name.strip() for name in (exc.headers or {}).get("allow", "").split(",") if name.strip()})
        return MethodNotAllowed(f"{request.method} is not allowed here; use {' or '.join(allow)}.", allow=allow)
    return BadRequest(f"{exc.detail}.")
