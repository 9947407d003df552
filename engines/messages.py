"""The messages of a chat request, where an engine wants them otherwise. Left as raw bytes where nothing is to do."""

from __future__ import annotations

import msgspec

from engines.dialect import Dialect
from engines.rawjson import EMPTY, NULL, Fields, join_array, join_object, read_array

__all__ = ["normalise_messages"]

_DEVELOPER = b'"developer"'
_TOOL_CALLS = b'"tool_calls"'


def normalise_messages(raw: msgspec.Raw | bytes, dialect: Dialect) -> msgspec.Raw | bytes:
    """The messages with the role `developer` and the content of tool-calling messages as `dialect` wants them.

    Only messages that hold one of the two are taken apart; the same bytes come back where nothing changed.
    Raises Malformed where the messages have to be read and are no array of objects.
    """
    text = bytes(raw)
    roles = not dialect.developer_role and _DEVELOPER in text
    if not roles and _TOOL_CALLS not in text:
        return raw
    messages = read_array(raw)
    changed = False
    for message in messages:
        if roles and _is(message, "role", _DEVELOPER):
            message["role"] = b'"system"'
            changed = True
        changed |= _set_content(message, dialect)
    return join_array(join_object(message) for message in messages) if changed else raw


def _is(message: Fields, name: str, value: bytes) -> bool:
    return name in message and bytes(message[name]) == value


def _set_content(message: Fields, dialect: Dialect) -> bool:
    if not _is(message, "role", b'"assistant"') or bytes(message.get("tool_calls", NULL)) in EMPTY:
        return False
    before = message.get("content")
    if before is not None and bytes(before) not in EMPTY:
        return False
    if dialect.assistant_content == "absent":
        message.pop("content", None)
        return before is not None
    wanted = NULL if dialect.assistant_content == "null" else b'""'
    message["content"] = wanted
    return before is None or bytes(before) != wanted
