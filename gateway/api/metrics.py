"""`GET /metrics`, rendered off the loop by `House.metrics`."""

from __future__ import annotations

from litestar import Response
from litestar.handlers import HTTPRouteHandler

from gateway.api.reading import Asked, reading, respond
from gateway.contract import House

__all__ = ["routes"]


def routes(house: House) -> list[HTTPRouteHandler]:
    """The handlers of this file. Open to all: scrapers have no keys, and labels come from the configuration."""

    async def metrics(request: Asked) -> Response[bytes]:
        body, media_type = await house.metrics()
        return respond(request, body, media_type=media_type)

    return [reading(["/metrics"], metrics)]
