"""The composition root: the only place that constructs. Configuration in, a running gateway out."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import secrets
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TextIO

import msgspec
from litestar import Litestar

import engines
from engines import Health
from engines.launch import LaunchError, Supervisor, command, free_port
from gateway import server
from gateway.api import application
from gateway.auth import KeyRing
from gateway.banner import banner, base_url, loading
from gateway.config import Config
from gateway.config import Endpoint as EndpointConfig
from gateway.config import Pool as PoolConfig
from gateway.contract import House, Pool, Served
from gateway.decisions import RecentCalls
from gateway.errors import redact
from gateway.fleet import Fleet
from gateway.launches import none_came_up
from gateway.log import Logger, configure
from gateway.metrics import Metrics
from gateway.serve import Line
from gateway.waiting import Waiting
from router import Endpoint, Router

__all__ = ["Gateway", "run"]

PATIENCE = 30.0
"""Seconds that running calls get to end after a stop."""

VERSION = metadata.version("enginehouse")


class Gateway:
    """One gateway, built from a configuration. `app` is what a server runs; its lifespan starts and ends the rest.

    Args:
        config: checked.
        log: where lines go.
        clock: the one monotonic clock of the house.

    Attributes:
        pools: by public model name. supervisors: the engines that run in processes of ours, by endpoint name.
    """

    def __init__(self, config: Config, log: Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self.config = config
        self.log = log
        self._clock = clock
        self.supervisors: dict[str, Supervisor] = {}
        self.pools = {pool.model: self._pool(pool) for pool in config.pools}
        self._metrics = Metrics(self.pools, version=VERSION, clock=clock)
        self._metrics.watch(
            "enginehouse_log_lines_dropped", "Log lines that the bounded queue had no room for.", lambda: log.dropped
        )
        self._recent = RecentCalls(redact)
        self._fleet = Fleet(self.pools, clock, self._tell, self._word)
        self._line = Line(self._observe, clock)
        house = House(
            pools=self.pools,
            keys=KeyRing.load(Path(config.auth.keys)) if config.auth else None,
            body_limit=config.limits.body_bytes,
            serve=self._line.serve,
            observe=self._observe,
            metrics=self._metrics.render,
            decisions=self._recent,
        )
        self.house = house
        self.app = application(house, [self._lifespan])

    @property
    def active(self) -> int:
        """Calls that are being served."""
        return self._line.active

    async def settled(self) -> dict[str, str]:
        """Wait until launched engines are up and every endpoint was looked at: those that can take no call, and why."""
        for supervisor in self.supervisors.values():
            with contextlib.suppress(LaunchError):
                await supervisor.ready()
        await self._fleet.seen()
        now = self._clock()
        states = {name: state for pool in self.pools.values() for name, state in pool.router.states(now).items()}
        return {
            name: self._fleet.last[name].why or state.health for name, state in states.items() if not state.eligible
        }

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Litestar) -> AsyncIterator[None]:
        for supervisor in self.supervisors.values():
            supervisor.start()
        self._fleet.start()
        try:
            yield
        finally:
            await self._fleet.stop()
            for pool in self.pools.values():
                pool.waiting.close()
                await asyncio.gather(*(engine.aclose() for engine in pool.engines.values()))
            await asyncio.gather(*(supervisor.stop() for supervisor in self.supervisors.values()))

    def _observe(self, served: Served) -> None:
        self._metrics.observe(served)
        self._recent.add(served)
        self.log.served(served)

    def _tell(self, pool: str, endpoint: str, engine: str, health: Health) -> None:
        self.log.event(f"endpoint_{health.state}", model=pool, endpoint=endpoint, engine=engine, why=health.why)

    def _word(self, endpoint: str) -> Health | None:
        supervisor = self.supervisors.get(endpoint)
        return None if supervisor is None else supervisor.state

    def _pool(self, config: PoolConfig) -> Pool:
        built = {endpoint.name: self._engine(config, endpoint) for endpoint in config.endpoints}
        router = Router(
            [_routed(endpoint, built[endpoint.name]) for endpoint in config.endpoints],
            policy=config.policy,
            seed=secrets.randbits(32),
        )
        return Pool(
            model=config.model,
            router=router,
            waiting=Waiting(router, self._clock),
            engines=built,
            policy=config.policy,
            allowed_policies=frozenset(config.policies) | {config.policy},
            commit_after=config.commit_after,
            heartbeat=config.heartbeat,
            max_attempts=config.max_attempts,
            rerun=config.rerun,
            slo=config.slo.slo() if config.slo else None,
            created=int(time.time()),
        )

    def _engine(self, pool: PoolConfig, config: EndpointConfig) -> engines.Engine:
        if config.launch is None:
            engine = engines.build(config.engine, config.name, config.raw())
            own = getattr(engine, "supervisor", None)
            if isinstance(own, Supervisor):  # a process of its own, watched like those that are launched here
                self._watch(pool, config, own)
            return engine
        # The engine answers to this gateway alone: loopback, a port of its own, and a key that nobody else knows.
        port, key = free_port(), secrets.token_urlsafe(24)
        raw = {**config.raw(f"http://127.0.0.1:{port}"), "api_key": key}
        engine = engines.build(config.engine, config.name, raw)
        supervisor = Supervisor(
            config.name,
            partial(command, config.engine, config.launch, api_key=key),
            engine.probe,
            port=port,
        )
        engine.is_gone = supervisor.is_gone  # type: ignore[attr-defined]
        self._watch(pool, config, supervisor)
        return engine

    def _watch(self, pool: PoolConfig, config: EndpointConfig, supervisor: Supervisor) -> None:
        supervisor.on_state = partial(self._launched, pool.model, config.name)
        supervisor.on_progress = partial(self._loading, config.name)
        self.supervisors[config.name] = supervisor

    def _launched(self, model: str, endpoint: str, health: Health) -> None:
        pool, supervisor = self.pools[model], self.supervisors[endpoint]
        pool.router.set_health(endpoint, health.state, self._clock())
        pool.waiting.pump()
        self.log.event(
            f"launch_{health.state}",
            endpoint=endpoint,
            pid=supervisor.pid,
            why=health.why,
            deployment_seconds=supervisor.deployment_time,
            restarts=supervisor.restarts,
        )

    def _loading(self, endpoint: str, seconds: float, line: str) -> None:
        self.log.event("launch_waiting", endpoint=endpoint, seconds=round(seconds, 1), last_line=line)


def _routed(config: EndpointConfig, engine: engines.Engine) -> Endpoint:
    tags = config.tags | ({config.source} if config.source else set())
    limits = config.limits
    slots = getattr(config.launch, "slots", None) or getattr(engine, "slots", None)
    if slots is not None and limits.max_concurrency is None:
        # What we start ourselves we know: more calls than slots would only wait inside the engine. Its context is left
        # to the engine's own exact count, for ours is an estimate.
        limits = msgspec.structs.replace(limits, max_concurrency=slots)
    return Endpoint(name=config.name, engine=config.engine, limits=limits, tags=frozenset(tags))


def run(config: Config, out: TextIO = sys.stdout, err: TextIO = sys.stderr) -> int:
    """Serve until a signal comes. Returns the exit code: 0 after a stop, 2 for what the user can mend.

    Nothing is started before the address is taken.
    """
    listen = config.listen
    try:
        sockets = server.bind(listen.host, listen.port)
    except OSError as error:
        what = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be listened on: {error.strerror}"
        print(f"enginehouse: {listen.host}:{listen.port} {what}; choose another with --port or `listen:`", file=err)
        return 2
    pretty = {"auto": None, "console": True, "json": False}[config.log.format]
    log = configure(config.log.level, err, redact, pretty=pretty)
    try:
        return server.run(_serve(config, log, sockets, out, err))
    except SystemExit:  # the lifespan's start failed, and its error is in the log
        return 1
    finally:
        log.close()


async def _serve(config: Config, log: Logger, sockets: list[socket.socket], out: TextIO, err: TextIO) -> int:
    """Serve to the end; the exit code."""
    gateway = Gateway(config, log)
    announcing: list[asyncio.Task[None]] = []
    stop = asyncio.Event()
    cut_off, fault = 0, ""

    def say(text: str) -> None:
        print(text, file=out, flush=True)

    def listening(addresses: list[tuple[str, int]]) -> None:
        say(loading(config))
        announcing.append(asyncio.get_running_loop().create_task(announce(addresses[0][1])))

    async def announce(port: int) -> None:
        nonlocal fault
        fault = await none_came_up(config, gateway.supervisors) or ""
        if fault:
            stop.set()
        else:
            await _announce(gateway, port, say)

    def stopping() -> None:
        for task in announcing:
            task.cancel()
        if gateway.active:
            say(f"\nFinishing {_calls(gateway.active)}, {PATIENCE:g} s at most. Ctrl-C again ends them now.")

    def cut() -> None:
        nonlocal cut_off
        cut_off = gateway.active

    await server.serve_until_stopped(
        server.uvicorn_config(gateway.app),
        stop=stop,
        sockets=sockets,
        listening=listening,
        stopping=stopping,
        cut=cut,
        patience=PATIENCE,
    )
    if fault:
        print(f"enginehouse: nothing can be served: {fault}", file=err, flush=True)
        return 2
    say(f"Stopped; {_calls(cut_off)} cut off." if cut_off else "Stopped.")
    return 0


async def _announce(gateway: Gateway, port: int, say: Callable[[str], None]) -> None:
    """Say where to point a client, once it is known which endpoints can answer."""
    missing = await gateway.settled()
    total = sum(len(pool.engines) for pool in gateway.pools.values())
    if len(missing) < total:
        say(banner(gateway.config, base_url(gateway.config.listen.host, port)))
    if missing:
        say(f"{len(missing)} of {total} endpoints can take no calls yet; they are being tried:")
        for name, why in missing.items():
            say(f"  {name}: {why}")


def _calls(number: int) -> str:
    return "1 call" if number == 1 else f"{number} calls"
