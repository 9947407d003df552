"""How to start llama.cpp's server: the `llama-server` binary, else the prebuilt one in the package `xllamacpp`.

Both are the same C++ server and speak the same HTTP.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import psutil

from engines.launch import Command, LaunchError
from engines.paths import CommandName, FileName

__all__ = ["Launch", "check_gguf", "command", "default_threads", "find_binary", "has_xllamacpp"]

_SERVER = Path(__file__).with_name("xllamacpp_server.py")
_HELP = (
    "llama.cpp's server is not installed: neither a `llama-server` on PATH nor the package `xllamacpp`. "
    "Install one: `{python} -m pip install xllamacpp`, or llama.cpp itself"
)


class Launch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to start it.

    Attributes:
        model: the GGUF file.
        slots: calls that run at once. context: tokens of one call, prompt and answer together; the server is given
            slots x context of them.
        threads: for generation; by default one less than the physical cores that this process may use, and 16 at
            most: llama.cpp's threads wait by spinning, so one busy core too many slows every token by a factor.
            batch_threads: for prompts, by default as many.
        alias: the model's name in the engine's own answers.
        binary: the server to run; without it `llama-server` from PATH, else xllamacpp.
        arguments: further arguments for the binary.
        embeddings: serve /v1/embeddings, with mean pooling, and nothing else.
        chat_template: a Jinja file in place of the model's own template.
        prompt_cache_mb: memory for prompts that were answered; without it 256 with xllamacpp, else the binary's own.
    """

    model: FileName
    slots: Annotated[int, msgspec.Meta(ge=1, le=256)] = 4
    context: Annotated[int, msgspec.Meta(ge=64)] = 4096
    threads: Annotated[int, msgspec.Meta(ge=1, le=1024)] | None = None
    batch_threads: Annotated[int, msgspec.Meta(ge=1, le=1024)] | None = None
    alias: str | None = None
    binary: CommandName | None = None
    arguments: list[str] = []
    embeddings: bool = False
    chat_template: FileName | None = None
    prompt_cache_mb: Annotated[int, msgspec.Meta(ge=0)] | None = None


def command(launch: Launch, port: int, api_key: str) -> Command:
    """The command that serves on 127.0.0.1:`port` and takes `api_key` only (any, where it is empty).

    Raises:
        LaunchError: the model is not a GGUF file, or there is no server to run.
    """
    check_gguf(launch.model)
    if launch.chat_template and not os.path.isfile(launch.chat_template):
        raise LaunchError(f"there is no chat template {launch.chat_template}")
    binary = find_binary(launch.binary)
    if binary is None and not has_xllamacpp():
        raise LaunchError(_HELP.format(python=shlex.quote(sys.executable)))
    if binary is None and launch.arguments:
        raise LaunchError("`arguments` are for a llama-server binary, and there is none on PATH; name it as `binary`")
    threads = launch.threads or default_threads()
    options = [
        *("--model", launch.model),
        *("--host", "127.0.0.1"),
        *("--port", str(port)),
        *("--parallel", str(launch.slots)),
        *("--ctx-size", str(launch.slots * launch.context)),
        *("--threads", str(threads)),
        *("--threads-batch", str(launch.batch_threads or threads)),
    ]
    if launch.alias:
        options += ["--alias", launch.alias]
    if launch.chat_template:
        options += ["--chat-template-file", launch.chat_template]
    if launch.embeddings:
        options += ["--embeddings", "--pooling", "mean"]
    if launch.prompt_cache_mb is not None:
        options += ["--cache-ram", str(launch.prompt_cache_mb)]
    env = {"LLAMA_API_KEY": api_key} if api_key else {}
    if binary is None:
        # By its path: so it needs neither this package on the child's path nor its import.
        return Command((sys.executable, "-P", str(_SERVER), *options), env)
    return Command((binary, *options, "--jinja", "--metrics", "--slots", *launch.arguments), env)


def check_gguf(file: str) -> None:
    """Raise LaunchError unless `file` is readable and begins as a GGUF file does."""
    try:
        with open(file, "rb") as stream:
            head = stream.read(8)
    except OSError as error:
        raise LaunchError(f"the model {file} cannot be read: {error.strerror}") from None
    if head[:4] != b"GGUF":
        raise LaunchError(f"the model {file} is not a GGUF file (it does not begin with `GGUF`)")
    if len(head) < 8 or int.from_bytes(head[4:], "little") not in (2, 3):
        raise LaunchError(f"the model {file} is a GGUF file of a version that llama.cpp does not read (2 and 3 are)")


def find_binary(name: str | None = None) -> str | None:
    """The server binary: `name` or `llama-server`; None where there is no `llama-server`.

    Raises:
        LaunchError: `name` was given and is no program.
    """
    found = shutil.which(name or "llama-server")
    if found is None and name:
        raise LaunchError(f"there is no program {name}")
    return found


def has_xllamacpp() -> bool:
    """Whether the prebuilt server is installed."""
    return importlib.util.find_spec("xllamacpp") is not None


def default_threads() -> int:
    """One less than the physical cores that this process may use, at least 1 and at most 16."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cores = min(usable, psutil.cpu_count(logical=False) or usable, _quota())
    return max(1, min(16, cores - 1))


def _quota() -> int:
    """Whole cores that the container may use; many where it is not limited or that cannot be read."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, int(quota) // int(period))
    except (OSError, ValueError):  # no such file, or "max"
        return 1024
