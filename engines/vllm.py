"""vLLM's OpenAI server. It refuses connections until its model is loaded, and a model name that is not its own."""

from __future__ import annotations

from engines.dialects import VLLM
from engines.openai_http import OpenAIEngine, Options

__all__ = ["Options", "Vllm", "build"]


class Vllm(OpenAIEngine):
    """An `Engine`: one running vLLM server."""

    kind = "vllm"
    dialect = VLLM


def build(name: str, options: Options) -> Vllm:
    """The engine of the endpoint `name`."""
    return Vllm(name, options)
