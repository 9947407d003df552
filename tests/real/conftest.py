"""Real engines for the tests, started once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.triton import Ears, Triton, Unavailable


@pytest.fixture(scope="session")
def ears() -> Iterator[Ears]:
    """Where Triton's models tell what they see."""
    made = Ears()
    yield made
    made.close()


@pytest.fixture(scope="session")
def single(ears: Ears, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    """A Triton with one model for everything: scripted, in llmapi's shape, and with llama.cpp inside."""
    write = pytest.importorskip("tests.tiny_gguf", reason="gguf is not installed").write
    gguf: Path = write(tmp_path_factory.mktemp("model") / "tiny.gguf")
    yield from _running(Triton("single", ears, TRITON_TEST_GGUF=str(gguf)))


@pytest.fixture(scope="session")
def classic(ears: Ears) -> Iterator[Triton]:
    """A Triton with a true ensemble of three models, and the shape of the business logic beside it."""
    yield from _running(Triton("classic", ears))


def _running(triton: Triton) -> Iterator[Triton]:
    pytest.importorskip("tritonclient.grpc", reason="tritonclient[grpc] is not installed")
    try:
        triton.start()
    except Unavailable as reason:
        triton.stop()
        pytest.skip(f"no real Triton here: {reason}")
    yield triton
    triton.stop()
