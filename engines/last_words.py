"""Which of an engine's lines say why it ended. The cause is seldom what stands last: servers clean up, aloud."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["last_words"]

_LAST = 3
_STAMP = re.compile(r"^\d+\.\d+\.\d+\.\d+ [A-Z] ")  # llama.cpp's time and level
_CONSEQUENCE = re.compile(r"exiting due to|encountered an error|cleaning up|did not start", re.IGNORECASE)
_TELLING = (
    re.compile(r"\berror\b", re.IGNORECASE),
    re.compile(r"^\d+\.\d+\.\d+\.\d+ E |\b(?:failed|couldn't|cannot|unable)\b", re.IGNORECASE),
)


def last_words(lines: Sequence[str], was_ready: bool) -> str:
    """What `lines`, all that one process wrote, say of its end; empty where it wrote nothing.

    Of one that never became ready the first line that tells of an error: those behind it are its consequences. Of one
    that served the last three lines, for errors from long ago may stand among them.
    """
    if not was_ready:
        for telling in _TELLING:
            for line in lines:
                if telling.search(line) and not _CONSEQUENCE.search(line):
                    return f"it said: {_STAMP.sub('', line)}"
    return f"its last words: {' | '.join(lines[-_LAST:])}" if lines else ""
