"""TensorRT-LLM's `trtllm-serve`. It refuses unknown fields, and breaks a stream off when it fails within one."""

from __future__ import annotations

from engines.dialects import TENSORRT_LLM
from engines.openai_http import OpenAIEngine, Options

__all__ = ["Options", "TensorRtLlm", "build"]


class TensorRtLlm(OpenAIEngine):
    """An `Engine`: one running trtllm-serve."""

    kind = "tensorrt_llm"
    dialect = TENSORRT_LLM


def build(name: str, options: Options) -> TensorRtLlm:
    """The engine of the endpoint `name`."""
    return TensorRtLlm(name, options)
