"""What the router may not bring with it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import router
from router import policies

PACKAGE = Path(router.__file__).parent
FOREIGN = {"httpx", "aiohttp", "tritonclient", "grpc", "llama_cpp", "litestar", "asyncio", "gateway", "numpy"}
IMPURE = {"time", "random", "asyncio", "datetime", "secrets", "os", "socket", "threading", "uuid"}


def test_importing_the_router_and_all_policies_loads_no_engine_client_and_no_event_loop() -> None:
    program = (
        "import sys, router, router.explain; from router import policies;"
        "[policies.build(name) for name in policies.names()];"
        f"print(sorted(set(sys.modules) & {FOREIGN!r}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_nothing_in_the_router_reads_a_clock_draws_at_random_or_does_io() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            roots = {name.split(".")[0] for name in names}
            assert not roots & IMPURE, path
            assert not any(name.startswith("gateway") for name in names), path


def test_every_objective_is_a_policy_that_builds() -> None:
    for name in policies.names():
        assert policies.build(name).name == name
