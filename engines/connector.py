"""aiohttp's connector, made strict: no stale connection is given out, and a broken answer reaches whoever reads it."""

from __future__ import annotations

import asyncio
import functools
import select
from collections.abc import Callable
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError

__all__ = ["Connector"]


class Connector(aiohttp.TCPConnector):
    """Gives out connections.

    Args:
        given: told of every connection that a request was given, in that request's context.
        options: aiohttp's own.
    """

    def __init__(self, given: Callable[[aiohttp.connector.Connection], None], **options: Any) -> None:
        super().__init__(**options)
        self._given = given
        self._factory = functools.partial(_handler, loop=self._loop)

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[aiohttp.tracing.Trace], timeout: aiohttp.ClientTimeout
    ) -> aiohttp.connector.Connection:
        while True:
            connection = await super().connect(req, traces, timeout)
            if not _is_stale(connection):
                break
            connection.close()
        self._given(connection)
        return connection


class _Protocol(ResponseHandler):
    """aiohttp 3.14 tells of a broken chunk only those who wait for a head; who reads the body would wait for ever."""

    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        super().set_exception(exc, *cause)
        if isinstance(exc, HttpProcessingError) and self._payload is not None and not self._payload.is_eof():
            self._payload.set_exception(aiohttp.ClientPayloadError(f"The answer's framing is broken: {exc.message}"))


def _handler(loop: asyncio.AbstractEventLoop) -> ResponseHandler:
    return _Protocol(loop)


def _is_stale(connection: aiohttp.connector.Connection) -> bool:
    """The connection has something to be read before anything was asked on it: its end, or what nobody awaits."""
    transport = connection.transport
    if transport is None:
        return True
    if transport.get_extra_info("ssl_object") is not None:
        return False  # TLS may have words of its own
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
    return bool(poll.poll(0))
