"""What the reading routes share: GET, HEAD and OPTIONS, keys, labels, and names in paths."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import unquote_to_bytes

from litestar import Request, Response, route
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.types import Scope

from gateway.api.client import header_map, label
from gateway.auth import authorize, authorize_admin
from gateway.contract import Keys

__all__ = ["JSON", "Asked", "reading", "respond", "tail"]

JSON = "application/json"
ALLOWED = "GET, HEAD, OPTIONS"

Asked = Request[Any, Any, Any]


def reading(
    paths: Sequence[str],
    handler: Callable[[Asked], Awaitable[Response[bytes]]],
    *,
    keys: Keys | None = None,
    admin: bool = False,
) -> HTTPRouteHandler:
    """Build the handler of routes that only show something. With `keys`, only for those who have one (of admins)."""
    permit = authorize_admin if admin else authorize

    async def guard(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
        permit(keys, header_map(connection.scope))

    @route(list(paths), http_method=["GET", "HEAD", "OPTIONS"], guards=[guard], status_code=200)
    async def handle(request: Asked) -> Response[bytes]:
        if request.method == "OPTIONS":
            return respond(request, b"", status=204, headers={"allow": ALLOWED})
        return await handler(request)

    return handle


def respond(
    request: Asked, body: bytes, *, status: int = 200, media_type: str = JSON, headers: dict[str, str] | None = None
) -> Response[bytes]:
    """An answer of the API: bytes as they are, labelled with `x-request-id`."""
    labelled = {**(headers or {}), "x-request-id": label(header_map(request.scope))}
    # Litestar states the charset of every text by itself.
    plain = media_type.removesuffix("; charset=utf-8")
    return Response(body, status_code=status, media_type=plain, headers=labelled)


def tail(scope: Scope, prefix: str) -> str | None:
    """What stands behind `prefix` in the request's path: decoded once, not normalised. None: it is not UTF-8.

    The server's own `path` would do but for two things: invalid UTF-8 is replaced there, and Litestar's path
    parameters have lost double and trailing slashes, which may be part of a name.
    """
    try:
        path = unquote_to_bytes(scope["raw_path"]).decode()
    except UnicodeDecodeError:
        return None
    return path.removeprefix(prefix) if path.startswith(prefix) else None
