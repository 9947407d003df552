"""llama.cpp's `llama-server`. It answers 503 while it loads, ignores the model's name and queues without bound.

Where the model's chat template knows no tools, llama.cpp leaves them out of the prompt without a word, `tool_choice`
"required" with them. So it is asked once, when it has come up, what its template knows, and where that is no tools for
the prompt that it makes of a call with one.
"""

from __future__ import annotations

import asyncio
from typing import Final, TypeVar

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
_BODY: Final = 1 << 20  # the template is among the properties


class _Caps(msgspec.Struct, frozen=True):
    supports_tools: bool = True


class _Props(msgspec.Struct):
    chat_template_caps: _Caps = _Caps()


class _Applied(msgspec.Struct):
    prompt: str


_Answer = TypeVar("_Answer", _Props, _Applied)


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
        """True where it was seen to. An engine that does not say (older ones) is let be."""
        try:
            async with asyncio.timeout(self._options.probe_timeout):
                props = await self._said("GET", "/props", _Props)
                if props is None or props.chat_template_caps.supports_tools:
                    return False
                # Some versions of llama.cpp tell tools to a model whose template knows none, in words of their own.
                applied = await self._said("POST", "/apply-template", _Applied, _QUESTION)
        except (TimeoutError, EngineError):
            return False
        return applied is not None and _TOOL not in applied.prompt

    async def _said(self, method: str, path: str, kind: type[_Answer], body: bytes = b"") -> _Answer | None:
        """The answer of this route, None where it is another. Raises EngineError."""
        headers = [*self._own, *([("content-type", "application/json")] if body else [])]
        async with self._upstream.exchange(method, path, headers, body) as exchange:
            answer, _ = await exchange.read(_BODY)
        try:
            return msgspec.json.decode(answer, type=kind) if exchange.status == 200 else None
        except msgspec.DecodeError:
            return None


def build(name: str, options: Options) -> LlamaCpp:
    """The engine of the endpoint `name`."""
    return LlamaCpp(name, options)
