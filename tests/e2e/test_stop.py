"""How the gateway starts and stops, as its operator sees it: in words, and without a traceback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.vllm import FakeVllm

ROOT = Path(__file__).parents[2]


class Process:
    """A gateway with its output, line by line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said: list[str] = []

    async def until(self, text: str) -> str:
        """Read on to the line that holds `text`."""
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            while line := (await self.process.stdout.readline()).decode():
                self.said.append(line)
                if text in line:
                    return line
        raise AssertionError(f"{text!r} was not said, but: {''.join(self.said)}")

    async def rest(self) -> tuple[int, str]:
        """Wait for its end: exit code, and everything that it said."""
        async with asyncio.timeout(60):
            out, _ = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, "".join(self.said) + out.decode()


@contextlib.asynccontextmanager
async def serving(folder: Path, url: str, port: int = 0, *, dead: bool = False) -> AsyncIterator[Process]:
    endpoints: list[dict[str, object]] = [{"name": "a", "engine": "vllm", "url": url}]
    if dead:
        endpoints.append({"name": "b", "engine": "vllm", "url": "http://127.0.0.1:1"})
    async with started(folder, endpoints, port) as process:
        yield process


@contextlib.asynccontextmanager
async def started(folder: Path, endpoints: list[dict[str, object]], port: int = 0) -> AsyncIterator[Process]:
    config = folder / "gateway.yaml"
    config.write_text(json.dumps({"listen": {"port": port}, "pools": [{"model": "m", "endpoints": endpoints}]}))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway.cli", "serve", str(config)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        yield Process(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def stream(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Begin a stream, and read to its first token."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}]}).encode()
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    await reader.readuntil(b'"content":"')
    return reader, writer


def port_of(line: str) -> int:
    return int(line.rsplit(":", 1)[1].split("/")[0])


@pytest.mark.parametrize("signals", [1, 2])
async def test_a_stop_lets_streams_end_and_a_second_one_cuts_them_off_with_an_error(
    tmp_path: Path, signals: int
) -> None:
    async with FakeVllm(text="Hello you", pause_at=3) as fake, serving(tmp_path, fake.url) as gateway:
        reader, writer = await stream(port_of(await gateway.until("base URL")))
        gateway.process.send_signal(signal.SIGINT)
        assert "Finishing 1 call, 30 s at most" in await gateway.until("Finishing")
        if signals == 2:
            gateway.process.send_signal(signal.SIGINT)
        else:
            fake.gate.set()
        rest = await reader.read()
        writer.close()
        code, said = await gateway.rest()

    assert code == 0
    assert "Traceback" not in said and "Unclosed" not in said
    if signals == 2:
        assert b'"error":{"message":"This gateway is shutting down' in rest
        assert b"[DONE]" not in rest and b'"finish_reason":"stop"' not in rest
        assert said.rstrip().endswith("Stopped; 1 call cut off.")
        assert fake.peer_gone.is_set()
    else:
        assert b"data: [DONE]" in rest
        assert said.rstrip().endswith("Stopped.")


async def test_a_stop_without_calls_says_so_and_nothing_else(tmp_path: Path) -> None:
    async with FakeVllm() as fake, serving(tmp_path, fake.url) as gateway:
        await gateway.until("print(answer")
        for _ in range(2):
            gateway.process.send_signal(signal.SIGINT)
        code, said = await gateway.rest()

    assert code == 0
    assert said.rstrip().endswith("Stopped.") and "Finishing" not in said
    assert "Traceback" not in said and "Unclosed" not in said


async def test_a_taken_port_is_told_in_words_before_anything_is_started(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with FakeVllm() as fake, serving(tmp_path, fake.url, port) as gateway:
            code, said = await gateway.rest()
            assert not fake.requests

    assert (code, said) == (
        2,
        f"enginehouse: 127.0.0.1:{port} is in use; choose another with --port or `listen:`\n",
    )


async def test_the_banner_names_endpoints_that_cannot_take_calls(tmp_path: Path) -> None:
    async with FakeVllm() as fake, serving(tmp_path, fake.url, dead=True) as gateway:
        await gateway.until("Enginehouse is ready.")
        assert (
            await gateway.until("can take no calls yet")
            == "1 of 2 endpoints can take no calls yet; they are being tried:\n"
        )
        assert "b: The engine could not be reached: connection refused" in await gateway.until("  b:")


async def test_nothing_is_called_ready_while_no_endpoint_is(tmp_path: Path) -> None:
    async with serving(tmp_path, "http://127.0.0.1:1") as gateway:
        await gateway.until("1 of 1 endpoints can take no calls yet")
        gateway.process.send_signal(signal.SIGINT)
        code, said = await gateway.rest()

    assert code == 0
    assert "ready" not in said.lower().replace("no_ready", "")


async def test_where_the_only_engine_fails_at_its_first_load_the_gateway_says_why_and_ends(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + b"no more of a model than this")
    launched: dict[str, object] = {"name": "cpu-0", "engine": "llamacpp", "launch": {"model": str(broken)}}
    async with started(tmp_path, [launched]) as gateway:
        code, said = await gateway.rest()

    assert code == 2
    assert "enginehouse: nothing can be served: cpu-0 " in said
    assert "ready" not in said.lower()
