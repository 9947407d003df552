"""`POST /v1/chat/completions`."""

from __future__ import annotations

from litestar.handlers import ASGIRouteHandler

from gateway.api.generate import route_for
from gateway.contract import House

__all__ = ["routes"]


def routes(house: House) -> list[ASGIRouteHandler]:
    """The handlers of this file."""
    return [route_for(house, "chat", "/v1/chat/completions")]
