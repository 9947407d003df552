"""One child process in a group of its own: what it writes, when it ended, and ending it with all that it started."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

__all__ = ["Process", "spawn"]

_SHIM = Path(__file__).with_name("child.py")
_LINE = 4096  # characters of a log line that are kept


class Process(asyncio.SubprocessProtocol):
    """A running program. Made by `spawn`.

    Attributes:
        pid: of the program, and of its group.
        ended: its exit code, or the negative number of the signal that ended it.
        closed: done when it has ended and nobody holds its output open.
    """

    def __init__(self, log: collections.deque[str]) -> None:
        loop = asyncio.get_running_loop()
        self.pid = 0
        self.ended: asyncio.Future[int] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self._log = log
        self._rest = b""
        self._transport: asyncio.SubprocessTransport | None = None

    def is_gone(self) -> bool:
        """Whether it has ended, asked of the kernel: the loop may not have heard of it yet."""
        if self.ended.done():
            return True
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # somebody has reaped it
            return True

    def signal_group(self, number: signal.Signals) -> None:
        """Signal the program and whatever it started, as far as that is left."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    async def close(self) -> None:
        """After its end: read its last words, for a second at most, and give its pipes back."""
        await asyncio.wait({self.closed}, timeout=1)
        if self._transport is not None:
            self._transport.close()
        await asyncio.wait({self.closed})

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)  # uvloop's is no subclass of it
        self.pid = self._transport.get_pid()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-_LINE:]
        self._keep(*lines)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._keep(self._rest)
        self._rest = b""

    def process_exited(self) -> None:
        assert self._transport is not None
        self.ended.set_result(self._transport.get_returncode() or 0)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set_result(None)

    def _keep(self, *lines: bytes) -> None:
        self._log.extend(line[:_LINE].decode("utf-8", "replace").rstrip() for line in lines if line.strip())


async def spawn(
    argv: Sequence[str], env: Mapping[str, str], log: collections.deque[str], descriptors: Sequence[int] = ()
) -> Process:
    """Start a program that dies with this process. Its output goes to `log`, line by line.

    `env` is added to the environment; `descriptors` are open files that it inherits under the same numbers. Raises
    OSError where no process can be made; a program that is not there ends at once with exit code 1, and says so.
    """
    _, process = await asyncio.get_running_loop().subprocess_exec(
        lambda: Process(log),
        *(sys.executable, "-I", "-S", str(_SHIM), str(os.getpid())),
        *argv,
        stdin=subprocess.PIPE,  # never written: its end tells the child that we are gone, on any system
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **env},
        pass_fds=tuple(descriptors),
        start_new_session=True,
    )
    return process
