"""Runs the app on a real socket: uvicorn, with our protocol at the edge, until a signal or an event says stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import uvicorn

from gateway.api.protocol import EdgeProtocol

__all__ = ["run", "serve_until_stopped", "uvicorn_config"]

KEEP_ALIVE = 75  # seconds; longer than the common 60 of load balancers, so that they close first
BACKLOG = 2048


def uvicorn_config(
    app: Any,
    host: str = "127.0.0.1",
    port: int = 8080,
    *,
    shutdown_timeout: float = 30.0,
    keep_alive: float = KEEP_ALIVE,
    protocol: type[EdgeProtocol] = EdgeProtocol,
) -> uvicorn.Config:
    """Configure uvicorn: no access log (the gateway writes its own), no server header, no websockets, no log setup.

    Args:
        app: an ASGI 3 app with a lifespan.
        port: 0 for any free one; `serve_until_stopped` says which.
        shutdown_timeout: seconds that running calls get to end after a stop; then they are cancelled.
    """
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        http=protocol,
        ws="none",
        interface="asgi3",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=keep_alive,  # type: ignore[arg-type] # goes to `call_later`, which takes fractions
        timeout_graceful_shutdown=shutdown_timeout,  # type: ignore[arg-type] # goes to `wait_for`, likewise
    )


async def serve_until_stopped(
    config: uvicorn.Config,
    *,
    stop: asyncio.Event | None = None,
    listening: Callable[[list[tuple[str, int]]], None] | None = None,
    sockets: list[socket.socket] | None = None,
    signals: bool = True,
) -> None:
    """Serve until SIGINT, SIGTERM or `stop`. Calls in flight may end; a second signal ends them at once.

    Returns when the app's lifespan is over. Unlike uvicorn it does not raise the signal again, so that a stop which
    was asked for exits with 0. When cancelled, every socket is closed at once.

    Args:
        stop: ends serving when set.
        listening: called once with the bound addresses (host, port).
        sockets: listen on these in place of the configured host and port.
        signals: handle them; only in the main thread.

    Raises:
        SystemExit: the address is taken, or the lifespan's start failed (uvicorn has logged why).
    """
    server = _Server(config, listening)
    loop = asyncio.get_running_loop()
    handled = (signal.SIGINT, signal.SIGTERM) if signals else ()
    for number in handled:
        loop.add_signal_handler(number, server.stop)
    waiter = loop.create_task(_stop_when(stop, server)) if stop is not None else None
    try:
        await server.serve(sockets=sockets)
    except asyncio.CancelledError:
        server.drop()
        raise
    finally:
        if waiter is not None:
            waiter.cancel()
        for number in handled:
            loop.remove_signal_handler(number)


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run `main` to its end, on uvloop where there is one."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(main)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, listening: Callable[[list[tuple[str, int]]], None] | None) -> None:
        super().__init__(config)
        self._listening = listening

    def stop(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True

    def drop(self) -> None:
        """Close everything at once (uvicorn leaves its sockets open when it is cancelled)."""
        for listener in getattr(self, "servers", []):
            listener.close()
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self._listening is not None:
            bound = [sock.getsockname() for server in self.servers for sock in server.sockets]
            self._listening([(str(name[0]), int(name[1])) for name in bound])

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield  # `serve_until_stopped` handles them


async def _stop_when(stop: asyncio.Event, server: _Server) -> None:
    await stop.wait()
    server.should_exit = True


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # Windows has none
        return None
    return uvloop.new_event_loop
