"""llama.cpp's command line, and the prebuilt server for real, with a tiny model."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from engines import llamacpp_launch
from engines.contract import Health
from engines.launch import Command, LaunchError, Supervisor, free_port
from engines.llamacpp_launch import Launch, check_gguf, command, default_threads, has_xllamacpp
from tests.tiny_gguf import write


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write(tmp_path_factory.mktemp("model") / "tiny.gguf"))


@pytest.fixture
def binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A program of the name `llama-server`, alone on PATH."""
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return str(program)


def test_the_binary_on_the_path_is_run_on_loopback_with_its_key_out_of_sight(tiny: str, binary: str) -> None:
    made = command(
        Launch(model=tiny, slots=2, context=512, threads=3, alias="m", arguments=["--no-mmap"]), 99, "secret"
    )
    assert made.argv[0] == binary
    words = list(made.argv)
    told = {key: words[words.index(key) + 1] for key in ("--host", "--port", "--parallel", "--ctx-size", "--threads")}
    assert told == {"--host": "127.0.0.1", "--port": "99", "--parallel": "2", "--ctx-size": "1024", "--threads": "3"}
    assert {"--metrics", "--slots", "--jinja"} <= set(words)
    assert words[-1] == "--no-mmap"
    assert "secret" not in " ".join(words)
    assert made.env == {"LLAMA_API_KEY": "secret"}


def test_a_named_binary_that_is_not_there_is_told(tiny: str) -> None:
    with pytest.raises(LaunchError, match="there is no program /no/llama-server"):
        command(Launch(model=tiny, binary="/no/llama-server"), 1, "")


def test_without_any_server_both_ways_to_get_one_are_told(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(llamacpp_launch, "has_xllamacpp", lambda: False)
    with pytest.raises(LaunchError, match=r"`llama-server` on PATH.*`/.*python.* -m pip install xllamacpp`"):
        command(Launch(model=tiny), 1, "")


def test_arguments_for_a_binary_are_not_dropped_where_there_is_none(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(llamacpp_launch, "has_xllamacpp", lambda: True)
    with pytest.raises(LaunchError, match="`arguments` are for a llama-server binary"):
        command(Launch(model=tiny, arguments=["--x"]), 1, "")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not a GGUF file"),
        (b"version https://git-lfs", "not a GGUF file"),
        (b"GGUF", "of a version that"),
        (b"GGUF\x09\0\0\0", "of a version that"),
        (None, "cannot be read: No such file"),
    ],
)
def test_what_is_no_model_is_refused_before_anything_starts(tmp_path: Path, content: bytes | None, why: str) -> None:
    file = tmp_path / "m.gguf"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(LaunchError, match=why):
        check_gguf(str(file))


def test_threads_leave_a_core_free(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, usable, want in ((8, 8, 7), (8, 2, 1), (1, 1, 1), (64, 128, 16)):
        monkeypatch.setattr(psutil, "cpu_count", lambda logical, cores=cores: cores)
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, usable=usable: set(range(usable)))
        monkeypatch.setattr(llamacpp_launch, "_quota", lambda: 1024)
        assert default_threads() == want


def test_the_tiny_model_is_the_same_every_time(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a"), write(tmp_path / "b")
    assert first.read_bytes() == second.read_bytes()
    assert write(tmp_path / "c", seed=1).read_bytes() != first.read_bytes()


async def ask(port: int, path: str, key: str = "", body: object = None) -> tuple[int, Any]:
    """One HTTP call: status and decoded JSON."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    content = b"" if body is None else json.dumps(body).encode()
    lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", "Host: x", "Connection: close"]
    lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    lines += [f"Authorization: Bearer {key}"] if key else []
    writer.write("\r\n".join([*lines, "", ""]).encode() + content)
    head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    text = answer.decode()
    return int(head.split()[1]), json.loads(text) if text.startswith(("{", "[")) else text


@pytest.mark.real
async def test_the_prebuilt_server_serves_takes_only_its_key_and_ends(
    tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_xllamacpp():
        pytest.skip("the package xllamacpp is not installed (pip install xllamacpp)")
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable))
    port = free_port()

    async def health() -> Health:
        try:
            status, _ = await ask(port, "/health")
        except OSError:
            return Health("down")
        return Health("ready" if status == 200 else "loading")

    launch = Launch(model=tiny, slots=2, context=512, threads=1, alias="tiny")
    supervisor = Supervisor("real", lambda port: command(launch, port, "k-1"), health, port=port)
    supervisor.start()
    try:
        await supervisor.ready()
        body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
        assert (await ask(port, "/v1/chat/completions", "", body))[0] == 401
        status, answer = await ask(port, "/v1/chat/completions", "k-1", body)
        assert (status, answer["model"], answer["usage"]["completion_tokens"]) == (200, "tiny", 4)
        _, properties = await ask(port, "/props", "k-1")
        assert (properties["total_slots"], properties["default_generation_settings"]["n_ctx"]) == (2, 512)
        assert "llamacpp:tokens_predicted_total" in (await ask(port, "/metrics", "k-1"))[1]
        assert len((await ask(port, "/slots", "k-1"))[1]) == 2
        assert supervisor.deployment_time is not None
        pid = supervisor.pid
    finally:
        await supervisor.stop()
    assert pid is not None
    assert not psutil.pid_exists(pid)


@pytest.mark.real
async def test_the_prebuilt_server_ends_when_its_standard_input_does(tiny: str) -> None:
    if not has_xllamacpp():
        pytest.skip("the package xllamacpp is not installed (pip install xllamacpp)")
    server = Path(llamacpp_launch.__file__).with_name("xllamacpp_server.py")
    made = Command((sys.executable, "-P", str(server), "--model", tiny, "--port", str(free_port())))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *made.argv, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.STDOUT
    )
    assert process.stdin is not None
    assert process.stdout is not None
    while b"serving at" not in (line := await process.stdout.readline()):
        assert line, "the server ended before it served"
    process.stdin.close()
    await process.communicate()
    assert process.returncode == 0


@pytest.mark.real
async def test_a_model_that_llama_cpp_cannot_load_is_told_by_the_fault_and_not_by_the_cleaning_up_after_it(
    tmp_path: Path,
) -> None:
    if not has_xllamacpp():
        pytest.skip("the package xllamacpp is not installed (pip install xllamacpp)")
    file = tmp_path / "broken.gguf"
    file.write_bytes(b"GGUF\x03\0\0\0" + bytes(64))

    async def health() -> Health:
        return Health("down")

    server = str(Path(llamacpp_launch.__file__).with_name("xllamacpp_server.py"))
    made = Command((sys.executable, "-P", server, "--model", str(file), "--port", str(free_port())))
    supervisor = Supervisor("broken", lambda port: made, health, port=1, backoff=(60.0, 60.0))
    supervisor.start()
    try:
        with pytest.raises(LaunchError, match=r"code 1; it said: .*error loading model: unknown model architecture"):
            await supervisor.ready()
    finally:
        await supervisor.stop()
