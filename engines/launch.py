"""Starts an engine as a child process, watches it, starts it again, and ends it with everything that it started.

What to start is an engine's own affair: `engines/<kind>_launch.py` holds its `Launch` struct and `command`.
"""

from __future__ import annotations

import asyncio
import collections
import importlib
import importlib.util
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from engines.contract import Health
from engines.last_words import last_words
from engines.process import Process, spawn

__all__ = ["Command", "LaunchError", "Supervisor", "command", "free_port", "launch_type"]


class LaunchError(Exception):
    """An engine cannot be started. The message says why and what would help, and may be shown to the operator."""


class Command(msgspec.Struct, frozen=True):
    """What to run. `env` is added to the environment; secrets belong there, out of the sight of `ps`.

    `descriptors` are open files that the program inherits under the same numbers; here they are closed once it runs.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = {}
    descriptors: tuple[int, ...] = ()


def launch_type(kind: str) -> type[msgspec.Struct] | None:
    """The struct that says how to start an engine of this kind; None where it cannot be started."""
    module = _module(kind)
    found: type[msgspec.Struct] | None = None if module is None else module.Launch
    return found


def command(kind: str, launch: msgspec.Struct, port: int, api_key: str) -> Command:
    """The command for one engine on 127.0.0.1:`port`.

    Raises:
        LaunchError: it cannot be started; checks run here, before anything is.
    """
    module = _module(kind)
    if module is None:
        raise LaunchError(f"{kind} cannot be started by this version; start it yourself and give its `url`")
    made: Command = module.command(launch, port, api_key)
    return made


def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _module(kind: str) -> Any:
    name = f"engines.{kind}_launch"
    if not kind.isidentifier() or importlib.util.find_spec(name) is None:
        return None
    return importlib.import_module(name)


class Supervisor:
    """Keeps one engine running until it is stopped.

    The engine runs in a session of its own, and the kernel kills it should this process die without a word. One that
    ends is started again after a pause, which doubles from `backoff[0]` to `backoff[1]` seconds and is short again once
    an engine was ready for that long. A long load is no failure: there is no time limit while the process lives. Where
    no process can be made at all (LaunchError: no model, no server), that is said once and looked at again every
    `backoff[1]` seconds.

    Args:
        name: the endpoint's name.
        command_for: gives the command for a port; may raise LaunchError.
        health: asks the engine's own health route.
        port: the engine's port, the same for every restart.
        on_state: told every change: loading, ready, down. May be set later.
        on_progress: told about once a second while loading: seconds so far, the last log line. May be set later.
        poll: seconds between questions while loading. grace: seconds from SIGTERM to SIGKILL.

    Attributes:
        state: the last word on the process. restarts: starts after the first.
        deployment_time: seconds from the last start to its readiness; None until then.
        pid: of the running process.
        failed_first: why the first start never came to readiness; None while it is under way, and where it did.
    """

    def __init__(
        self,
        name: str,
        command_for: Callable[[int], Command],
        health: Callable[[], Awaitable[Health]],
        *,
        port: int,
        on_state: Callable[[Health], None] = lambda health: None,
        on_progress: Callable[[float, str], None] = lambda seconds, line: None,
        poll: float = 0.1,
        grace: float = 10.0,
        backoff: tuple[float, float] = (0.5, 30.0),
        log_lines: int = 200,
    ) -> None:
        self.name = name
        self.port = port
        self.state = Health("unknown")
        self.restarts = 0
        self.deployment_time: float | None = None
        self.pid: int | None = None
        self.failed_first: str | None = None
        self._first_over = asyncio.Event()
        self._command_for = command_for
        self._health = health
        self.on_state = on_state
        self.on_progress = on_progress
        self._poll = poll
        self._grace = grace
        self._backoff = backoff
        self._log: collections.deque[str] = collections.deque(maxlen=log_lines)
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._process: Process | None = None

    @property
    def log(self) -> tuple[str, ...]:
        """The last lines that the engine wrote since its last start, oldest first."""
        return tuple(self._log)

    def start(self) -> None:
        """Begin. Returns at once."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"supervise {self.name}")

    async def ready(self) -> None:
        """Wait until the engine is ready.

        Raises:
            LaunchError: the process ended, or did not start. It is being tried again: call again to go on waiting.
        """
        while self.state.state != "ready":
            if self.state.state == "down":
                raise LaunchError(f"{self.name}: {self.state.why}")
            await self._changed.wait()

    async def first_load(self) -> str | None:
        """Wait for the end of the first start: None when it was ready, else why it failed (`failed_first`)."""
        await self._first_over.wait()
        return self.failed_first

    async def changed(self) -> None:
        """Wait for the next change of `state`."""
        await self._changed.wait()

    def kill(self) -> None:
        """End the process at once, with what it started, for it hangs. It is started again."""
        if self._process is not None and not self._process.ended.done():
            self._process.signal_group(signal.SIGKILL)

    def is_gone(self) -> bool:
        """Whether no process runs now. Exact: asks the kernel rather than what was last heard."""
        return self._process is None or self._process.is_gone()

    async def stop(self) -> None:
        """End the engine and everything in its session: SIGTERM, and SIGKILL after the grace. May be called twice."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()
        self._say(Health("down", "stopped"))

    async def _run(self) -> None:
        pause = self._backoff[0]
        while True:
            began = time.monotonic()
            try:
                why = await self._one(self._command_for(self.port))
            except LaunchError as error:  # what is missing will not come by asking often
                self._fail(f"cannot be started: {error}")
                await asyncio.sleep(self._backoff[1])
                continue
            except OSError as error:
                why = f"cannot be started: {error}"
            if self.deployment_time and time.monotonic() - began - self.deployment_time > self._backoff[1]:
                pause = self._backoff[0]
            self._fail(why)
            await asyncio.sleep(pause)
            pause = min(2 * pause, self._backoff[1])
            self.restarts += 1

    def _fail(self, why: str) -> None:
        if not self._first_over.is_set():
            self.failed_first = why
            self._first_over.set()
        self._say(Health("down", why))

    async def _one(self, made: Command) -> str:
        """Run one process from start to end; returns how it ended."""
        self._say(Health("loading", "starting"))
        self._log.clear()
        self.deployment_time = None
        began = time.monotonic()
        try:
            process = await spawn(made.argv, made.env, self._log, made.descriptors)
        finally:
            for descriptor in made.descriptors:
                os.close(descriptor)
        self._process, self.pid = process, process.pid
        try:
            if await self._until_ready(process.ended, began):
                self.deployment_time = time.monotonic() - began
                self._first_over.set()
                self._say(Health("ready"))
            code = await asyncio.shield(process.ended)
        except asyncio.CancelledError:
            # Ask the whole group to end, and give its first process the grace to do so.
            process.signal_group(signal.SIGTERM)
            await asyncio.wait({process.ended}, timeout=self._grace)
            raise
        finally:
            # What the engine started ends with it; then nobody holds its output open, and its last words are read.
            process.signal_group(signal.SIGKILL)
            await asyncio.wait({process.ended})
            await process.close()
            self.pid = None
        return self._how(code)

    async def _until_ready(self, ended: asyncio.Future[int], began: float) -> bool:
        """Ask for health until it is ready; False when the process ended before."""
        told = 0.0
        while not ended.done():
            asking: asyncio.Future[Health] = asyncio.ensure_future(self._health())
            both: set[asyncio.Future[Any]] = {ended, asking}
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                if not ended.done() and asking.result().state == "ready":
                    return True
            finally:
                asking.cancel()
                await asyncio.wait({asking})
            so_far = time.monotonic() - began
            if so_far - told >= 1:
                told = so_far
                self.on_progress(so_far, self._log[-1] if self._log else "")
            await asyncio.wait({ended}, timeout=self._poll)
        return False

    def _how(self, code: int) -> str:
        """How the process ended, and what it said of that."""
        names = {known.value: known.name for known in signal.Signals}
        how = f"was ended by {names.get(-code, -code)}" if code < 0 else f"ended with exit code {code}"
        said = last_words(self.log, was_ready=self.deployment_time is not None)
        return f"{how}; {said}" if said else how

    def _say(self, health: Health) -> None:
        if health == self.state:
            return
        self.state = health
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        self.on_state(health)
