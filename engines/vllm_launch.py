"""How to start vLLM: its OpenAI server from the same Python environment, as a module.

As a module and not as `vllm serve`, because builds of other distribution names lack that command's package metadata.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Annotated

import msgspec

from engines.launch import Command, LaunchError
from engines.paths import ModelName

__all__ = ["Launch", "command"]

_OFFLINE = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


class Launch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to start it. What is left out, vLLM decides.

    Attributes:
        model: by its name at the hub, or a folder (beginning with `.`, `/` or `~`).
        alias: the model's name in the engine's own answers.
        slots: sequences that run at once (`--max-num-seqs`).
        context: tokens of one call, prompt and answer together (`--max-model-len`).
        dtype: of weights and activations. tensor_parallel: GPUs that share the model.
        gpu_memory: share of the GPU's memory that vLLM takes (`--gpu-memory-utilization`).
        eager: no CUDA graphs: starts sooner, runs slower.
        tool_parser: makes tool calls of the model's text (`--tool-call-parser`), where the model chooses to.
        arguments: further arguments of vLLM.
        env: further variables of its environment.
    """

    model: ModelName
    alias: str | None = None
    slots: Annotated[int, msgspec.Meta(ge=1, le=65536)] | None = None
    context: Annotated[int, msgspec.Meta(ge=1)] | None = None
    dtype: str | None = None
    tensor_parallel: Annotated[int, msgspec.Meta(ge=1, le=1024)] | None = None
    gpu_memory: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    eager: bool = False
    tool_parser: str | None = None
    arguments: list[str] = []
    env: dict[str, str] = {}


def command(launch: Launch, port: int, api_key: str) -> Command:
    """The command that serves on 127.0.0.1:`port` and takes `api_key` only (any, where it is empty).

    Raises:
        LaunchError: vLLM is not installed, or the model's folder is not there.
    """
    if launch.model.startswith((".", "/", "~")) and not os.path.exists(os.path.expanduser(launch.model)):
        raise LaunchError(f"there is no model folder {launch.model}")
    if importlib.util.find_spec("vllm") is None:
        raise LaunchError("the package vllm is not installed: pip install 'enginehouse[vllm]'")
    options = ["--model", os.path.expanduser(launch.model), "--host", "127.0.0.1", "--port", str(port)]
    for name, value in (
        ("--served-model-name", launch.alias),
        ("--max-num-seqs", launch.slots),
        ("--max-model-len", launch.context),
        ("--dtype", launch.dtype),
        ("--tensor-parallel-size", launch.tensor_parallel),
        ("--gpu-memory-utilization", launch.gpu_memory),
        ("--tool-call-parser", launch.tool_parser),
    ):
        if value is not None:
            options += [name, str(value)]
    if launch.tool_parser is not None:
        options.append("--enable-auto-tool-choice")
    if launch.eager:
        options.append("--enforce-eager")
    env = {**_OFFLINE, **({"VLLM_API_KEY": api_key} if api_key else {}), **launch.env}
    return Command((sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server", *options, *launch.arguments), env)
