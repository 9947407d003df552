"""What the embedded engine and its worker process say to each other, and how it is framed.

A frame is its length in four bytes, little-endian, and one message in MessagePack. No pickle: whatever the other side
sends, nothing of it is ever run.

    gateway -> worker     Start, then Credit as events are taken up; Cancel in any state of the call
    worker -> gateway     Ready once; then for each call any number of Event, or one Whole, and Alive in between;
                          in the end exactly one of Done and Failed: then the call's place is free

The worker sends at most as many events of a call as it has credit for. So a slow client holds up its own call only, and
what lies between the two is bounded.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from engines.contract import Kind

__all__ = [
    "MAX_FRAME",
    "WINDOW",
    "Alive",
    "Cancel",
    "Credit",
    "Deframer",
    "Done",
    "Event",
    "Failed",
    "FrameError",
    "Order",
    "Ready",
    "Report",
    "Start",
    "Whole",
    "encode_frame",
    "read_order",
    "read_report",
]

MAX_FRAME = 256 * 2**20
"""Bytes of one frame. The gateway's own limit on bodies and answers lies below."""

WINDOW = 64
"""Events of one call that may be under way: some seconds of a fast stream, some kilobytes of memory."""

_HEAD = 4


class FrameError(Exception):
    """What came is no frame, or no message."""


class Start(msgspec.Struct, frozen=True, tag="start"):
    """Begin a call. `body` is the request as JSON; ids are never used twice in a worker's life."""

    id: int
    kind: Kind
    body: bytes
    stream: bool
    credit: int = WINDOW


class Credit(msgspec.Struct, frozen=True, tag="credit"):
    """So many more events of a call may be sent."""

    id: int
    events: int


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Stop a call. It is answered by Done, unless the call's own end was faster."""

    id: int


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The model is loaded. `context` is in tokens, of one call, prompt and answer together."""

    context: int


class Event(msgspec.Struct, frozen=True, tag="event"):
    """The payload of one server-sent event."""

    id: int
    payload: bytes


class Whole(msgspec.Struct, frozen=True, tag="whole"):
    """The JSON answer of a call that does not stream."""

    id: int
    body: bytes


class Alive(msgspec.Struct, frozen=True, tag="alive"):
    """The call is being worked on, though there is nothing to show yet."""

    id: int


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The call is over, whole or cancelled."""

    id: int


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The call is over without an answer. `error` is the class in `engines.errors`."""

    id: int
    error: Literal["Refused", "ContextTooLong", "Unsupported", "Faulted"]
    message: str
    param: str | None = None
    code: str | None = None
    detail: str = ""


Order = Start | Credit | Cancel
Report = Ready | Event | Whole | Alive | Done | Failed

_encoder = msgspec.msgpack.Encoder()
_orders = msgspec.msgpack.Decoder(Order)
_reports = msgspec.msgpack.Decoder(Report)


def encode_frame(message: Order | Report) -> bytes:
    """The message as a frame."""
    body = _encoder.encode(message)
    return len(body).to_bytes(_HEAD, "little") + body


def read_order(frame: bytes) -> Order:
    """The worker's reading of a frame. Raises FrameError."""
    try:
        return _orders.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FrameError(f"not an order: {error}") from error


def read_report(frame: bytes) -> Report:
    """The gateway's reading of a frame. Raises FrameError."""
    try:
        return _reports.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FrameError(f"not a report: {error}") from error


class Deframer:
    """Cuts a byte stream into frames, in whatever pieces it arrives. No I/O."""

    __slots__ = ("_data", "_max")

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self._data = bytearray()
        self._max = max_frame

    def feed(self, data: bytes) -> list[bytes]:
        """Take the next bytes; returns the frames that they complete. Raises FrameError over the cap."""
        self._data += data
        frames = []
        start, size = 0, len(self._data)
        while size - start >= _HEAD:
            length = int.from_bytes(self._data[start : start + _HEAD], "little")
            if length > self._max:
                raise FrameError(f"a frame of {length} bytes")
            end = start + _HEAD + length
            if end > size:
                break
            frames.append(bytes(self._data[start + _HEAD : end]))
            start = end
        del self._data[:start]
        return frames
