"""Engines as child processes: real, small ones, each with a real health route."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from engines import launch
from engines.contract import Health
from engines.launch import Command, LaunchError, Supervisor, free_port

ROOT = Path(__file__).parents[2]
SERVER = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/crash": os._exit(3)
        loading = os.path.exists("loading")
        self.send_response(503 if loading else 200); self.send_header("content-length", "0"); self.end_headers()
    def log_message(self, *arguments): pass
print("listening as", os.environ.get("WHO", "nobody"), flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


class Engine:
    """A small engine and its supervisor, with everything that the supervisor said."""

    def __init__(self, folder: Path, code: str = SERVER, **options: object) -> None:
        self.folder = folder
        self.said: asyncio.Queue[Health] = asyncio.Queue()
        self.states: list[str] = []
        self.code = textwrap.dedent(code)
        self.supervisor = Supervisor(
            "small",
            self.command,
            self.health,
            port=free_port(),
            on_state=self.hear,
            **{"poll": 0.01, "backoff": (0.01, 0.05), **options},  # type: ignore[arg-type]
        )

    def hear(self, health: Health) -> None:
        self.states.append(health.state)
        self.said.put_nowait(health)

    def command(self, port: int) -> Command:
        code = f"import os; os.chdir({str(self.folder)!r})\n{self.code}"
        return Command((sys.executable, "-c", code, str(port)), {"WHO": "the child"})

    async def get(self, path: str) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.supervisor.port)
        try:
            writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            return await reader.read()
        finally:
            writer.close()

    async def health(self) -> Health:
        try:
            answer = await self.get("/health")
        except OSError:
            return Health("down", "refuses")
        return Health("ready" if b" 200 " in answer else "loading")

    async def until(self, state: str) -> Health:
        while (health := await self.said.get()).state != state:
            pass
        return health


@asynccontextmanager
async def running(engine: Engine) -> AsyncIterator[Supervisor]:
    engine.supervisor.start()
    try:
        yield engine.supervisor
    finally:
        await engine.supervisor.stop()


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_an_engine_is_started_watched_and_ended(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    async with running(engine) as supervisor:
        assert supervisor.is_gone()
        await supervisor.ready()
        pid = supervisor.pid
        assert pid is not None
        assert not supervisor.is_gone()
        assert supervisor.deployment_time is not None
        assert supervisor.deployment_time > 0
        assert supervisor.log[0] == "listening as the child"
    assert supervisor.is_gone()
    assert not alive(pid)
    assert engine.states == ["loading", "ready", "down"]
    assert supervisor.restarts == 0


def until_dead(pid: int) -> None:
    """Wait for a process that was killed, and is perhaps not yet gone."""
    while alive(pid):
        os.sched_yield()


def test_the_same_holds_on_uvloop(tmp_path: Path) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def crash_and_stop() -> None:
        engine = Engine(tmp_path)
        async with running(engine) as supervisor:
            await supervisor.ready()
            await engine.get("/crash")
            assert (await engine.until("down")).why == "ended with exit code 3; its last words: listening as the child"
            await engine.until("ready")
            pid = supervisor.pid
            assert not supervisor.is_gone()
        assert pid is not None
        assert not alive(pid)
        assert supervisor.is_gone()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(crash_and_stop())


async def test_b16_a_long_load_is_no_failure_and_is_told(tmp_path: Path) -> None:
    (tmp_path / "loading").touch()
    told = asyncio.Event()
    engine = Engine(tmp_path, on_progress=lambda seconds, line: told.set())
    async with running(engine) as supervisor:
        await told.wait()
        assert supervisor.state.state == "loading"
        assert supervisor.deployment_time is None
        (tmp_path / "loading").unlink()
        await supervisor.ready()
    assert engine.states == ["loading", "ready", "down"]


async def test_a_crashed_engine_is_started_again_and_counted(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    async with running(engine) as supervisor:
        await supervisor.ready()
        first = supervisor.pid
        assert await engine.get("/crash") == b""
        down = await engine.until("down")
        assert down.why == "ended with exit code 3; its last words: listening as the child"
        await engine.until("ready")
        assert supervisor.restarts == 1
        assert supervisor.pid not in (None, first)


async def test_an_engine_that_was_killed_says_so(tmp_path: Path) -> None:
    engine = Engine(tmp_path, backoff=(60.0, 60.0))
    async with running(engine) as supervisor:
        await supervisor.ready()
        assert supervisor.pid is not None
        os.kill(supervisor.pid, signal.SIGKILL)
        assert (await engine.until("down")).why.startswith("was ended by SIGKILL")
        assert supervisor.is_gone()


async def test_gone_is_known_from_the_kernel_before_the_loop_has_heard_of_it(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    async with running(engine) as supervisor:
        await supervisor.ready()
        process = psutil.Process(supervisor.pid)
        assert not supervisor.is_gone()
        process.kill()
        until_dead(process.pid)  # without a turn of the loop: nobody can have told the supervisor
        assert supervisor.state.state == "ready"
        assert supervisor.is_gone()


async def test_an_engine_that_never_comes_up_fails_with_its_last_words(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "import sys; print('first'); sys.exit('no such model')", backoff=(60.0, 60.0))
    async with running(engine) as supervisor:
        with pytest.raises(
            LaunchError, match=r"^small: ended with exit code 1; its last words: (first \| )?no such mod"
        ):
            await supervisor.ready()
        assert supervisor.deployment_time is None


async def test_a_first_load_that_fails_is_told_and_a_later_success_takes_nothing_back(tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    engine = Engine(tmp_path, "if os.path.exists('broken'): raise SystemExit('no sense')\n" + SERVER)
    assert engine.supervisor.failed_first is None
    async with running(engine) as supervisor:
        assert await supervisor.first_load() == "ended with exit code 1; its last words: no sense"
        (tmp_path / "broken").unlink()
        await engine.until("ready")
        assert supervisor.failed_first is not None


async def test_a_first_load_that_succeeds_is_no_failure_after_a_crash(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    async with running(engine) as supervisor:
        assert await supervisor.first_load() is None
        await engine.get("/crash")
        await engine.until("down")
        assert supervisor.failed_first is None


async def test_what_can_never_start_is_said_once_and_tried_again_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    enough = asyncio.Event()
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            enough.set()
        await sleep(0)

    def refuse(port: int) -> Command:
        raise LaunchError("there is no model")

    monkeypatch.setattr("engines.launch.asyncio.sleep", note)
    engine = Engine(tmp_path, backoff=(1.0, 30.0))
    engine.supervisor._command_for = refuse
    async with running(engine) as supervisor:
        await enough.wait()
        assert pauses[:3] == [30.0, 30.0, 30.0]
        assert engine.states == ["down"]
        assert await supervisor.first_load() == "cannot be started: there is no model"
        assert supervisor.restarts == 0
        supervisor._command_for = engine.command
        await engine.until("ready")


async def test_a_command_that_cannot_be_made_or_run_is_a_failed_start(tmp_path: Path) -> None:
    def refuse(port: int) -> Command:
        raise LaunchError("there is no model")

    engine = Engine(tmp_path, backoff=(60.0, 60.0))
    engine.supervisor._command_for = refuse
    async with running(engine) as supervisor:
        with pytest.raises(LaunchError, match="small: cannot be started: there is no model"):
            await supervisor.ready()
    other = Engine(tmp_path, backoff=(60.0, 60.0))
    other.supervisor._command_for = lambda port: Command(("/no/such/program",))
    async with running(other) as supervisor:
        with pytest.raises(LaunchError, match="cannot run /no/such/program: No such file or directory"):
            await supervisor.ready()


async def test_pauses_between_starts_double_up_to_a_cap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep
    enough = asyncio.Event()

    async def note(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 4:
            enough.set()
        await sleep(0)

    monkeypatch.setattr("engines.launch.asyncio.sleep", note)
    engine = Engine(tmp_path, "raise SystemExit(1)", backoff=(1.0, 4.0))
    async with running(engine):
        await enough.wait()
    assert pauses[:4] == [1.0, 2.0, 4.0, 4.0]


async def test_an_engine_that_ignores_the_request_to_end_is_killed_after_the_grace(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" + SERVER, grace=0.05)
    async with running(engine) as supervisor:
        await supervisor.ready()
        pid = supervisor.pid
    assert pid is not None
    assert not alive(pid)


@pytest.mark.parametrize("end", ["stop", "crash"])
async def test_what_an_engine_started_ends_with_it(tmp_path: Path, end: str) -> None:
    worker = (
        "import subprocess, sys\nworker = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(999)'])\n"
    )
    engine = Engine(tmp_path, worker + "print('worker', worker.pid, flush=True)\n" + SERVER, backoff=(60.0, 60.0))
    async with running(engine) as supervisor:
        await supervisor.ready()
        pid = int(next(line for line in supervisor.log if line.startswith("worker")).split()[1])
        assert alive(pid)
        if end == "crash":
            await engine.get("/crash")
            await engine.until("down")
    await asyncio.to_thread(until_dead, pid)


async def test_stop_during_a_load_and_twice_is_fine(tmp_path: Path) -> None:
    (tmp_path / "loading").touch()
    engine = Engine(tmp_path)
    engine.supervisor.start()
    await engine.until("loading")
    await engine.supervisor.stop()
    await engine.supervisor.stop()
    assert engine.supervisor.is_gone()


async def test_the_log_is_bounded_in_lines_and_their_length(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "for n in range(500): print(n, 'x' * 100_000)\n" + SERVER, log_lines=20)
    async with running(engine) as supervisor:
        await supervisor.ready()
    assert len(supervisor.log) == 20
    assert max(map(len, supervisor.log)) <= 4096
    assert supervisor.log[-1] == "listening as the child"


async def test_a_health_question_that_hangs_does_not_hide_a_death(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "raise SystemExit(7)", backoff=(60.0, 60.0))
    asked = asyncio.Event()

    async def hang() -> Health:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    engine.supervisor._health = hang
    async with running(engine):
        assert (await engine.until("down")).why == "ended with exit code 7"
        assert asked.is_set()


PARENT = """
import asyncio, sys
sys.path.insert(0, {root!r})
from engines.contract import Health
from engines.launch import Command, Supervisor
async def health(): return Health("ready")
async def main():
    code = "import time; print('up', flush=True); time.sleep(999)"
    supervisor = Supervisor("s", lambda port: Command((sys.executable, "-c", code)), health, port=1)
    supervisor.start()
    await supervisor.ready()
    while not supervisor.log:
        await asyncio.sleep(0.01)
    print(supervisor.pid, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills a child with its parent")
def test_nothing_is_left_when_the_gateway_is_killed() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(root=str(ROOT))], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert parent.stdout is not None
    with parent:
        child = psutil.Process(int(parent.stdout.readline()))
        assert child.is_running()
        parent.kill()
        parent.wait()
    until_dead(child.pid)


def test_an_engine_is_launched_by_the_file_of_its_name() -> None:
    assert launch.launch_type("tgi") is None
    assert launch.launch_type("../x") is None
    made = launch.launch_type("llamacpp")
    assert made is not None
    assert made.__name__ == "Launch"
    with pytest.raises(LaunchError, match="tgi cannot be started by this version"):
        launch.command("tgi", made(model="m"), 1, "")


def test_a_free_port_is_free() -> None:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", free_port()))
