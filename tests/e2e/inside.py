"""The whole gateway within the test's own event loop, on a real socket, and a client that sees every byte.

The engines' fakes run on the same loop, so a test can hold an engine at any event and knows when the gateway heard
of it: everything that is waited for here is an event, none of it is a clock.

    async with FakeVllm() as fake, house(tmp_path, pool("m", fake)) as home:
        async with home.ask(chat("m", stream=True)) as reply:
            ... reply.status, reply.headers, await reply.event(), await reply.rest()
        await home.told(1)          # what the gateway noted of the call: home.served[0]
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.app import Gateway
from gateway.config import parse
from gateway.contract import Served
from gateway.errors import redact
from gateway.log import Logger
from gateway.server import serve_until_stopped, uvicorn_config
from tests.e2e.reply import WAIT, Reply
from tests.fakes.engine import FakeEngine
from tests.fakes.llamacpp import FakeLlamaCpp
from tests.fakes.tensorrt_llm import FakeTensorRtLlm
from tests.fakes.tgi import FakeTgi
from tests.fakes.vllm import FakeVllm

if TYPE_CHECKING:
    from openai import AsyncOpenAI

__all__ = ["FAKES", "WAIT", "Home", "Reply", "chat", "house", "pool", "settled"]

FAKES: dict[str, type[FakeEngine]] = {fake.kind: fake for fake in (FakeVllm, FakeTgi, FakeLlamaCpp, FakeTensorRtLlm)}


def chat(model: str = "m", **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "Hello there"}], **fields}


def pool(model: str, *fakes: FakeEngine, options: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    """A pool of these fakes, named `KIND-0`, `KIND-1` and so on; `options` are those of each endpoint."""
    endpoints = [
        {"name": f"{fake.kind}-{place}", "engine": fake.kind, "url": fake.url, "model": fake.model, **(options or {})}
        for place, fake in enumerate(fakes)
    ]
    return {"model": model, "endpoints": endpoints, **settings}


async def settled(what: str, holds: Callable[[], bool]) -> None:
    """Wait until the loop has done what it has to do, where no event tells: the end of another's task or socket."""
    try:
        async with asyncio.timeout(WAIT):
            while not holds():  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"not settled: {what}") from None


class _Log(Logger):
    """The house's own logger, into memory, whose words can be awaited."""

    def __init__(self) -> None:
        self.text = io.StringIO()
        super().__init__(self.text, redact, level=logging.DEBUG, pretty=False, room=100_000)
        self.calls: list[Served] = []
        self.states: dict[str, str] = {}
        self.news = asyncio.Event()

    def served(self, served: Served) -> None:
        super().served(served)
        self.calls.append(served)
        self.news.set()

    def event(self, what: str, *, level: int = logging.INFO, **fields: object) -> None:
        super().event(what, level=level, **fields)
        if what.startswith("endpoint_"):
            self.states[str(fields["endpoint"])] = what.removeprefix("endpoint_")
        self.news.set()


class Page(str):
    """A page of metrics."""

    def total(self, name: str, **labels: str) -> float:
        """The sum of the samples of this name whose labels hold these."""
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        found = 0.0
        for line in self.splitlines():
            series, _, value = line.rpartition(" ")
            if series.partition("{")[0] == name and all(label in series for label in wanted):
                found += float(value)
        return found


class Home:
    """The running gateway.

    Attributes:
        gateway: as the composition root built it. port: where it listens. served: what it noted of each call, in order.
    """

    def __init__(self, gateway: Gateway, log: _Log, port: int) -> None:
        self.gateway = gateway
        self.port = port
        self.served = log.calls
        self._log = log

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def sdk(self, **options: Any) -> AsyncOpenAI:
        from openai import AsyncOpenAI  # which takes half a second to load

        settings = {"base_url": self.base_url, "api_key": "none", "max_retries": 0, "timeout": WAIT} | options
        return AsyncOpenAI(**settings)

    @asynccontextmanager
    async def wire(self) -> AsyncIterator[Reply]:
        """A bare connection: `send` bytes, then `head`."""
        reply = Reply(*await asyncio.open_connection("127.0.0.1", self.port, limit=2**26))
        try:
            yield reply
        finally:
            reply.leave()

    @asynccontextmanager
    async def ask(
        self, body: Any = b"", path: str = "/v1/chat/completions", method: str = "POST", **headers: str
    ) -> AsyncIterator[Reply]:
        """Send one request and read its head; header names with `_` for `-`."""
        async with self.wire() as reply:
            await reply.send(self.request(body, path, method, **headers))
            await reply.head()
            yield reply

    def request(
        self, body: Any = b"", path: str = "/v1/chat/completions", method: str = "POST", **headers: str
    ) -> bytes:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1"]
        if "host" not in headers:
            lines.append(f"host: 127.0.0.1:{self.port}")
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        if data and "transfer_encoding" not in headers:
            lines.append(f"content-length: {len(data)}")
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + data

    async def get(self, path: str, **headers: str) -> tuple[int, bytes]:
        async with self.ask(path=path, method="GET", **headers) as reply:
            return reply.status, await reply.rest()

    async def told(self, count: int) -> Served:
        """Wait until the gateway noted so many calls; the last of them."""
        async with asyncio.timeout(WAIT):
            while len(self.served) < count:
                self._log.news.clear()
                await self._log.news.wait()
        return self.served[count - 1]

    async def metrics(self) -> Page:
        """The page as it stands. It is rendered once a second at most: ask once a test."""
        body, _ = await self.gateway.house.metrics()
        return Page(body.decode())

    def inflight(self) -> int:
        """Calls in flight by the router's own count, over all pools."""
        now = time.monotonic()
        return sum(sum(by_endpoint.values()) for by_endpoint in self.loads(now).values())

    def loads(self, now: float | None = None) -> dict[str, dict[str, int]]:
        """Calls in flight by pool and endpoint."""
        at = time.monotonic() if now is None else now
        return {
            model: {name: state.inflight for name, state in each.router.states(at).items()}
            for model, each in self.gateway.pools.items()
        }

    def log_text(self) -> str:
        """Every line of the log so far. The log is at its end then: ask last."""
        self._log.close()
        return self._log.text.getvalue()

    async def _ready(self, endpoints: int) -> None:
        async with asyncio.timeout(WAIT):
            while sum(state == "ready" for state in self._log.states.values()) < endpoints:
                self._log.news.clear()
                await self._log.news.wait()


@asynccontextmanager
async def house(folder: Path, *pools: dict[str, Any], ready: bool = True, **config: Any) -> AsyncIterator[Home]:
    """Serve these pools until the block ends.

    Args:
        folder: what relative file names are relative to.
        ready: begin when every endpoint is.
        config: further keys of the configuration.
    """
    log = _Log()
    log.capture()
    built = Gateway(parse(json.dumps({"pools": list(pools), **config}), folder), log)
    loop = asyncio.get_running_loop()
    stop, bound = asyncio.Event(), loop.create_future()
    settings = uvicorn_config(built.app, port=0)
    server = loop.create_task(
        serve_until_stopped(
            settings,
            stop=stop,
            listening=lambda names: bound.set_result(names[0][1]),
            patience=2,
            signals=False,
        )
    )
    try:
        await asyncio.wait({server, bound}, return_when=asyncio.FIRST_COMPLETED)
        if server.done():
            server.result()
        home = Home(built, log, bound.result())
        if ready:
            await home._ready(sum(len(each["endpoints"]) for each in pools))
        yield home
    finally:
        stop.set()
        await server
        log.close()
