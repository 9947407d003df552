"""What the engines that speak OpenAI's protocol over HTTP share. Each adapter states only how it differs.

To the engine go the headers of a fixed list and no others: nothing that a client sent, its key least of all, is
passed through, but for trace context. The engine's own key is sent where one is configured, else no
`authorization` at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib import metadata
from typing import ClassVar, Final, Literal
from urllib.parse import urlsplit

import msgspec

from engines.classify import classify
from engines.contract import Attempt, Call, Headers, Health, Sink
from engines.dialect import Dialect
from engines.errors import EngineError, Loading
from engines.http_attempt import ERROR_BODY, HttpAttempt, Patience
from engines.rawjson import UNREADABLE
from engines.upstream import Exchange, Upstream

__all__ = ["OpenAIEngine", "Options"]

_TRACE: Final = frozenset({"traceparent", "tracestate"})
_MODELS_BODY: Final = 1 << 20


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to reach an engine over HTTP. Times in seconds, sizes in bytes; None for a time: no limit.

    Attributes:
        url: `http://` or `https://`, host and port, and a base path where the engine has one.
        model: the engine's own name of its model. None: the first that it lists, once it was seen ready; until
            then the public name.
        api_key: the engine's own key.
        connect_timeout: to resolve, connect and shake hands.
        first_byte_timeout: from dispatch to the first byte of the answer.
        idle_timeout: between two bytes of the answer.
        probe_timeout: for the health route.
        max_event: of one server-sent event. max_answer: of an answer that does not stream.
        verify_tls: check the engine's certificate.
        health_path: the route that says whether the engine is ready, where it is not the engine's usual one.
        assistant_content: what an assistant message with tool calls and no content must carry, where the model's
            template differs from the engine's usual one.
    """

    url: str
    model: str | None = None
    api_key: str | None = None
    connect_timeout: float = 5.0
    first_byte_timeout: float | None = 600.0
    idle_timeout: float | None = 300.0
    probe_timeout: float = 3.0
    max_event: int = 8 * 2**20
    max_answer: int = 64 * 2**20
    verify_tls: bool = True
    health_path: str | None = None
    assistant_content: Literal["null", "empty", "absent"] | None = None

    def __post_init__(self) -> None:
        _check_url(self.url)
        for name in ("connect_timeout", "first_byte_timeout", "idle_timeout", "probe_timeout"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"`{name}` must be more than 0 seconds")
        if self.max_event < 1 or self.max_answer < 1:
            raise ValueError("`max_event` and `max_answer` must be at least 1 byte")
        if self.health_path is not None and not self.health_path.startswith("/"):
            raise ValueError("`health_path` must begin with /")
        if self.api_key is not None and not (self.api_key and self.api_key.isascii() and self.api_key.isprintable()):
            raise ValueError("`api_key` must be printable ASCII and not empty; leave it out where there is none")


class OpenAIEngine:
    """An `Engine` over HTTP. A subclass states its `kind`, its `dialect` and how else it differs.

    Args:
        name: the endpoint's name.

    Attributes:
        is_gone: says that the engine's process has ended, where someone knows (a launcher sets it).
    """

    kind: str = ""
    dialect: ClassVar[Dialect]
    health_path: ClassVar[str] = "/health"
    closes_after_stream: ClassVar[bool] = False

    def __init__(self, name: str, options: Options) -> None:
        self.name = name
        self._options = options
        self._dialect = self.dialect
        if options.assistant_content is not None:
            self._dialect = msgspec.structs.replace(self.dialect, assistant_content=options.assistant_content)
        self._patience = Patience(
            first_byte=options.first_byte_timeout,
            idle=options.idle_timeout,
            max_event=options.max_event,
            max_answer=options.max_answer,
        )
        self._upstream = Upstream(options.url, connect=options.connect_timeout, verify_tls=options.verify_tls)
        self._own: list[tuple[str, str]] = [("accept-encoding", "identity"), ("user-agent", _agent())]
        if options.api_key is not None:
            self._own.append(("authorization", f"Bearer {options.api_key}"))
        self._discovered: str | None = None
        self._attempts: set[HttpAttempt] = set()

    @property
    def is_gone(self) -> Callable[[], bool] | None:
        return self._upstream.is_gone

    @is_gone.setter
    def is_gone(self, hook: Callable[[], bool] | None) -> None:
        self._upstream.is_gone = hook

    def open(self, call: Call, sink: Sink) -> Attempt:
        """See `Engine.open`. Needs a running event loop."""
        attempt = HttpAttempt(
            self._upstream,
            self._dialect,
            self._patience,
            model=self._model(call),
            headers=self._headers(call),
            call=call,
            sink=sink,
            closes_after_stream=self.closes_after_stream,
            secret=self._options.api_key,
        )
        self._attempts.add(attempt)
        attempt.task.add_done_callback(lambda _: self._attempts.discard(attempt))
        return attempt

    async def probe(self) -> Health:
        """Ask the health route, within `probe_timeout`. Never raises.

        ready: 200. loading: the engine says so. degraded: it took the question and did not answer in time.
        down: everything else, a refused connection first (vLLM, TGI and trtllm-serve refuse while they load).
        """
        path = self._options.health_path or self.health_path
        exchange: Exchange | None = None
        try:
            async with asyncio.timeout(self._options.probe_timeout):
                exchange = self._upstream.exchange("GET", path, self._own)
                async with exchange:
                    body, _ = await exchange.read(ERROR_BODY)
        except TimeoutError:
            if exchange is not None and exchange.sent:
                return Health("degraded", f"no answer on {path} within {self._options.probe_timeout:g} s")
            health = Health("down", "no connection in time")
        except EngineError as error:
            health = Health("down", error.message)
        else:
            health = self._judged(exchange, path, body)
        if health.state != "ready":
            self._discovered = None  # what comes up next may be another model
        elif self._options.model is None and self._dialect.fixed_model is None and self._discovered is None:
            self._discovered = await self._discover()
        return health

    async def aclose(self) -> None:
        """End every attempt and close every connection."""
        attempts = list(self._attempts)
        for attempt in attempts:
            attempt.abort("the endpoint is closed")
        for attempt in attempts:
            await attempt.closed()
        await self._upstream.aclose()

    def _judged(self, exchange: Exchange, path: str, body: bytes) -> Health:
        if exchange.status == 200:
            return Health("ready")
        if exchange.status >= 400:
            error = classify(exchange.status, body, exchange.content_type, exchange.retry_after())
            error.hide(self._options.api_key)
            if isinstance(error, Loading):
                return Health("loading", error.message)
        return Health("down", f"{path} answered {exchange.status}")

    async def _discover(self) -> str | None:
        """The first model that the engine lists; None where it lists none, or fails to in time."""
        try:
            async with asyncio.timeout(self._options.probe_timeout):
                async with self._upstream.exchange("GET", "/v1/models", self._own) as exchange:
                    body, _ = await exchange.read(_MODELS_BODY)
        except (TimeoutError, EngineError):
            return None
        try:
            listed = msgspec.json.decode(body, type=_Models).data
        except UNREADABLE:
            return None
        return listed[0].id if exchange.status == 200 and listed else None

    def _model(self, call: Call) -> str:
        return self._options.model or self._discovered or call.model

    def _headers(self, call: Call) -> Headers:
        # Our own id, never the client's: two clients may send the same one, and vLLM names a request by it.
        label = [("x-request-id", call.id)]
        trace = [(name, value) for name, value in call.headers if name in _TRACE and _is_safe(value)]
        accept = "text/event-stream" if call.stream else "application/json"
        return [("content-type", "application/json"), ("accept", accept), *self._own, *label, *trace]


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def _check_url(url: str) -> None:
    """Refuse what is no plain address. The text never repeats the URL, which may hold a password."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError("`url` is not a URL, such as http://10.0.0.3:8000") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError("`url` must be http:// or https:// and a host, such as http://10.0.0.3:8000")
    if parts.username is not None or parts.password is not None:
        raise ValueError("`url` must not carry a user or password; put the engine's key in `api_key`")
    if parts.query or parts.fragment or "?" in url or "#" in url:
        raise ValueError("`url` must not carry a query or fragment; put the engine's key in `api_key`")
    if not url.isascii() or not url.isprintable() or " " in url or ".." in parts.path.split("/"):
        raise ValueError("`url` must be plain ASCII without blanks or .. segments")


def _is_safe(value: str) -> bool:
    """Fit to be a header's value."""
    return value.isascii() and value.isprintable() and 0 < len(value) <= 512


def _agent() -> str:
    try:
        return f"enginehouse/{metadata.version('enginehouse')}"
    except metadata.PackageNotFoundError:
        return "enginehouse"
