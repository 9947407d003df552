"""llama.cpp's `llama-server`. It answers 503 while it loads, ignores the model's name and queues without bound."""

from __future__ import annotations

from engines.dialects import LLAMACPP
from engines.openai_http import OpenAIEngine, Options

__all__ = ["LlamaCpp", "Options", "build"]


class LlamaCpp(OpenAIEngine):
    """An `Engine`: one running llama-server."""

    kind = "llamacpp"
    dialect = LLAMACPP
    # It promises "Keep-Alive: timeout=5" and closes at once. A call written meanwhile would be lost.
    closes_after_stream = True


def build(name: str, options: Options) -> LlamaCpp:
    """The engine of the endpoint `name`."""
    return LlamaCpp(name, options)
