"""JSON taken apart at one level: members stay raw bytes, so that what is not changed is not encoded again.

An object is read as a dict of its members' raw bytes and joined from it. The values keep the spacing that they came
with; only the level that was taken apart is written compactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from engines.errors import Malformed

__all__ = [
    "EMPTY",
    "NULL",
    "UNREADABLE",
    "Fields",
    "encode",
    "is_null",
    "join_array",
    "join_object",
    "read_array",
    "read_object",
]

Fields = dict[str, msgspec.Raw | bytes]
"""The members of one JSON object, each value as raw JSON."""

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises where the bytes are no JSON, no UTF-8, or nested deeper than can be read."""

NULL = b"null"
EMPTY = frozenset({b"null", b'""', b"[]", b"{}"})
"""Values that hold nothing. (0 and false do: they are no part of this.)"""

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_objects = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
encode = msgspec.json.Encoder().encode


def read_object(data: bytes | msgspec.Raw) -> Fields:
    """The members of a JSON object. Raises Malformed where `data` is none."""
    try:
        return _object.decode(data)  # type: ignore[return-value]
    except UNREADABLE as error:
        raise Malformed("The engine sent something that is not a JSON object.", detail=_excerpt(data)) from error


def read_array(data: bytes | msgspec.Raw) -> list[Fields]:
    """The objects of a JSON array of objects. Raises Malformed where `data` is none."""
    try:
        return _objects.decode(data)  # type: ignore[return-value]
    except UNREADABLE as error:
        raise Malformed("The engine sent something that is not an array of objects.", detail=_excerpt(data)) from error


def join_object(fields: Mapping[str, msgspec.Raw | bytes]) -> bytes:
    """The JSON object of these members."""
    parts: list[msgspec.Raw | bytes] = []
    for name, value in fields.items():
        parts += (b"," if parts else b"{", encode(name), b":", value)
    return b"".join(parts) + b"}" if parts else b"{}"


def join_array(items: Iterable[msgspec.Raw | bytes]) -> bytes:
    """The JSON array of these raw values."""
    return b"[" + b",".join(items) + b"]"


def is_null(value: msgspec.Raw | bytes | None) -> bool:
    """The member is absent or null."""
    return value is None or (len(memoryview(value)) == 4 and bytes(value) == NULL)


def _excerpt(data: bytes | msgspec.Raw) -> str:
    return bytes(memoryview(data)[:400]).decode("utf-8", "replace")
