"""What a benchmark run consists of: the mock engine, nginx and the gateway beside each other, and their CPU time."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

__all__ = ["ENGINE_CPU", "GATEWAY_CPU", "Proxy", "bench", "cpu_seconds", "load"]

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
GATEWAY_CPU, ENGINE_CPU = 0, 1

NGINX = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/nginx.err;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_buffer_size 64k;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  upstream engines {{ server 127.0.0.1:{one}; server 127.0.0.1:{two}; keepalive 128; }}
  server {{ listen 127.0.0.1:{port};
    location / {{ proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection "";
                  proxy_buffering off; }} }}
}}
"""

CONFIG = """
listen: {{port: {port}}}
log: {{level: info, format: json}}
pools:
  - model: public
    policy: least_requests
    endpoints:
      - {{name: one, engine: vllm, url: "http://127.0.0.1:{one}", model: upstream}}
      - {{name: two, engine: vllm, url: "http://127.0.0.1:{two}", model: upstream}}
"""


class Proxy:
    """Something that stands before the engines: its address and the process whose CPU time counts."""

    def __init__(self, name: str, port: int, process: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.url = f"http://127.0.0.1:{port}"
        self.process = process

    def pss_mb(self) -> float:
        return sum(p.memory_full_info().pss for p in _tree(self.process.pid)) / 2**20


def _tree(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def cpu_seconds(pid: int) -> float:
    """CPU time of the process tree, from the scheduler's own nanoseconds (the usual figures have ticks of 10 ms)."""
    total = 0
    for process in _tree(pid):
        for task in Path(f"/proc/{process.pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def load(url: str, mode: str, **options: int) -> dict[str, float]:
    """Run the load client on the engines' core. Raises AssertionError where a request failed."""
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = ["taskset", "-c", str(ENGINE_CPU), sys.executable, str(HERE / "load.py"), url, mode, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seen: dict[str, float] = json.loads(done.stdout)
    assert seen["errors"] == 0, f"{url}: {seen}"
    return seen


@contextlib.contextmanager
def bench(folder: Path) -> Iterator[tuple[Proxy, Proxy, str]]:
    """Start everything, each pinned to its core: (nginx, the gateway, the engine's own URL)."""
    for tool, how in (("nginx", "apt-get install nginx-light"), ("gcc", "apt-get install gcc"), ("taskset", "")):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool} here{f' ({how})' if how else ''}")
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two cores are needed: one for the gateway, one for engine and client")
    one, two, nginx, gateway = (_free_port() for _ in range(4))
    engine = folder / "engine"
    subprocess.run(["gcc", "-O2", "-o", str(engine), str(HERE / "engine.c")], check=True)
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, one=one, two=two, port=nginx))
    (folder / "gateway.yaml").write_text(CONFIG.format(one=one, two=two, port=gateway))
    with contextlib.ExitStack() as stack:
        stack.enter_context(_running(ENGINE_CPU, [str(engine), str(one), str(two)], folder))
        beside = stack.enter_context(_running(GATEWAY_CPU, ["nginx", "-c", str(folder / "nginx.conf")], folder))
        ours = [sys.executable, "-m", "gateway.cli", "serve", str(folder / "gateway.yaml")]
        ourselves = stack.enter_context(_running(GATEWAY_CPU, ours, folder))
        for url in (f"http://127.0.0.1:{one}/health", f"http://127.0.0.1:{nginx}/health"):
            _wait_for(url)
        _wait_for(f"http://127.0.0.1:{gateway}/ready")
        yield Proxy("nginx", nginx, beside), Proxy("enginehouse", gateway, ourselves), f"http://127.0.0.1:{one}"


@contextlib.contextmanager
def _running(cpu: int, command: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / f"{Path(command[0]).name}.log").open("wb") as log:
        process = subprocess.Popen(["taskset", "-c", str(cpu), *command], stdout=log, stderr=log, cwd=ROOT)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(20)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(url: str, seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(url, timeout=1) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            if time.monotonic() > until:
                raise
        time.sleep(0.05)
