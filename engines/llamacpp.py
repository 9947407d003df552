"""llama.cpp's `llama-server`. It answers 503 while it loads, ignores the model's name and queues without bound.

Where the model's chat template knows no tools, llama.cpp leaves them out of the prompt without a word, `tool_choice`
"required" with them. So it is asked once, when it has come up, for the prompt that it makes of a call with a tool.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from engines.contract import Health
from engines.dialects import LLAMACPP
from engines.errors import EngineError
from engines.openai_http import OpenAIEngine, Options

__all__ = ["LlamaCpp", "Options", "build"]

_TOOL: Final = "enginehouse_example_tool"
_QUESTION: Final = msgspec.json.encode(
    {
        "messages": [{"role": "user", "content": "Hello"}],
        "tools": [{"type": "function", "function": {"name": _TOOL, "parameters": {"type": "object"}}}],
    }
)
_NO_TOOLS: Final = "the model's chat template knows no tools, so the engine would leave them out"
_PROMPT_BODY: Final = 1 << 20


class _Applied(msgspec.Struct):
    prompt: str


class LlamaCpp(OpenAIEngine):
    """An `Engine`: one running llama-server."""

    kind = "llamacpp"
    dialect = LLAMACPP
    # It promises "Keep-Alive: timeout=5" and closes at once. A call written meanwhile would be lost.
    closes_after_stream = True

    def __init__(self, name: str, options: Options) -> None:
        super().__init__(name, options)
        self._with_tools = self._dialect
        self._asked = False

    async def probe(self) -> Health:
        """See `OpenAIEngine.probe`. What comes up is asked whether its template knows tools."""
        health = await super().probe()
        if health.state in ("down", "loading"):
            self._asked = False  # what comes up next may be another model
        elif health.state == "ready" and not self._asked:
            drops = await self._drops_tools()
            self._dialect = self._with_tools
            if drops:
                refuses = {**self._with_tools.refuses, "tools": _NO_TOOLS}
                self._dialect = msgspec.structs.replace(self._with_tools, refuses=refuses)
            self._asked = True
        return health

    async def _drops_tools(self) -> bool:
        """True where it was seen to. An engine that does not say, older ones or one without a template, is let be."""
        headers = [("content-type", "application/json"), *self._own]
        try:
            async with asyncio.timeout(self._options.probe_timeout):
                async with self._upstream.exchange("POST", "/apply-template", headers, _QUESTION) as exchange:
                    body, _ = await exchange.read(_PROMPT_BODY)
        except (TimeoutError, EngineError):
            return False
        try:
            applied = msgspec.json.decode(body, type=_Applied)
        except msgspec.DecodeError:
            return False
        return exchange.status == 200 and _TOOL not in applied.prompt


def build(name: str, options: Options) -> LlamaCpp:
    """The engine of the endpoint `name`."""
    return LlamaCpp(name, options)
