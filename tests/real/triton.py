"""A real Triton for the tests: NVIDIA's binary out of the wheel `nvidia-pytriton`, on the models in `triton_models/`.

Nothing of pytriton itself runs. The wheel holds `tritonserver` 2.51, its Python backend and one stub for each minor
version of Python; it is unpacked once into `.setup/triton` (run this file to do that ahead of the tests). The stub of
the running Python's version is used, so that the models can import xllamacpp from the environment that the tests run
in. What is missing on a machine is said by name in `Unavailable`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes.util
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any
from urllib.request import urlopen

__all__ = ["MODELS", "Ears", "Triton", "Unavailable", "install"]

WHEEL = "nvidia-pytriton==0.7.0"
NUMPY = "numpy==1.26.4"  # the stub was compiled for numpy 1; with numpy 2 it misreads every buffer
MODELS = Path(__file__).parent / "triton_models"
FOLDER = Path(__file__).parents[2] / ".setup" / "triton"
READY_WITHIN = 60.0


class Unavailable(Exception):
    """Triton cannot run here; the text says why."""


def install(folder: Path = FOLDER) -> Path:
    """Unpack the wheel into `folder` unless it is there; returns where.

    Raises Unavailable where this machine cannot run it, or the wheel cannot be had.
    """
    _check_machine()
    done = folder / ".done"
    if not done.exists():
        _pip(folder, WHEEL)
        _pip(folder / "numpy1", NUMPY)
        done.touch()
    _python(folder)
    return folder


def _pip(target: Path, what: str) -> None:
    """Install a wheel without what it depends on, so that nothing is built and nothing else changes."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--only-binary", ":all:", "--upgrade"]
    command += ["--disable-pip-version-check", "--target", str(target), what]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    if tried.returncode:
        raise Unavailable(f"{what} cannot be had: {(tried.stderr.strip().splitlines() or ['?'])[-1]}")


def _check_machine() -> None:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise Unavailable("the prebuilt Triton is for Linux on x86-64 only")
    name, version = platform.libc_ver()
    if name != "glibc" or tuple(map(int, version.split(".")[:2])) < (2, 35):
        raise Unavailable(f"the prebuilt Triton needs glibc 2.35 or newer; here is {name or 'another libc'} {version}")


def _python(folder: Path) -> tuple[Path, dict[str, str]]:
    """The stub for this Python, and what it needs to find the interpreter's library and its standard library."""
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = folder / "pytriton/tritonserver/python_backend_stubs" / minor / "triton_python_backend_stub"
    if not stub.exists():
        raise Unavailable(f"the wheel has no Python backend for Python {minor}")
    name = f"libpython{minor}.so.1.0"
    own = Path(sysconfig.get_config_var("LIBDIR") or "")
    libraries = [str(folder / "nvidia_pytriton.libs")]
    if (own / name).exists():
        libraries.append(str(own))
        programs = str(Path(sys.base_prefix) / "bin")
    elif ctypes.util.find_library(f"python{minor}") and Path(f"/usr/bin/python{minor}").exists():
        programs = "/usr/bin"
    else:
        raise Unavailable(f"{name} is missing (Debian and Ubuntu: apt-get install libpython{minor})")
    # The library looks for its standard library from `python3` on PATH; the two must be of one version.
    return stub, {"LD_LIBRARY_PATH": os.pathsep.join(libraries), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


class Triton:
    """One running tritonserver on free ports of the loopback interface, in a process group of its own.

    Args:
        repository: folder in `triton_models/`. ears: where models tell what they see.
        environment: more variables for the models.
    """

    def __init__(self, repository: str, ears: Ears, **environment: str) -> None:
        self._repository = MODELS / repository
        self._environment = {**environment, "TRITON_TEST_SOCKET": ears.address}
        self._folder = Path(tempfile.mkdtemp(prefix="triton-"))
        self._process: subprocess.Popen[bytes] | None = None
        self.http_port, self.grpc_port, self.metrics_port = _free_ports(3)

    @property
    def grpc(self) -> str:
        return f"grpc://127.0.0.1:{self.grpc_port}"

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text("utf-8", "replace")

    def start(self) -> None:
        """Start the server and wait until it is ready. Raises Unavailable, or RuntimeError with the end of its log."""
        folder = install()
        stub, found = _python(folder)
        home = folder / "pytriton" / "tritonserver"
        backends = self._folder / "backends"
        shutil.copytree(home / "backends" / "python", backends / "python")
        shutil.copy(stub, backends / "python")
        for program in (home / "bin" / "tritonserver", backends / "python" / stub.name):
            program.chmod(0o755)
        path = [str(MODELS / "shared"), str(folder / "numpy1"), sysconfig.get_path("platlib")]
        environment = {**os.environ, **found, **self._environment, "TRITON_TEST_PATH": os.pathsep.join(path)}
        options = {
            "model-repository": self._repository,
            "backend-directory": backends,
            "http-address": "127.0.0.1",
            "http-port": self.http_port,
            "grpc-address": "127.0.0.1",
            "grpc-port": self.grpc_port,
            "metrics-address": "127.0.0.1",
            "metrics-port": self.metrics_port,
            "backend-config": f"python,shm-region-prefix-name=t{os.getpid()}-{self.http_port}",
            "exit-timeout-secs": 3,
        }
        command = [home / "bin" / "tritonserver", *(f"--{name}={value}" for name, value in options.items())]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [*map(str, command), "--disable-auto-complete-config"],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._wait_ready()

    def kill(self) -> None:
        """End it as a crash would: at once, with everything that it started."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def stop(self) -> None:
        """End it, and leave nothing behind."""
        if self._process is not None:
            self._signal(signal.SIGTERM)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._signal(signal.SIGKILL)
                self._process.wait()
            self._signal(signal.SIGKILL)  # stubs that outlived it
            self._process = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _wait_ready(self) -> None:
        assert self._process is not None
        waiting = 0.0
        while waiting < READY_WITHIN and self._process.poll() is None:
            try:
                with urlopen(f"{self.http}/v2/health/ready", timeout=2):
                    return
            except OSError:
                pass  # not yet
            try:
                self._process.wait(0.1)
            except subprocess.TimeoutExpired:
                waiting += 0.1
        tail = self.log[-3000:]
        self.stop()
        raise RuntimeError(f"tritonserver did not come up:\n{tail}")


class Ears:
    """Hears what the models tell: one datagram for each thing that they saw. Usable while a loop runs."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="ears-")
        self.address = str(Path(self._folder) / "socket")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self._socket.bind(self.address)
        self._socket.setblocking(False)

    async def hear(self, event: str, **facts: Any) -> dict[str, Any]:
        """The next thing told that is this event with these facts; others are passed over."""
        loop = asyncio.get_running_loop()
        while True:
            said: dict[str, Any] = json.loads(await loop.sock_recv(self._socket, 1 << 20))
            if said["event"] == event and all(said.get(name) == value for name, value in facts.items()):
                return said

    def forget(self) -> None:
        """Drop what was told so far."""
        try:
            while True:
                self._socket.recv(1 << 20)
        except BlockingIOError:
            pass

    def close(self) -> None:
        self._socket.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


if __name__ == "__main__":
    try:
        print(f"Triton is in {install()}")
    except Unavailable as reason:
        print(f"note: no real Triton here: {reason}", file=sys.stderr)
