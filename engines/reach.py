"""Whether an engine can be reached, and in what words it cannot."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Final

__all__ = ["refuses", "why_unreached"]

_PAUSES: Final = (0.0, 0.06, 0.12)
"""Seconds before each try: a dying process may take a moment to give up its port, but not 180 ms."""
_TIMEOUT: Final = 0.5


async def refuses(host: str, port: int) -> bool:
    """True: the port refuses connections, now or within about 200 ms; so whoever listened on it has ended.

    False: somebody listens, or the host is not to be reached just now, which says nothing of the process. Of a name
    with several addresses (`localhost`) none may accept and one must refuse.
    """
    for pause in _PAUSES:
        await asyncio.sleep(pause)
        try:
            async with asyncio.timeout(_TIMEOUT):
                refused = await _refused(host, port)
        except (OSError, TimeoutError):
            return False
        if refused is not False:
            return bool(refused)
    return False


def why_unreached(error: BaseException) -> str:
    """Why no connection came about, in words that name no host."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return "TLS failed"
        if isinstance(cause, socket.gaierror):
            return "its name does not resolve"
        if isinstance(cause, ConnectionRefusedError):
            return "connection refused"
        if isinstance(cause, TimeoutError):
            return "no connection in time"
        cause = cause.__cause__
    return "no connection"


async def _refused(host: str, port: int) -> bool | None:
    """False: an address accepts. True: none does and one refuses. None: all fail otherwise."""
    loop = asyncio.get_running_loop()
    refused: bool | None = None
    for *_, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        try:
            transport, _ = await loop.create_connection(asyncio.Protocol, str(address[0]), port)
        except ConnectionRefusedError:
            refused = True
        except OSError:
            continue
        else:
            transport.abort()
            return False
    return refused
