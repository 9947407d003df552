"""Clients that people use, unchanged, through the real gateway: Node's SDK, LangChain, LiteLLM, Open WebUI's requests.

Each script of `clients/` runs with its library in an environment of its own, made by `deploy/setup.sh clients`, against
a real llama.cpp with the embedded default model, and against a vLLM that is a fake where tools are called and pictures
looked at. Where an engine refuses a feature by its documentation, the script demands a clear refusal.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from gateway.key_file import add_key
from tests.e2e.conftest import MODEL
from tests.e2e.harness import ROOT, Gateway, running
from tests.fakes.obliging import ObligingVllm

HERE = Path(__file__).with_name("clients")
PYTHON = ROOT / ".venv-clients" / "bin" / "python"
NODE_MODULES = ROOT / ".setup" / "node"
SECONDS = 240


class Client(NamedTuple):
    """A script, what runs it, the file whose absence skips it, and how many checks it makes at least."""

    command: tuple[str, ...]
    needs: Path | None
    checks: int


CLIENTS = {
    "node": Client(("node", str(HERE / "node_checks.mjs")), NODE_MODULES / "node_modules" / "openai", 25),
    "langchain": Client((str(PYTHON), str(HERE / "langchain_checks.py")), PYTHON.parents[1] / ".ready", 20),
    "litellm": Client((str(PYTHON), str(HERE / "litellm_checks.py")), PYTHON.parents[1] / ".ready", 18),
    "openwebui": Client((sys.executable, str(HERE / "openwebui_checks.py")), None, 16),
}

LLAMACPP_REFUSES = ("tools", "images")
"""SmolLM2's template knows no tools, and the model has no eyes (README, "Clients")."""


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Client:
    found = CLIENTS[request.param]
    if found.command[0] == "node" and shutil.which("node") is None:
        pytest.skip("node is not installed, so the official Node SDK is not tested")
    if found.needs is not None and not found.needs.exists():
        pytest.skip(f"{found.needs.relative_to(ROOT)} is not there (bash deploy/setup.sh clients)")
    return found


async def passes(client: Client, gateway: Gateway, model: str, *, key: str = "", refuses: tuple[str, ...] = ()) -> None:
    """Run the script, and demand that each of its checks passed and that each refusal was seen."""
    options = [*(("--key", key) if key else ()), "--refuses", ",".join(refuses)]
    process = await asyncio.create_subprocess_exec(
        *client.command,
        gateway.base_url,
        model,
        *options,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "NODE_CHECKS_MODULES": str(NODE_MODULES)},
    )
    try:
        async with asyncio.timeout(SECONDS):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    report = f"{out.decode()}{err.decode()[-4_000:]}\n{gateway.log_text()[-4_000:]}"
    lines = out.decode().splitlines()
    assert process.returncode == 0 and not any(line.startswith("FAIL") for line in lines), report
    # A script that checked nothing would end with 0 as well.
    assert sum(line.startswith("ok ") for line in lines) >= client.checks, report
    told = [line.rpartition("refused as documented: ")[2] for line in lines if "refused as documented" in line]
    assert all(any(feature in line for line in told) for feature in refuses), report


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_the_client_is_served_whole_by_the_embedded_default(client: Client, embedded: Gateway) -> None:
    await passes(client, embedded, MODEL, refuses=LLAMACPP_REFUSES)


@pytest.mark.timeout(300)
async def test_the_client_is_served_whole_by_vllm_with_tools_pictures_and_keys(client: Client, tmp_path: Path) -> None:
    key = add_key(tmp_path / "keys.yaml", "client")
    async with ObligingVllm(text="Red, green and blue: 빨강, 초록, 파랑 🎨.") as fake:
        endpoint = {"name": "vllm-0", "engine": "vllm", "url": fake.url, "model": fake.model}
        config = {"auth": {"keys": "keys.yaml"}, "pools": [{"model": "public-name", "endpoints": [endpoint]}]}
        with ExitStack() as stack:
            # The gateway waits for its engine, which runs on this loop.
            gateway = await asyncio.to_thread(stack.enter_context, running(tmp_path, config))
            await passes(client, gateway, "public-name", key=key)
