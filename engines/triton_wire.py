"""What both ways to Triton share: tensors with their values, one response, and the transport's interface."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final, Protocol, Self

import msgspec

from engines.contract import Headers, Health
from engines.errors import EngineError, Malformed, Refused
from engines.triton_layout import ModelInfo

__all__ = ["Filled", "Replies", "Reply", "Request", "Transport", "fill", "pack", "unpack"]

Value = bytes | int | float | bool

_FORMATS: Final = {
    "BOOL": "?",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}


class Filled(msgspec.Struct, frozen=True):
    """An input with its values. BYTES hold UTF-8."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: tuple[Value, ...]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One inference.

    Attributes:
        id: names the request to Triton and in its logs.
        outputs: what is asked for. headers: to go along, as metadata or as HTTP's.
    """

    model: str
    id: str
    inputs: Sequence[Filled]
    outputs: Sequence[str] = ()
    headers: Headers = ()


class Reply(msgspec.Struct, frozen=True):
    """One response: the first element of each output that it holds, and whether it is the last."""

    values: Mapping[str, Value]
    final: bool = False


class Replies(Protocol):
    """The responses of one inference. Entering sends it; leaving cancels what was not read to its end."""

    @property
    def sent(self) -> bool:
        """The engine may have read it."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def next(self) -> Reply | None:
        """The next response, None where the engine ended in order. Raises EngineError."""

    def cancel(self) -> None:
        """Tell the engine to stop. Synchronous, in any state."""


class Transport(Protocol):
    """A way to one Triton."""

    async def models(self) -> list[str]:
        """Names of the models that are ready. Raises EngineError."""

    async def describe(self, model: str) -> ModelInfo:
        """Metadata and configuration. Raises EngineError."""

    async def health(self, model: str | None) -> Health:
        """What the server says of itself, and of `model` where one is given. Raises EngineError."""

    def infer(self, request: Request) -> Replies:
        """An inference, not yet sent."""

    async def settle(self, error: EngineError) -> EngineError:
        """See `Upstream.settle`."""

    async def aclose(self) -> None:
        """Give back every connection."""


def fill(name: str, datatype: str, values: Sequence[Value], *, batched: bool) -> Filled:
    """A one-dimensional input with these values, behind a batch dimension of 1 where the model has one."""
    shape = (1, len(values)) if batched else (len(values),)
    return Filled(name, datatype, shape, tuple(values))


def pack(filled: Filled) -> bytes:
    """The values as Triton's raw bytes. Raises Refused where one does not fit its type."""
    if filled.datatype == "BYTES":
        parts: list[bytes] = []
        for value in filled.values:
            assert isinstance(value, bytes)
            parts += (struct.pack("<I", len(value)), value)
        return b"".join(parts)
    try:
        return struct.pack(f"<{len(filled.values)}{_FORMATS[filled.datatype]}", *filled.values)
    except (struct.error, OverflowError, KeyError) as error:
        raise Refused(f"A value for {filled.name} is out of the engine's range.", status=400) from error


def unpack(datatype: str, raw: bytes) -> Value | None:
    """The first element of raw bytes, None where there is none. Raises Malformed where they are no such tensor."""
    try:
        if datatype != "BYTES":
            code = _FORMATS[datatype]
            value: Value = struct.unpack_from(f"<{code}", raw)[0] if raw else b""
            return value if raw else None
        if not raw:
            return None
        (length,) = struct.unpack_from("<I", raw)
        if len(raw) < 4 + length:
            raise Malformed("The engine sent a text that is cut off.")
        return raw[4 : 4 + length]
    except (struct.error, KeyError) as error:
        raise Malformed("The engine sent a tensor that cannot be read.", detail=f"{datatype}: {error}") from error
