"""Text out of an engine's pieces: characters cut over pieces are held, cumulative text is made deltas, stops are cut.

Nothing is stripped: leading blanks belong to the answer. No I/O.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from engines.errors import Malformed

__all__ = ["Cumulative", "Deltas", "StopCutter"]

_MARK = "\ufffd".encode()


class Deltas:
    """Pieces that follow one another. Each may begin and end within a character."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, piece: bytes) -> str:
        """The text that this piece completes."""
        return self._decoder.decode(piece)

    def close(self) -> str:
        """What a stream that ended within a character leaves: one replacement mark, as decoders write it."""
        return self._decoder.decode(b"", True)


class Cumulative:
    """Pieces that each hold the whole text so far.

    A tokenizer shows a character whose bytes are not all there as a replacement mark, and the character itself the
    next time. So marks at the end are held until something follows them, or nothing more comes.
    """

    def __init__(self) -> None:
        self._seen = b""  # settled: given out
        self._held = b""  # behind it: marks, or the beginning of a character

    def feed(self, piece: bytes) -> str:
        """The text that is new in this piece. Raises Malformed where it contradicts what was given out before."""
        settled = piece[: _settled(piece)]
        if len(settled) <= len(self._seen):
            if not self._seen.startswith(settled):
                raise self._contradiction()
            if len(settled) == len(self._seen):
                self._held = piece[len(settled) :]
            return ""
        if not settled.startswith(self._seen):
            raise self._contradiction()
        new = settled[len(self._seen) :]
        self._seen, self._held = settled, piece[len(settled) :]
        return new.decode("utf-8", "replace")

    def close(self) -> str:
        """What was held to the end: the model did write these marks."""
        held, self._held = self._held, b""
        return held.decode("utf-8", "replace")

    def _contradiction(self) -> Malformed:
        return Malformed(
            "The engine's text does not go on from what it sent before.",
            detail="the endpoint is declared to send the whole text with every response; see its option `text`",
        )


class StopCutter:
    """Ends the text before the first of some sequences; holds back what may be the beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.found = False

    def feed(self, text: str) -> str:
        """The text that may be shown now; nothing more once a stop was found."""
        if self.found or not self._stops:
            return "" if self.found else text
        text = self._held + text
        ends = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            self.found, self._held = True, ""
            return text[: min(ends)]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :] if keep else ""
        return text[: len(text) - keep]

    def close(self) -> str:
        """What was held back and became no stop."""
        held, self._held = self._held, ""
        return held


def _settled(piece: bytes) -> int:
    """How many bytes of `piece` stand before the marks and the incomplete character at its end."""
    end = len(piece)
    for back in range(1, min(3, end) + 1):
        byte = piece[end - back]
        if byte >= 0xC0:  # the first byte of a character of 2 to 4
            if back < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4):
                end -= back
            break
        if byte < 0x80:
            break
    while piece.endswith(_MARK, 0, end):
        end -= len(_MARK)
    return end


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that is a beginning of `stop`, all of it excepted."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
