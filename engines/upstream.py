"""Connections to one engine over HTTP: the only place that builds an HTTP client and translates its errors.

httpx speaks, over aiohttp's transport (httpx's own costs milliseconds of CPU per request). What came of a request
is judged by facts, not by the name of an exception: httpx-aiohttp reports "refused", "reset" and "died while it
worked" all as a connect timeout. The fact that matters is whether the request was given a connection. Without
one, nothing reached the engine (`Unreached`, free to try elsewhere). With one, bytes may have been read and work
may have begun (`Lost`), whatever the exception is called.

Idle connections are kept for two seconds only. The engines close theirs after five (uvicorn under vLLM and
trtllm-serve, llama.cpp) or never (TGI), so that a call is not written to a connection that its engine is just
closing. One that has been closed, or that says something unasked, is not used again even where the loop has not
heard of it yet. aiohttp repeats idempotent requests on a stale connection, never a POST.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from contextvars import ContextVar
from http.cookiejar import CookieJar, DefaultCookiePolicy
from types import TracebackType
from typing import Final, Self

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from engines.connector import Connector
from engines.contract import Headers
from engines.errors import EngineError, Gone, Lost, Malformed, Unreached
from engines.reach import refuses, why_unreached
from engines.retry_after import read_retry_after

__all__ = ["Exchange", "Upstream"]

KEEP_IDLE: Final = 2.0
"""Seconds that an unused connection is kept; below every engine's own limit."""

_WHOLE: Final = 1 << 20  # bodies up to this size are handed over in one piece, larger ones in pieces
_PIECE: Final = 1 << 16

_DRAIN_SECONDS: Final = 1.0
_DRAIN_BYTES: Final = 1 << 16

_under_way: ContextVar[Exchange | None] = ContextVar("exchange", default=None)


class Upstream:
    """The connections to one engine.

    Args:
        url: scheme, host, port and base path; without user, password, query or fragment.
        connect: seconds to resolve, connect and shake hands.
        verify_tls: check the engine's certificate.
        is_gone: says that the engine's process has ended, where someone knows (a launcher).
    """

    def __init__(
        self, url: str, *, connect: float = 5.0, verify_tls: bool = True, is_gone: Callable[[], bool] | None = None
    ) -> None:
        self._base = httpx.URL(url.rstrip("/"))
        self._connect = connect
        self._tls = _tls(verify_tls) if self._base.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._client: httpx.AsyncClient | None = None
        self._targets: dict[str, httpx.URL] = {}
        self._closed = False
        self.is_gone = is_gone

    def exchange(self, method: str, path: str, headers: Headers, body: bytes = b"") -> Exchange:
        """One request, not yet sent: enter it to send it. Needs a running event loop.

        Raises:
            Unreached: the connections were closed for good.
        """
        if self._closed:
            raise Unreached("The endpoint was taken out of service.")
        if self._client is None:
            self._client = self._build()
        return Exchange(self._client, self._request(method, path, headers, body))

    async def settle(self, error: EngineError) -> EngineError:
        """What `error` is by a closer look: a `Lost` whose engine is no longer there is `Gone`.

        The difference decides whether the call may run again: an engine that still listens may still be at work
        on it; the work of one whose port refuses is void. Knocks at most three times, within about 200 ms.
        """
        if type(error) is not Lost or not await self._gone():
            return error
        return Gone("The engine ended while it had the call.", status=error.status, detail=error.detail)

    async def aclose(self) -> None:
        """Close every connection, for good."""
        self._closed = True
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _request(self, method: str, path: str, headers: Headers, body: bytes) -> httpx.Request:
        target = self._targets.get(path)
        if target is None:  # there are a handful; making one costs as much as sending to it
            target = self._base.copy_with(raw_path=(self._base.path.rstrip("/") + path).encode("ascii"))
            self._targets[path] = target
        named = [*headers, ("content-length", str(len(body)))] if body else list(headers)
        content = body if len(body) <= _WHOLE else _Pieces(body)
        if isinstance(content, bytes):
            return httpx.Request(method, target, headers=named, content=content or None)
        return httpx.Request(method, target, headers=named, stream=content)

    def _build(self) -> httpx.AsyncClient:
        session = aiohttp.ClientSession(
            connector=Connector(_given, limit=0, ssl=self._tls, keepalive_timeout=KEEP_IDLE, ttl_dns_cache=10),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
        )
        return httpx.AsyncClient(
            transport=AiohttpTransport(verify=self._tls, trust_env=False, client=session),
            # Silence is bounded by the caller, who knows what it waits for. `pool` covers resolving, too.
            timeout=httpx.Timeout(None, connect=self._connect, pool=self._connect),
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
            follow_redirects=False,
            trust_env=False,
        )

    async def _gone(self) -> bool:
        if self.is_gone is not None and self.is_gone():
            return True
        port = self._base.port or (443 if self._base.scheme == "https" else 80)
        return await refuses(self._base.host, port)


class Exchange:
    """One request and its answer.

    Entering sends the request and returns when the answer's headers are there; leaving gives the connection back
    where the answer was read to its end, and closes it at once where it was not. Entering and reading raise only
    `EngineError` (and `CancelledError`).

    Attributes:
        sent: the request was given a connection: from now on the engine may have read it.
        status: HTTP status of the answer.
        content_type: media type of the answer, lower case, without parameters; "" where none was given.
        on_bytes: called whenever bytes of the answer's body came.
    """

    def __init__(self, client: httpx.AsyncClient, request: httpx.Request) -> None:
        self._client = client
        self._request = request
        self._response: httpx.Response | None = None
        self._chunks: AsyncIterator[bytes] | None = None
        self._connection: aiohttp.connector.Connection | None = None
        self._ended = False
        self.sent = False
        self.status = 0
        self.content_type = ""
        self.on_bytes: Callable[[], None] | None = None

    async def __aenter__(self) -> Self:
        token = _under_way.set(self)
        try:
            response = await self._client.send(self._request, stream=True)
        except (httpx.HTTPError, aiohttp.ClientError, OSError, ValueError) as exc:
            raise self._translated(exc) from exc
        except BaseException:
            self.abort()
            raise
        finally:
            _under_way.reset(token)
        self._response = response
        self._chunks = aiter(response.stream)  # type: ignore[arg-type]
        self.status = response.status_code
        self.content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The connection is closed before anything is awaited, so that no second cancellation can keep it open.
        if not self._ended:
            self.abort()
        if self._response is not None:
            with suppress(httpx.HTTPError, aiohttp.ClientError, OSError):  # said already, while it was read
                await self._response.aclose()

    def connected(self, connection: aiohttp.connector.Connection) -> None:
        """The connector gave this request a connection."""
        self._connection = connection
        self.sent = True

    def header(self, name: str) -> str | None:
        """The answer's header `name`, None where it has none."""
        return None if self._response is None else self._response.headers.get(name)

    def retry_after(self) -> float | None:
        """Seconds that the engine asks to be left alone; None: it does not say."""
        return read_retry_after(self.header("retry-after"), self.header("date"))

    async def chunk(self) -> bytes:
        """The next bytes of the answer as they come off the wire (16 KB at most), b"" at its end."""
        assert self._chunks is not None
        try:
            chunk = await anext(self._chunks)
        except StopAsyncIteration:
            self._ended = True
            return b""
        except (httpx.HTTPError, aiohttp.ClientError, OSError, ValueError) as exc:
            raise self._translated(exc) from exc
        if self.on_bytes is not None:
            self.on_bytes()
        return chunk

    async def read(self, limit: int) -> tuple[bytes, bool]:
        """The rest of the answer: (at most `limit` bytes, whether that is all of it)."""
        parts: list[bytes] = []
        room = limit
        while part := await self.chunk():
            if len(part) > room:
                parts.append(part[:room])
                return b"".join(parts), False
            parts.append(part)
            room -= len(part)
        return b"".join(parts), True

    def use_once(self) -> None:
        """Close the connection when the answer has been read, whatever its headers promise."""
        if self._connection is not None and self._connection.protocol is not None:
            self._connection.protocol.force_close()

    async def drain(self) -> None:
        """Read an answer that has said everything to its formal end, so that its connection can be used again.

        Gives up, and the connection with it, after a second or 64 KB. Never raises `EngineError`.
        """
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                await self.read(_DRAIN_BYTES)
        except (TimeoutError, EngineError):
            self.abort()

    def abort(self) -> None:
        """Close the connection now, unsent bytes included. In any state; does nothing once the answer has ended."""
        if self._connection is not None and self._connection.transport is not None:
            self._connection.transport.abort()

    def _translated(self, exc: Exception) -> EngineError:
        self.abort()
        cause = exc.__cause__ if isinstance(exc, httpx.HTTPError) and exc.__cause__ is not None else exc
        detail = f"{type(cause).__name__}: {cause}"
        if not self.sent:
            return Unreached(f"The engine could not be reached: {why_unreached(cause)}.", detail=detail)
        if isinstance(cause, (aiohttp.ClientResponseError, ValueError)):
            return Malformed("The engine's answer is not HTTP.", detail=detail)
        return Lost("The connection to the engine broke.", status=self.status or None, detail=detail)


class _Pieces(httpx.AsyncByteStream):
    """A large body in pieces, so that sending it does not hold the loop."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        view = memoryview(self._body)
        for start in range(0, len(view), _PIECE):
            yield bytes(view[start : start + _PIECE])


def _given(connection: aiohttp.connector.Connection) -> None:
    exchange = _under_way.get()
    if exchange is not None:
        exchange.connected(connection)


def _tls(verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
