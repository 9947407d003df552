"""How vLLM would be started. A real one takes a minute to load and is another test's affair."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from engines import launch
from engines.launch import LaunchError
from engines.vllm_launch import Launch, command


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the package vllm were there."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: ModuleSpec(name, None))


@pytest.mark.usefixtures("installed")
def test_the_least_command_is_the_module_of_this_environment_on_loopback() -> None:
    made = command(Launch(model="Qwen/Qwen3-8B"), 8101, "")
    assert made.argv == (
        *(sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", "Qwen/Qwen3-8B", "--host", "127.0.0.1", "--port", "8101"),
    )
    assert "VLLM_API_KEY" not in made.env


@pytest.mark.usefixtures("installed")
def test_every_key_becomes_vllms_own_argument(tmp_path: Path) -> None:
    made = command(
        Launch(
            model=str(tmp_path),
            alias="tiny",
            slots=8,
            context=1024,
            dtype="bfloat16",
            tensor_parallel=2,
            gpu_memory=0.8,
            eager=True,
            tool_parser="hermes",
            arguments=["--swap-space", "0"],
            env={"TORCH_COMPILE_DISABLE": "1"},
        ),
        8101,
        "secret",
    )
    assert made.argv[4:] == (
        *("--model", str(tmp_path), "--host", "127.0.0.1", "--port", "8101"),
        *("--served-model-name", "tiny", "--max-num-seqs", "8", "--max-model-len", "1024", "--dtype", "bfloat16"),
        *("--tensor-parallel-size", "2", "--gpu-memory-utilization", "0.8", "--tool-call-parser", "hermes"),
        *("--enable-auto-tool-choice", "--enforce-eager", "--swap-space", "0"),
    )
    assert made.env["TORCH_COMPILE_DISABLE"] == "1"


@pytest.mark.usefixtures("installed")
def test_the_key_is_out_of_the_sight_of_ps() -> None:
    made = command(Launch(model="m"), 8101, "secret")
    assert made.env["VLLM_API_KEY"] == "secret"
    assert "secret" not in " ".join(made.argv)


@pytest.mark.usefixtures("installed")
def test_a_folder_that_is_not_there_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="there is no model folder"):
        command(Launch(model=str(tmp_path / "no")), 8101, "")


def test_without_the_package_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LaunchError, match=r"pip install 'enginehouse\[vllm\]'"):
        command(Launch(model="m"), 8101, "")


def test_vllm_is_launched_by_the_file_of_its_name() -> None:
    assert launch.launch_type("vllm") is Launch
