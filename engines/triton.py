"""TensorRT-LLM behind Triton Inference Server, over gRPC; over HTTP where only that is given.

Its models take and give text in tensors. Chat is rendered here by the model's own template, answers are encoded to
OpenAI's form here. Needs the extra `triton` (jinja2, and tritonclient with gRPC for `grpc://`).
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

import msgspec

from engines.contract import Attempt, Call, Health, Sink
from engines.errors import EngineError, Misconfigured, Unreached
from engines.paths import FileName
from engines.triton_layout import Layout, ModelInfo, read_layout, related

if TYPE_CHECKING:
    from engines.triton_attempt import Settings
    from engines.triton_wire import Transport

__all__ = ["Options", "Triton", "build"]

_SCHEMES: Final = ("grpc", "grpcs", "http", "https")
_USUAL: Final = ("ensemble", "tensorrt_llm_bls", "tensorrt_llm")


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to reach a model behind Triton. Times in seconds, sizes in bytes; None for a time: no limit.

    Attributes:
        url: `grpc://` or `grpcs://` with host and port; or `http://` or `https://`, where gRPC is not let through.
        model: its name in Triton's repository. None: `ensemble`, `tensorrt_llm_bls` or `tensorrt_llm`, the first that
            is there.
        tokenizer: a folder as publishers of models give it: the chat template and special tokens are read from it,
            and with the package `tokenizers` its tokenizer.json counts tokens that the engine does not count.
        chat_template: Jinja, in place of the folder's.
        text: what each response of a stream holds: what is new ("delta") or the whole so far ("cumulative"). None:
            as the model's configuration suggests.
        guided_decoding: the model can be held to a JSON schema. None: where its configuration names a backend for it.
        default_max_tokens: the cap of calls that have none; these models must be given one.
        estimate_usage: show clients token counts that are estimates, where the engine gives none.
        api_key: sent as a bearer token, for a proxy in front: Triton itself knows no keys.
        ca_file: certificates (PEM) to check a `grpcs://` server against, in place of the system's.
        verify_tls: check an `https://` server's certificate.
        connect_timeout: to resolve, connect and shake hands. first_byte_timeout: from dispatch to the first response.
        idle_timeout: between two responses. probe_timeout: for the health question.
        max_message: of one message or event, in either direction.
    """

    url: str
    model: str | None = None
    tokenizer: FileName | None = None
    chat_template: str | None = None
    text: Literal["delta", "cumulative"] | None = None
    guided_decoding: bool | None = None
    default_max_tokens: int = 1024
    estimate_usage: bool = False
    api_key: str | None = None
    ca_file: FileName | None = None
    verify_tls: bool = True
    connect_timeout: float = 5.0
    first_byte_timeout: float | None = 600.0
    idle_timeout: float | None = 300.0
    probe_timeout: float = 3.0
    max_message: int = 64 * 2**20

    def __post_init__(self) -> None:
        _check_url(self.url)
        for name in ("connect_timeout", "first_byte_timeout", "idle_timeout", "probe_timeout"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"`{name}` must be more than 0 seconds")
        if not 1 <= self.max_message < 2**31:
            raise ValueError("`max_message` must be from 1 to 2147483647 bytes")
        if not 1 <= self.default_max_tokens < 2**31:
            raise ValueError("`default_max_tokens` must be at least 1")
        if self.api_key is not None and not (self.api_key and self.api_key.isascii() and self.api_key.isprintable()):
            raise ValueError("`api_key` must be printable ASCII and not empty; leave it out where there is none")
        if self.ca_file is not None and not self.url.startswith("grpcs://"):
            raise ValueError("`ca_file` must stand beside a grpcs:// address")


class Triton:
    """An `Engine`: one model behind one Triton.

    Args:
        name: the endpoint's name. transport: the way to it. settings: what attempts need of the options.
    """

    kind = "triton"

    def __init__(self, name: str, options: Options, transport: Transport, settings: Settings) -> None:
        self.name = name
        self.transport = transport
        self.settings = settings
        self._options = options
        self._layout: Layout | None = None
        self._reading = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._attempts: set[Any] = set()
        self._closed = False

    def open(self, call: Call, sink: Sink) -> Attempt:
        """See `Engine.open`. Needs a running event loop."""
        from engines.triton_attempt import TritonAttempt  # here, so that checking a configuration loads nothing heavy

        attempt = TritonAttempt(self, call, sink)
        self._attempts.add(attempt)
        attempt.task.add_done_callback(lambda _: self._attempts.discard(attempt))
        return attempt

    async def probe(self) -> Health:
        """Ask the server, and for its model, within `probe_timeout`. Never raises.

        ready: both are. loading: the server answers and one of them is not. degraded: no answer in time. down: no
        connection, or a refusal.
        """
        try:
            async with asyncio.timeout(self._options.probe_timeout):
                health = await self._asked()
        except TimeoutError:
            return Health("degraded", f"no answer within {self._options.probe_timeout:g} s")
        except Misconfigured as error:
            health = Health("down", error.detail or error.message)
        except EngineError as error:
            health = Health("down", error.message)
        if health.state != "ready":
            self.forget_layout()  # what comes up next may be another model
        return health

    async def layout(self) -> Layout:
        """How to speak to the model; read once, until it is forgotten. Raises EngineError."""
        if self._closed:
            raise Unreached("The endpoint was taken out of service.")
        async with self._reading:
            if self._layout is None:
                self._layout = await self._read()
            return self._layout

    def forget_layout(self) -> None:
        self._layout = None

    def request_id(self, call: Call) -> str:
        return f"{call.id}-{next(self._numbers)}"

    async def aclose(self) -> None:
        """End every attempt and close every connection."""
        self._closed = True
        attempts = list(self._attempts)
        for attempt in attempts:
            attempt.abort("the endpoint is closed")
        for attempt in attempts:
            await attempt.closed()
        await self.transport.aclose()

    async def _asked(self) -> Health:
        model = self._options.model or (self._layout.model if self._layout is not None else None)
        health = await self.transport.health(model)
        if health.state == "ready":
            await self.layout()
        return health

    async def _read(self) -> Layout:
        options = self._options
        model = await self.transport.describe(options.model or await self._discover())
        others: dict[str, ModelInfo] = {}
        for name in related(model):
            others[name] = await self.transport.describe(name)
        return read_layout(model, others, text=options.text, guided=options.guided_decoding)

    async def _discover(self) -> str:
        names = await self.transport.models()
        for usual in _USUAL:
            if usual in names:
                return usual
        if len(names) == 1:
            return names[0]
        raise Misconfigured("The endpoint does not say which of the engine's models it is.", detail=f"ready: {names}")


def build(name: str, options: Options) -> Triton:
    """The engine of the endpoint `name`.

    Raises ValueError where a package is missing, or a file or the template cannot be read.
    """
    try:
        settings = _settings(options)
        transport = _transport(options)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"endpoint {name!r} (triton): needs the package {error.name!r}, which is not installed; "
            "pip install 'enginehouse[triton]' brings all that it needs"
        ) from error
    except ValueError as error:
        raise ValueError(f"endpoint {name!r} (triton): {error}") from error
    return Triton(name, options, transport, settings)


def _settings(options: Options) -> Settings:
    from engines.chat_template import load_template
    from engines.triton_attempt import Settings

    return Settings(
        first_byte=options.first_byte_timeout,
        idle=options.idle_timeout,
        max_tokens=options.default_max_tokens,
        template=load_template(options.tokenizer, options.chat_template),
        count=_counter(options.tokenizer),
        estimate_usage=options.estimate_usage,
    )


def _counter(folder: str | None) -> Callable[[str], int] | None:
    """Counts the tokens of a text, where the folder has a tokenizer.json and the package `tokenizers` is there."""
    file = Path(folder) / "tokenizer.json" if folder is not None else None
    if file is None or not file.is_file():
        return None
    try:
        tokenizers = importlib.import_module("tokenizers")
    except ModuleNotFoundError:
        return None
    tokenizer = tokenizers.Tokenizer.from_file(str(file))
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def _transport(options: Options) -> Transport:
    headers = [] if options.api_key is None else [("authorization", f"Bearer {options.api_key}")]
    if options.url.startswith("http"):
        from engines.triton_http import HttpTransport

        return HttpTransport(
            options.url,
            verify_tls=options.verify_tls,
            headers=headers,
            connect=options.connect_timeout,
            max_message=options.max_message,
        )
    from engines.triton_grpc import GrpcTransport

    return GrpcTransport(
        urlsplit(options.url).netloc,
        secure=options.url.startswith("grpcs://"),
        ca=options.ca_file,
        headers=headers,
        connect=options.connect_timeout,
        max_message=options.max_message,
    )


def _check_url(url: str) -> None:
    """Refuse what is no plain address. The text never repeats the URL, which may hold a password."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError("`url` is not a URL, such as grpc://10.0.0.2:8001") from error
    if parts.scheme not in _SCHEMES or not parts.hostname or port == 0:
        raise ValueError("`url` must be grpc://, grpcs://, http:// or https:// and a host: grpc://10.0.0.2:8001")
    if parts.scheme.startswith("grpc") and (port is None or parts.path not in ("", "/")):
        raise ValueError("`url` must name host and port and no path: grpc://10.0.0.2:8001")
    if parts.username is not None or parts.password is not None:
        raise ValueError("`url` must not carry a user or password; put the engine's key in `api_key`")
    if parts.query or parts.fragment or not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("`url` must be plain ASCII without blanks, query or fragment")
