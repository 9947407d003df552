"""Tool calls of engines that know only text and a JSON schema: the schema that holds the answer to a call, and back.

With one tool the guide is its parameters' schema, and the whole text is the arguments. With several it is
`{"name": ..., "arguments": {...}}`, one alternative per tool, and the text is taken apart while it comes.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from engines.errors import Malformed, Refused, Unsupported
from engines.rawjson import encode

__all__ = ["CallReader", "ToolGuide", "guide_for"]

_HEAD: Final = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*')
_HEAD_LIMIT: Final = 1024
_TAIL: Final = re.compile(r"\}\s*$|\s+$")


class ToolGuide(msgspec.Struct, frozen=True):
    """What an answer that must be a tool call is held to.

    Attributes:
        schema: JSON schema, as JSON. name: of the tool where only one may be called, else "".
        finish: the finish reason of a complete call.
    """

    schema: bytes
    name: str
    finish: str


class _Function(msgspec.Struct):
    name: str
    parameters: dict[str, Any] | None = None


class _Tool(msgspec.Struct):
    function: _Function | None = None


class _Named(msgspec.Struct):
    function: _Function


def guide_for(tools: bytes, choice: bytes | None) -> ToolGuide | None:
    """The guide for these `tools` and this `tool_choice`, both as JSON; None where no tool is to be called.

    Raises Unsupported for `auto`: text or a call as the model likes needs the model's own way of writing calls.
    """
    try:
        offered = [tool.function for tool in msgspec.json.decode(tools, type=list[_Tool]) if tool.function]
        chosen = msgspec.json.decode(choice or b'"auto"', type=str | _Named)
    except msgspec.DecodeError as error:
        raise Refused("`tools` or `tool_choice` is not of its type.", status=400, param="tools") from error
    if chosen == "none" or not offered:
        return None
    if isinstance(chosen, _Named):
        named = [one for one in offered if one.name == chosen.function.name]
        if not named:
            raise Refused("`tool_choice` names no tool of `tools`.", status=400, param="tool_choice")
        return _single(named[0], "stop")  # as OpenAI ends a call that was named
    if chosen != "required":
        raise Unsupported(
            "This endpoint can only be held to a tool call: `tool_choice` must be `required`, `none` or a function.",
            status=400,
            param="tool_choice",
            code="unsupported_parameter",
        )
    if len(offered) == 1:
        return _single(offered[0], "tool_calls")
    return ToolGuide(encode({"anyOf": [_alternative(one) for one in offered]}), "", "tool_calls")


def _single(function: _Function, finish: str) -> ToolGuide:
    return ToolGuide(encode(_parameters(function)), function.name, finish)


def _parameters(function: _Function) -> dict[str, Any]:
    return function.parameters or {"type": "object", "properties": {}}


def _alternative(function: _Function) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"type": "string", "enum": [function.name]}, "arguments": _parameters(function)},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


class CallReader:
    """Takes the text of a guided answer apart, piece by piece.

    Attributes:
        name: the tool's name, "" until it is known.
    """

    def __init__(self, guide: ToolGuide) -> None:
        self.name = guide.name
        self._enclosed = not guide.name
        self._held = ""

    def feed(self, text: str) -> str:
        """The arguments that this piece adds. Raises Malformed where the text is no call."""
        if not self._enclosed:
            return text
        self._held += text
        if not self.name:
            head = _HEAD.match(self._held)
            if head is None:
                if len(self._held) > _HEAD_LIMIT:
                    raise self._no_call()
                return ""
            self.name = msgspec.json.decode(head[1].encode(), type=str)
            self._held = self._held[head.end() :]
        # The brace that ends the call may be the last one: it waits until something follows it.
        end = len(self._held)
        while tail := _TAIL.search(self._held, 0, end):
            end = tail.start()
            if self._held[end] == "}":
                break
        out, self._held = self._held[:end], self._held[end:]
        return out

    def close(self, *, complete: bool) -> str:
        """The rest of the arguments. `complete`: the answer was not cut at the cap, so its last brace is the call's."""
        if not self.name:
            if complete:
                raise self._no_call()
            return ""
        held, self._held = self._held, ""
        return held if not complete else held.rstrip().removesuffix("}")

    def _no_call(self) -> Malformed:
        return Malformed("The engine's answer is not the tool call that it was held to.", detail=self._held[:400])
