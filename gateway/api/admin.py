"""`GET /admin/decisions/ID`: why a call went where it went. ID is the gateway's call id or the client's request id."""

from __future__ import annotations

import msgspec
from litestar import Response
from litestar.handlers import HTTPRouteHandler

from gateway.api.reading import Asked, reading, respond, tail
from gateway.contract import House
from gateway.errors import NotFound

__all__ = ["routes"]

PREFIX = "/admin/decisions/"


def routes(house: House) -> list[HTTPRouteHandler]:
    """The handlers of this file. Where keys are configured, for admins' only: it shows other clients' calls."""

    async def decisions(request: Asked) -> Response[bytes]:
        found = tail(request.scope, PREFIX)
        served = house.decisions.find(found) if found is not None else None
        if served is None:
            raise NotFound("No call of this id is remembered; only the last ones are.", code="decision_not_found")
        return respond(request, msgspec.json.encode(served))

    return [reading([PREFIX + "{id:path}"], decisions, keys=house.keys, admin=True)]
