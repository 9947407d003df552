"""What the three generating routes share: from a request's head to `House.serve`."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Mapping

from litestar import asgi
from litestar.handlers import ASGIRouteHandler
from litestar.types import Receive, Scope, Send

from engines.contract import Call, Kind
from gateway import openai
from gateway.api.body import read_body
from gateway.api.client import AsgiClient, header_map, label, new_id
from gateway.auth import authorize
from gateway.contract import ClientGone, House, Pool, Request, Served
from gateway.errors import BadRequest, GatewayError, MethodNotAllowed, ShuttingDown, UnknownModel, answer, redact

__all__ = ["generate", "route_for"]

logger = logging.getLogger(__name__)

ALLOWED = ("OPTIONS", "POST")
MODELS_NAMED = 10  # of the pools, in the answer to an unknown model
NAME_MAX = 100  # characters of a name that is not ours
OTHER = "other"  # stands for every model that is not configured


def route_for(house: House, kind: Kind, path: str) -> ASGIRouteHandler:
    """Build the handler of one route. Raw ASGI, so that nothing buffers and nothing is decoded twice."""

    @asgi(path, copy_scope=False)
    async def handler(scope: Scope, receive: Receive, send: Send) -> None:
        await generate(house, kind, scope, receive, send)

    return handler


async def generate(house: House, kind: Kind, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve one request. Whatever goes wrong before `House.serve` is answered and observed here."""
    call_id = new_id()
    headers = header_map(scope)
    client = AsgiClient(receive, send, label(headers, otherwise=call_id))
    refused = _Refused(house, kind, call_id, client.request_id)
    method: str = scope["method"]  # type: ignore[typeddict-item] # routed as HTTP
    if method == "OPTIONS":
        await client.start(204, [("allow", ", ".join(ALLOWED))])
        await client.end()
        return
    try:
        pool, request = await _accept(house, refused, method, headers, receive)
        async with client.watching():
            await house.serve(pool, request, client)
    except GatewayError as exc:
        refused.observe(exc)
        await client.refuse(exc, call_id)
    except ClientGone as exc:
        refused.observe(exc)
    except asyncio.CancelledError:
        # The server gives up on its calls. This is the request's own task, which nobody awaits: it ends here.
        await client.part(ShuttingDown("This gateway is shutting down; ask again."), call_id)
    except Exception as exc:
        logger.error("call %s failed\n%s", call_id, redact(traceback.format_exc()))
        refused.observe(exc)
        if not client.started:
            await client.refuse(exc, call_id)
        # An answer that has begun stays without its end: the server then breaks the connection off.


class _Refused:
    """What is known of a request that does not reach `House.serve`, and its one observation."""

    def __init__(self, house: House, kind: Kind, call_id: str, request_id: str) -> None:
        self.house = house
        self.kind = kind
        self.call_id = call_id
        self.request_id = request_id
        self.started = time.time()
        self.begun = time.monotonic()
        self.key: str | None = None
        self.call: Call | None = None

    def observe(self, exc: Exception) -> None:
        total = time.monotonic() - self.begun
        gone = isinstance(exc, ClientGone)
        told = answer(exc)
        asked = self.call.model if self.call is not None else None
        known = asked in self.house.pools
        self.house.observe(
            Served(
                call=self.call_id,
                request_id=self.request_id,
                model=asked if asked is not None and known else OTHER,
                asked_model=None if asked is None or known else _shown(asked),
                kind=self.kind,
                stream=self.call.stream if self.call is not None else False,
                policy="",
                status=499 if gone else told.status,
                outcome="cancelled" if gone else "rejected" if isinstance(exc, GatewayError) else "error",
                started=self.started,
                total=total,
                overhead=total,
                key=self.key,
                code=None if gone else told.code or told.type,
                detail=redact(exc.message) if isinstance(exc, GatewayError) else type(exc).__name__,
            )
        )


async def _accept(
    house: House, refused: _Refused, method: str, headers: Mapping[str, str], receive: Receive
) -> tuple[Pool, Request]:
    """Judge the head, then the body. Raises GatewayError, ClientGone."""
    if method != "POST":
        raise MethodNotAllowed(f"{method} is not allowed here; use POST.", allow=ALLOWED)
    refused.key = authorize(house.keys, headers)
    body = await read_body(receive, headers, house.body_limit)
    arrived = time.monotonic()
    started = time.time()
    call = refused.call = openai.read(
        refused.kind,
        body,
        request_id=refused.request_id,
        call_id=refused.call_id,
        headers=openai.trace_context(headers),
    )
    pool = house.pools.get(call.model)
    if pool is None:
        raise _unknown(call.model, house)
    request = Request(
        call=call,
        ask=openai.ask(call, headers, arrived, pool.slo),
        arrived=arrived,
        started=started,
        policy=_policy(pool, headers),
        explain=headers.get("x-enginehouse-explain") == "1",
        key=refused.key,
        bytes_in=len(body),
    )
    return pool, request


def _policy(pool: Pool, headers: Mapping[str, str]) -> str | None:
    name = headers.get("x-enginehouse-policy")
    if name is None or name == pool.policy:
        return None
    if name not in pool.allowed_policies:
        allowed = ", ".join(sorted({pool.policy, *pool.allowed_policies}))
        raise BadRequest(
            f"`x-enginehouse-policy` may be one of: {allowed}.", param="x-enginehouse-policy", code="policy_not_allowed"
        )
    return name


def _unknown(model: str, house: House) -> UnknownModel:
    names = ", ".join(list(house.pools)[:MODELS_NAMED])
    more = ", …" if len(house.pools) > MODELS_NAMED else ""
    return UnknownModel(
        f"The model `{_shortened(model)}` does not exist here. There are: {names}{more}.", param="model"
    )


def _shortened(model: str) -> str:
    return model if len(model) <= NAME_MAX else model[: NAME_MAX - 1] + "…"


def _shown(model: str) -> str:
    """A name as a client made it up, fit for the log."""
    return _shortened(redact("".join(char if char.isprintable() else "?" for char in model[: 10 * NAME_MAX])))
