"""Every guard of `guards.py` is taken out of a copy of the tree, one at a time, and its test must fail there."""

from __future__ import annotations

import compileall
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from tests.guards.guard import Guard
from tests.guards.guards import GUARDS, IDS

ROOT = Path(__file__).parents[2]
PACKAGES = ("engines", "router", "gateway", "tests")
FAILED = 1  # pytest's exit code where tests failed; broken code, no tests and misuse have others
SECONDS = 20  # for a test that hangs where its guard is missing

Ran = subprocess.CompletedProcess[str]


def label(guard: Guard) -> str:
    return f"{guard.report}-{guard.file}-{GUARDS.index(guard)}"


def test_every_report_has_a_guard() -> None:
    assert {guard.report for guard in GUARDS} == set(IDS)


@pytest.mark.parametrize("guard", GUARDS, ids=label)
def test_every_guard_stands_where_the_table_says(guard: Guard) -> None:
    assert (ROOT / guard.file).read_text("utf-8").count(guard.find) == 1
    assert guard.find != guard.instead
    for node in guard.test.split(" tests/"):
        file, _, name = node.removeprefix("tests/").partition("::")
        name = name.partition("[")[0]
        assert re.search(rf"def {name}\(", (ROOT / "tests" / file).read_text("utf-8")), node


def tracked() -> list[str]:
    """The files of the tree, without what was made from them."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode == 0:
        return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    found = [ROOT / "pyproject.toml", *(file for package in PACKAGES for file in (ROOT / package).rglob("*"))]
    return [str(file.relative_to(ROOT)) for file in found if file.is_file() and "__pycache__" not in file.parts]


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree, compiled once for all."""
    copy = tmp_path_factory.mktemp("pristine")
    for name in tracked():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name)
    for package in PACKAGES:
        compileall.compile_dir(copy / package, quiet=2)
    # And collected once, so that pytest's own form of the tests is at hand, and every test's name is known to be right.
    nodes = sorted({node for guard in GUARDS for node in _nodes(guard)})
    collected = pytest_in(copy, "--collect-only", "-q", *nodes)
    assert collected.returncode == 0, collected.stdout + collected.stderr
    return copy


def tried(pristine: Path, folder: Path, guard: Guard) -> Ran:
    """Run the guard's test where the guard is missing."""
    copy = folder / "tree"
    shutil.copytree(pristine, copy)
    file = copy / guard.file
    file.write_text(file.read_text("utf-8").replace(guard.find, guard.instead), "utf-8")
    Path(cache_from_source(str(file))).unlink(missing_ok=True)
    ran = pytest_in(copy, "-x", "-q", f"--timeout={SECONDS}", *_nodes(guard))
    shutil.rmtree(copy)
    return ran


def pytest_in(folder: Path, *arguments: str) -> Ran:
    """Run pytest in a process of its own, with the plugins that the tests need and no other: they take long to load."""
    plugins = ("-p", "pytest_asyncio.plugin", "-p", "pytest_timeout", "-p", "no:cacheprovider", "--tb=native")
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    command = [sys.executable, "-m", "pytest", *plugins, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, env=env, check=False)


def _nodes(guard: Guard) -> list[str]:
    return ["tests/" + node.removeprefix("tests/") for node in guard.test.split(" tests/")]


@pytest.fixture(scope="session")
def trials(
    request: pytest.FixtureRequest, pristine: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Guard, Future[Ran]]]:
    """The trials of the guards that this session tries, some at a time."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    guards = [
        item.callspec.params["guard"] for item in items if item.originalname == test_without_it_its_test_fails.__name__
    ]
    with ThreadPoolExecutor((os.cpu_count() or 1) + 1) as pool:  # some wait for what does not come
        yield {guard: pool.submit(tried, pristine, tmp_path_factory.mktemp("guard"), guard) for guard in guards}


@pytest.mark.slow
@pytest.mark.timeout(0)  # a trial has a limit of its own, and waits its turn
@pytest.mark.parametrize("guard", GUARDS, ids=label)
def test_without_it_its_test_fails(guard: Guard, trials: dict[Guard, Future[Ran]]) -> None:
    ran = trials[guard].result()
    assert ran.returncode == FAILED, f"exit code {ran.returncode}\n{ran.stdout[-3000:]}{ran.stderr[-2000:]}"
