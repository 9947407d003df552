"""llama.cpp's `llama-server`. It answers 503 while it loads, ignores the model's name and queues without bound."""

from __future__ import annotations

from engines.dialects import LLAMACPP
from engines.openai_http import OpenAIEngine, Options

__all__ = ["LlamaCpp", "Options", "build"]


class LlamaCpp(OpenAIEngine):
    """An `Engine`: one running llama-server."""

    kind = "llamacpp"
    dialect = LLAMACPP


def build(name: str, options: Options) -> LlamaCpp:
    """The engine of the endpoint `name`."""
    return LlamaCpp(name, options)
