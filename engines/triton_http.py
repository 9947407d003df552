"""The way to Triton over HTTP, for where gRPC is not let through: its generate extension, read as a stream.

`generate_stream` answers with one event for each response, without a final mark: the answer's formal end is the end.
(`generate` would not do: a decoupled model that gives two responses makes it fail with a 200.)
"""

from __future__ import annotations

import json
from typing import Any, Final, Self
from urllib.parse import quote

import msgspec

from engines.classify import classify
from engines.contract import Headers, Health
from engines.errors import EngineError, Malformed
from engines.rawjson import encode
from engines.sse import Framer
from engines.triton_errors import from_text
from engines.triton_layout import ModelInfo, Tensor
from engines.triton_wire import Filled, Replies, Reply, Request
from engines.upstream import Exchange, Upstream

__all__ = ["HttpTransport"]

_SMALL: Final = 1 << 20


class _Tensor(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]


class _Metadata(msgspec.Struct):
    platform: str = ""
    inputs: list[_Tensor] = []
    outputs: list[_Tensor] = []


class _Parameter(msgspec.Struct):
    string_value: str = ""


class _Policy(msgspec.Struct):
    decoupled: bool = False


class _Step(msgspec.Struct):
    model_name: str


class _Scheduling(msgspec.Struct):
    step: list[_Step] = []


class _Config(msgspec.Struct):
    max_batch_size: int = 0
    model_transaction_policy: _Policy = msgspec.field(default_factory=_Policy)
    ensemble_scheduling: _Scheduling = msgspec.field(default_factory=_Scheduling)
    parameters: dict[str, _Parameter] = {}


class _Indexed(msgspec.Struct):
    name: str
    state: str = ""


class HttpTransport:
    """See `Transport`.

    Args:
        headers: to go with every request. max_message: bytes of one response.
    """

    def __init__(self, url: str, *, verify_tls: bool, headers: Headers, connect: float, max_message: int) -> None:
        self._upstream = Upstream(url, connect=connect, verify_tls=verify_tls)
        self._headers = [("accept-encoding", "identity"), *headers]
        self._max_message = max_message

    async def models(self) -> list[str]:
        body = await self._ask("POST", "/v2/repository/index", b'{"ready":true}')
        return [model.name for model in _decode(body, list[_Indexed]) if model.state in ("", "READY")]

    async def describe(self, model: str) -> ModelInfo:
        metadata = _decode(await self._ask("GET", f"/v2/models/{quote(model, safe='')}"), _Metadata)
        config = _decode(await self._ask("GET", f"/v2/models/{quote(model, safe='')}/config"), _Config)
        parameters = {name: value.string_value for name, value in config.parameters.items()}
        return ModelInfo(
            name=model,
            inputs=tuple(Tensor(one.name, one.datatype, tuple(one.shape)) for one in metadata.inputs),
            outputs=tuple(Tensor(one.name, one.datatype, tuple(one.shape)) for one in metadata.outputs),
            platform=metadata.platform,
            max_batch_size=config.max_batch_size,
            decoupled=config.model_transaction_policy.decoupled,
            steps=tuple(step.model_name for step in config.ensemble_scheduling.step),
            parameters={name: value for name, value in parameters.items() if value and not value.startswith("${")},
        )

    async def health(self, model: str | None) -> Health:
        if await self._status("/v2/health/ready") != 200:
            return Health("loading", "the server is up and not ready")
        if model is not None and await self._status(f"/v2/models/{quote(model, safe='')}/ready") != 200:
            return Health("loading", "the server is up, its model is not ready")
        return Health("ready")

    def infer(self, request: Request) -> Replies:
        body: dict[str, Any] = {filled.name: _json(filled) for filled in request.inputs}
        headers = [("content-type", "application/json"), *self._headers, *request.headers]
        path = f"/v2/models/{quote(request.model, safe='')}/generate_stream"
        return _Events(self._upstream, path, headers, encode({**body, "id": request.id}), self._max_message)

    async def settle(self, error: EngineError) -> EngineError:
        return await self._upstream.settle(error)

    async def aclose(self) -> None:
        await self._upstream.aclose()

    async def _ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        async with self._upstream.exchange(method, path, self._headers, body) as exchange:
            answer, _ = await exchange.read(_SMALL)
            if exchange.status != 200:
                raise _error(exchange, answer)
        return answer

    async def _status(self, path: str) -> int:
        async with self._upstream.exchange("GET", path, self._headers) as exchange:
            await exchange.read(_SMALL)
        return exchange.status


class _Events:
    """One inference. See `Replies`."""

    def __init__(self, upstream: Upstream, path: str, headers: Headers, body: bytes, max_message: int) -> None:
        self._upstream = upstream
        self._request = path, headers, body
        self._framer = Framer(max_message)
        self._exchange: Exchange | None = None
        self._waiting: list[bytes] = []
        self._ended = False

    @property
    def sent(self) -> bool:
        return self._exchange is not None and self._exchange.sent

    async def __aenter__(self) -> Self:
        path, headers, body = self._request
        self._exchange = self._upstream.exchange("POST", path, headers, body)
        await self._exchange.__aenter__()
        if self._exchange.status != 200:
            try:
                answer, _ = await self._exchange.read(1 << 16)
                raise _error(self._exchange, answer)
            except BaseException as error:
                await self._exchange.__aexit__(type(error), error, error.__traceback__)
                raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._exchange is not None:
            await self._exchange.__aexit__(None, None, None)

    async def next(self) -> Reply | None:
        assert self._exchange is not None
        while not self._waiting:
            if self._ended:
                return None
            chunk = await self._exchange.chunk()
            self._ended = not chunk
            self._waiting = self._framer.feed(chunk) if chunk else self._framer.close()
        return _reply(self._waiting.pop(0))

    def cancel(self) -> None:
        if self._exchange is not None:
            self._exchange.abort()


def _json(filled: Filled) -> Any:
    """A tensor as the generate extension takes it: a bare value where it holds one of a fixed size, else a list."""
    values = [value.decode() if isinstance(value, bytes) else value for value in filled.values]
    return values[0] if len(values) == 1 else values


def _reply(payload: bytes) -> Reply:
    # Triton writes a text's bytes as they are, so a piece that ends within a character is no valid UTF-8.
    try:
        fields = json.loads(payload.decode("utf-8", "surrogateescape"))
    except ValueError as error:
        raise Malformed("The engine sent an event that is not JSON.", detail=repr(payload[:400])) from error
    if not isinstance(fields, dict):
        raise Malformed("The engine sent an event that is not an object.", detail=repr(payload[:400]))
    if isinstance(fields.get("error"), str):
        raise from_text(fields["error"])
    return Reply({name: value for name, given in fields.items() if (value := _first(given)) is not None})


def _first(given: Any) -> Any:
    while isinstance(given, list):
        if not given:
            return None
        given = given[0]
    return given.encode("utf-8", "surrogateescape") if isinstance(given, str) else given


def _decode(body: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise Malformed("The engine's description of its model cannot be read.", detail=str(error)) from error


def _error(exchange: Exchange, body: bytes) -> EngineError:
    """The error of an answer that is none; one to `generate_stream` is an event in spite of its status."""
    said = body.strip().removeprefix(b"data:").strip()
    error = classify(exchange.status, said, "application/json", exchange.retry_after())
    try:
        text = msgspec.json.decode(said, type=dict[str, msgspec.Raw]).get("error")
        words = from_text(msgspec.json.decode(text, type=str)) if text is not None else None
    except msgspec.DecodeError:
        return error
    # 400 and 500 stand for much; where the words say more, they decide.
    return words if words is not None and words.status != 500 and exchange.status in (400, 500) else error
