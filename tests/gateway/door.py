"""A house with a scripted `serve` behind the real server on a real socket, and a client that sees every byte."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest
import uvloop

from gateway.api import application
from gateway.api.protocol import EdgeProtocol
from gateway.contract import Client, House, Keys, Pool, Request, Served
from gateway.server import serve_until_stopped, uvicorn_config
from gateway.waiting import Waiting
from router import Router
from router.contract import EndpointState

LIMIT = 16 * 1024 * 1024
MODELS = ("tiny", "org/name", "a:b", "with blank", "모델", "../up", "tail/", "per%2Fcent", "/abs/path")
WAIT = 30.0  # seconds until a test that hangs is given up

Script = Callable[[Pool, Request, Client], Awaitable[None]]


class Still(Router):
    """A router whose endpoints stand as they are told."""

    def __init__(self, **standing: EndpointState) -> None:
        self.standing = standing

    def states(self, now: float) -> dict[str, EndpointState]:
        return self.standing


def state(health: str = "ready", breaker: str = "closed", eligible: bool = True, why: str = "") -> EndpointState:
    counts = {"inflight": 0, "waiting": 0, "context_tokens": 0, "queued_tokens": 0}
    return EndpointState(health=health, breaker=breaker, eligible=eligible, why=why, **counts)


def pool_of(model: str, router: Router, **settings: Any) -> Pool:
    """A pool without engines."""
    return Pool(model=model, router=router, waiting=Waiting(router, time.monotonic), engines={}, created=7, **settings)


class Remembered:
    def __init__(self) -> None:
        self.calls: dict[str, Served] = {}

    def find(self, request_id: str) -> Served | None:
        return self.calls.get(request_id)


async def echo(pool: Pool, request: Request, client: Client) -> None:
    """Answers with what arrived."""
    seen = {
        "pool": pool.model,
        "fields": list(request.call.fields),
        "policy": request.policy,
        "explain": request.explain,
        "key": request.key,
        "bytes_in": request.bytes_in,
        "request_id": request.call.request_id,
        "trace": request.call.headers,
        "ttft": request.ask.slo.ttft if request.ask.slo else None,
        "tpot": request.ask.slo.tpot if request.ask.slo else None,
    }
    body = json.dumps(seen).encode()
    await client.start(200, [("content-type", "application/json"), ("content-length", str(len(body)))])
    await client.write(body)
    await client.end()


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error object, after a check that it is OpenAI's envelope and nothing else."""
        assert self.headers["content-type"].startswith("application/json")
        assert set(self.json) == {"error"}
        error: dict[str, Any] = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["message"], str)
        assert error["message"]
        assert isinstance(error["type"], str)
        assert error["param"] is None or isinstance(error["param"], str)
        assert error["code"] is None or isinstance(error["code"], str)
        assert self.headers["x-request-id"]
        return error


class Wire:
    """One TCP connection to the door."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        async with asyncio.timeout(WAIT):
            text = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = text.rstrip("\r\n").split("\r\n")
        headers = {}
        for line in lines:
            name, _, value = line.partition(": ")
            assert name not in headers, f"{name} came twice"
            headers[name] = value
        return int(first.split(" ")[1]), headers

    async def chunk(self) -> bytes:
        """One chunk of a chunked answer; empty at its end."""
        async with asyncio.timeout(WAIT):
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            data = await self.reader.readexactly(size + 2)
        return data[:-2]

    async def answer(self, method: str = "POST") -> Answer:
        status, headers = await self.head()
        async with asyncio.timeout(WAIT):
            if method == "HEAD" or status in (100, 204):
                body = b""
            elif headers.get("transfer-encoding") == "chunked":
                pieces = []
                while piece := await self.chunk():
                    pieces.append(piece)
                body = b"".join(pieces)
            elif "content-length" in headers:
                body = await self.reader.readexactly(int(headers["content-length"]))
            else:
                body = await self.reader.read()
        return Answer(status, headers, body)

    async def closed(self) -> bool:
        """Whether the server ends the connection (waits for it)."""
        async with asyncio.timeout(WAIT):
            try:
                return await self.reader.read(1) == b""
            except ConnectionResetError:
                return True

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except OSError:
            return


class Door:
    """The running server, and what it observed."""

    def __init__(self, port: int, house: House, observed: list[Served], decisions: Remembered) -> None:
        self.port = port
        self.house = house
        self.observed = observed
        self.decisions = decisions

    @asynccontextmanager
    async def wire(self) -> AsyncIterator[Wire]:
        wire = Wire(*await asyncio.open_connection("127.0.0.1", self.port, limit=2**24))
        try:
            yield wire
        finally:
            await wire.close()

    async def ask(
        self, method: str = "POST", path: str = "/v1/chat/completions", body: Any = b"", **headers: str
    ) -> Answer:
        """One request on a connection of its own. Header names: `x_request_id` for `x-request-id`."""
        async with self.wire() as wire:
            await wire.send(request(method, path, body, **headers))
            return await wire.answer(method)


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **fields}


def request(method: str = "POST", path: str = "/v1/chat/completions", body: Any = b"", **headers: str) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "host: door"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if data and "transfer_encoding" not in headers:
        lines.append(f"content-length: {len(data)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + data


@asynccontextmanager
async def open_door(
    serve: Script = echo,
    *,
    keys: Keys | None = None,
    limit: int = LIMIT,
    pools: dict[str, Pool] | None = None,
    protocol: type[EdgeProtocol] = EdgeProtocol,
    shutdown_timeout: float = 5.0,
) -> AsyncIterator[Door]:
    observed: list[Served] = []
    decisions = Remembered()

    async def exposition() -> tuple[bytes, str]:
        return b"up 1\n", "text/plain; version=1.0.0; charset=utf-8"

    house = House(
        pools=pools or {name: pool_of(name, Still(e0=state())) for name in MODELS},
        keys=keys,
        body_limit=limit,
        serve=serve,
        observe=observed.append,
        metrics=exposition,
        decisions=decisions,
    )
    stop = asyncio.Event()
    bound: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    config = uvicorn_config(application(house), port=0, protocol=protocol)
    server = asyncio.get_running_loop().create_task(
        serve_until_stopped(
            config,
            stop=stop,
            listening=lambda names: bound.set_result(names[0][1]),
            patience=shutdown_timeout,
            last_words=shutdown_timeout,
            signals=False,
        )
    )
    try:
        yield Door(await bound, house, observed, decisions)
    finally:
        stop.set()
        await server


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on the standard event loop and on uvloop, which is what production runs on."""

    @functools.wraps(test)
    def run(loop_factory: Callable[[], asyncio.AbstractEventLoop], **arguments: Any) -> None:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(test(**arguments))

    signature = inspect.signature(test)
    first = inspect.Parameter("loop_factory", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    run.__signature__ = signature.replace(parameters=[first, *signature.parameters.values()])  # type: ignore[attr-defined]
    loops = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    marked: Callable[..., None] = pytest.mark.parametrize("loop_factory", loops.values(), ids=loops.keys())(run)
    return marked
