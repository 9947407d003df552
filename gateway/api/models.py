"""`GET /v1/models` and `GET /v1/models/NAME`, where a name may hold slashes, colons, blanks, dots, any script."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Response
from litestar.handlers import HTTPRouteHandler

from gateway.api.reading import Asked, reading, respond, tail
from gateway.contract import House, Pool
from gateway.errors import UnknownModel

__all__ = ["routes"]

PREFIX = "/v1/models/"


def routes(house: House) -> list[HTTPRouteHandler]:
    """The handlers of this file."""

    async def every(request: Asked) -> Response[bytes]:
        data = [_shown(name, pool) for name, pool in house.pools.items()]
        return respond(request, msgspec.json.encode({"object": "list", "data": data}))

    async def one(request: Asked) -> Response[bytes]:
        name = tail(request.scope, PREFIX)
        if name is None or name not in house.pools:
            raise UnknownModel("No model of this name exists here; `GET /v1/models` lists the names.", param="model")
        return respond(request, msgspec.json.encode(_shown(name, house.pools[name])))

    return [
        reading(["/v1/models"], every, keys=house.keys),
        reading([PREFIX + "{name:path}"], one, keys=house.keys),
    ]


def _shown(name: str, pool: Pool) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": pool.created, "owned_by": "enginehouse"}
