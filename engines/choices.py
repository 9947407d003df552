"""The choices of an answer: what a delta carries, its finish reason and the indexes of its tool calls, made OpenAI's.

A choice is edited in place as raw members; the caller joins it again only where something changed.
"""

from __future__ import annotations

import msgspec

from engines.contract import Call
from engines.errors import Faulted, Malformed
from engines.rawjson import (
    EMPTY,
    NULL,
    UNREADABLE,
    Fields,
    encode,
    is_null,
    join_array,
    join_object,
    read_array,
    read_object,
)

__all__ = ["Choices", "index_of"]

_TOKEN_FIELDS = ("content", "reasoning", "reasoning_content", "refusal", "tool_calls", "function_call", "audio")
_FINISHED = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})
# TGI's own words, and the stop that vLLM makes when the client's `repetition_detection` strikes.
_STOPS = frozenset({"eos_token", "stop_sequence", "eos", "repetition"})
_RUNNING = frozenset({"", "not_finished"})


class _State:
    """What is known of one choice of a stream."""

    __slots__ = ("calls", "finish", "ids", "last", "names")

    def __init__(self) -> None:
        self.finish: str | None = None
        self.ids: dict[str, int] = {}  # tool call id -> index shown to the client
        self.names: dict[int, bytes] = {}  # index shown -> the function's name in JSON, as the call began with it
        self.calls: dict[int, int] = {}  # index of the engine -> index shown, of the call that last used it
        self.last: int | None = None


class Choices:
    """The choices of one answer, over all its chunks.

    Attributes:
        moved: set whenever another tool call became the current one, so that what was learnt of deltas may be off.
    """

    __slots__ = ("_member", "_named", "_states", "moved")

    def __init__(self, call: Call, member: str | None) -> None:
        """`member`: where a choice keeps its content: "delta", "message", or None for the text of completions."""
        self._named = call.named_tool
        self._member = member
        self._states: dict[int, _State] = {}
        self.moved = False

    def finished(self, expected: int) -> bool:
        """Every choice that was seen has its finish reason, and there are at least `expected` of them."""
        return len(self._states) >= max(expected, 1) and all(state.finish for state in self._states.values())

    def edit(self, choice: Fields) -> tuple[bool, bool, str | None]:
        """Put one choice of a chunk into OpenAI's form: (something changed, it carries a token, its finish reason).

        Raises Faulted where its finish reason says that the engine failed, Malformed where it is no choice.
        """
        state = self._states.setdefault(index_of(choice), _State())
        changed = token = False
        if self._member is None:
            token = bytes(choice.get("text", NULL)) not in EMPTY
        elif not is_null(choice.get(self._member)):
            delta = read_object(choice[self._member])
            for name in _TOKEN_FIELDS:
                if name in delta and bytes(delta[name]) not in EMPTY:
                    token = True
                    if name == "tool_calls":
                        changed = self._edit_calls(delta, state)
            if changed:
                choice[self._member] = join_object(delta)
        before = choice.get("finish_reason")
        if before is None or is_null(before):
            return changed, token, None
        finish = None if state.finish is not None else self._finish(before, state)
        if finish is not None:
            state.finish = finish
        after = NULL if finish is None else encode(finish)
        if bytes(before) != after:
            choice["finish_reason"] = after
            changed = True
        return changed, token, finish

    def _finish(self, raw: msgspec.Raw | bytes, state: _State) -> str | None:
        try:
            word = msgspec.json.decode(raw, type=str)
        except UNREADABLE as error:
            raise Malformed("The engine gave a finish reason that is no text.", detail=str(error)) from error
        if word in _RUNNING:
            return None
        if word in _STOPS:
            word = "stop"
        if word not in _FINISHED:
            raise Faulted("The engine gave up on the answer.", status=500, detail=f"finish_reason: {word}")
        # For a named function OpenAI itself says "stop", for tools that the model chose it says "tool_calls".
        if word == "stop" and state.calls and not self._named:
            return "tool_calls"
        return word

    def _edit_calls(self, delta: Fields, state: _State) -> bool:
        calls = read_array(delta["tool_calls"])
        if self._member == "message":
            state.calls[0] = 0  # whole calls stand in order and need no index
            return False
        changed = False
        for item in calls:
            given, identity = _integer(item.get("index")), _string(item.get("id"))
            again = identity in state.ids
            index = self._place(given, identity, state)
            # A client joins what is repeated, so a call's id and name go out once.
            if again:
                del item["id"]
            if index in state.names:
                again |= _without_name(item, state.names[index])
            else:
                state.names[index] = _name(item)
            changed |= again
            if index != given:
                item["index"] = encode(index)
                changed = True
        if changed:
            delta["tool_calls"] = join_array(join_object(item) for item in calls)
        return changed

    def _place(self, given: int | None, identity: str, state: _State) -> int:
        """The index of the call that a delta belongs to: a new id opens one, a delta without id goes on with one."""
        used = state.calls.values()
        if identity:
            index = state.ids.get(identity)
            if index is None:
                index = given if given is not None and given not in used else max(used, default=-1) + 1
                state.ids[identity] = index
        elif given is not None:
            index = state.calls.get(given, given)
        else:
            index = state.last if state.last is not None else 0
        if index != state.last:
            state.last = index
            self.moved = True
        state.calls[index if given is None else given] = index
        return index


def _name(item: Fields) -> bytes:
    function = item.get("function")
    if function is None or is_null(function):
        return NULL
    return bytes(read_object(function).get("name", NULL))


def _without_name(item: Fields, name: bytes) -> bool:
    """Take the function's name out where it is this one. True: it was."""
    if name in EMPTY or _name(item) != name:
        return False
    function = read_object(item["function"])
    del function["name"]
    item["function"] = join_object(function)
    return True


def index_of(choice: Fields) -> int:
    """The choice's index, 0 where it gives none. Raises Malformed where it is no integer."""
    return _integer(choice.get("index")) or 0


def _integer(raw: msgspec.Raw | bytes | None) -> int | None:
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw, type=int | None)
    except UNREADABLE as error:
        raise Malformed("The engine gave an index that is no integer.", detail=str(error)) from error


def _string(raw: msgspec.Raw | bytes | None) -> str:
    if raw is None:
        return ""
    try:
        return msgspec.json.decode(raw, type=str | None) or ""
    except UNREADABLE as error:
        raise Malformed("The engine gave an id that is no text.", detail=str(error)) from error
