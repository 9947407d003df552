"""llama.cpp's `llama-server`. It answers 503 while it loads, ignores the model's name and queues without bound."""

from __future__ import annotations

from engines.contract import Call, Headers
from engines.dialects import LLAMACPP
from engines.openai_http import OpenAIEngine, Options

__all__ = ["LlamaCpp", "Options", "build"]


class LlamaCpp(OpenAIEngine):
    """An `Engine`: one running llama-server."""

    kind = "llamacpp"
    dialect = LLAMACPP

    def _headers(self, call: Call) -> Headers:
        # The server closes the connection at once after a streamed answer, while its headers promise to keep it. A
        # connection given back would be taken for the next call before its end is heard, and the call lost with it.
        headers = super()._headers(call)
        return [*headers, ("connection", "close")] if call.stream else headers


def build(name: str, options: Options) -> LlamaCpp:
    """The engine of the endpoint `name`."""
    return LlamaCpp(name, options)
