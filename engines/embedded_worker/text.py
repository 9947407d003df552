"""Text out of tokens: characters that are split over several, and stop sequences that begin and do not go on."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

__all__ = ["Text"]


class Text:
    """Takes bytes as the model makes them; gives text that can be shown.

    Args:
        stops: the text ends before the first of them.

    Attributes:
        stopped: a stop sequence came; what follows it is dropped.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self.stopped = False
        self._stops = tuple(stop for stop in stops if stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    @property
    def holds(self) -> bool:
        """Something came that could not be shown yet."""
        return bool(self._held) or bool(self._decoder.getstate()[0])

    def feed(self, piece: bytes) -> str:
        """The text that the next bytes let out."""
        if self.stopped:
            return ""
        self._held += self._decoder.decode(piece)
        return self._release()

    def close(self) -> str:
        """The answer is over: what was held back. Bytes of half a character become U+FFFD."""
        if self.stopped:
            return ""
        self._held += self._decoder.decode(b"", final=True)
        shown = self._release()
        held, self._held = self._held, ""
        return shown + ("" if self.stopped else held)

    def _release(self) -> str:
        found = [at for at in (self._held.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.stopped = True
            shown, self._held = self._held[: min(found)], ""
            return shown
        keep = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` with which `stop` begins."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
