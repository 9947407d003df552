"""Server-sent events out of bytes, in whatever pieces they arrive. No I/O, no decoding.

Text is framed as bytes, so a character cut by a read boundary cannot be damaged. Lines may end in LF, CR or CRLF;
the space after the colon is optional; comments and the fields `id`, `event` and `retry` mean nothing here.
"""

from __future__ import annotations

import msgspec

from engines.errors import Malformed
from engines.rawjson import UNREADABLE

__all__ = ["Framer"]

_BOM = b"\xef\xbb\xbf"


class Framer:
    """Cuts a byte stream into the payloads of its events (the `data` lines of each, joined by LF).

    Args:
        max_event: bytes that one event, complete or not, may hold. Memory stays at about this bound.

    Events without data, or with empty data, are no events.
    """

    __slots__ = ("_first", "_has_data", "_max", "_part", "_payload", "_skip_lf")

    def __init__(self, max_event: int = 8 * 2**20) -> None:
        self._max = max_event
        self._part = bytearray()  # the line that is not complete yet; grows in place, so small pieces stay cheap
        self._payload = bytearray()  # the data lines of the event that is not complete yet
        self._has_data = False
        self._first = True
        self._skip_lf = False

    def feed(self, data: bytes) -> list[bytes]:
        """Take the next bytes; returns the payloads of the events that they complete.

        Raises Malformed when one event grows over the cap; the framer is of no use then.
        """
        end = data.find(b"\n")
        if (
            end == len(data) - 2
            and end >= 0
            and data.startswith(b"data:")
            and data.endswith(b"\n\n")
            and not (self._part or self._has_data or self._skip_lf)
            and b"\r" not in data
            and 5 < end <= self._max
        ):
            # One read, one event: nearly always so while an engine generates.
            self._first = False
            payload = data[6:end] if data[5] == 32 else data[5:end]
            return [payload] if payload else []
        return self._feed_lines(data)

    def close(self) -> list[bytes]:
        """The stream has ended: returns the last event, where it was not closed by a blank line.

        A last line without a line end may be half a line. It is taken only where it makes the event a complete JSON
        text or `[DONE]`; else the whole event is dropped, since it was cut off.
        """
        out: list[bytes] = []
        line = bytes(self._part)
        self._part = bytearray()
        if line.removeprefix(_BOM).startswith(b"data:"):
            self._line(line, out)
            if not _whole(bytes(self._payload)):
                self._payload = bytearray()
        self._line(b"", out)
        return out

    def _feed_lines(self, data: bytes) -> list[bytes]:
        if self._skip_lf and data:
            self._skip_lf = False
            if data.startswith(b"\n"):
                data = data[1:]
        if b"\r" in data:
            # A CR ends the line at once; the LF that may follow in the next read belongs to it.
            self._skip_lf = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = data.split(b"\n")
        out: list[bytes] = []
        if len(lines) > 1:
            if self._part:
                self._check(len(lines[0]))
                self._part += lines[0]
                first = bytes(self._part)
                self._part = bytearray()
            else:
                first = lines[0]
            self._line(first, out)
            for line in lines[1:-1]:
                self._line(line, out)
        self._check(len(lines[-1]))
        self._part += lines[-1]
        return out

    def _line(self, line: bytes, out: list[bytes]) -> None:
        if self._first:
            self._first = False
            if line.startswith(_BOM):
                line = line[3:]
        if not line:
            if self._has_data:
                if self._payload:
                    out.append(bytes(self._payload))
                    self._payload = bytearray()
                self._has_data = False
            return
        if line.startswith(b"data:"):
            value = line[6:] if line[5:6] == b" " else line[5:]
        elif line == b"data":
            value = b""
        else:
            return
        self._check(len(value))
        if self._has_data:
            self._payload += b"\n"
        self._has_data = True
        self._payload += value

    def _check(self, more: int) -> None:
        if len(self._part) + len(self._payload) + more > self._max:
            self._part = bytearray()
            self._payload = bytearray()
            raise Malformed(f"The engine sent an event of more than {self._max} bytes.")


def _whole(payload: bytes) -> bool:
    if payload.strip() == b"[DONE]":
        return True
    try:
        msgspec.json.decode(payload, type=msgspec.Raw)
    except UNREADABLE:
        return False
    return True
