"""One call's answer: text out of tokens, and OpenAI's JSON around it.

The names that only the gateway knows, `id` and `model`, are left empty; its editor fills them in.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from engines.contract import Kind
from engines.embedded_worker.text import Text

__all__ = ["Answer", "Chance", "encode_embeddings"]

Chance = tuple[bytes, float, list[tuple[bytes, float]]]
"""A token's bytes, its log probability, and the same of the likeliest in its place."""

_encode = msgspec.json.Encoder().encode
_DONE = b"[DONE]"


class Answer:
    """Takes tokens; gives the payloads of events, or in the end one whole answer.

    Args:
        prompt: tokens of the prompt. cached: those of them that were not computed anew.
        logprobs: the client wants them.

    Attributes:
        stopped: a stop sequence came: no token more is wanted.
        tokens: how many were taken.
    """

    def __init__(
        self, kind: Kind, *, stream: bool, stops: Sequence[str], prompt: int, cached: int, logprobs: bool
    ) -> None:
        self.tokens = 0
        self._chat = kind == "chat"
        self._stream = stream
        self._prompt = prompt
        self._cached = cached
        self._logprobs = logprobs
        self._text = Text(stops)
        self._shown: list[str] = []
        self._offset = 0
        self._chances: list[Chance] = []  # of tokens whose text is not shown yet
        self._all_chances: list[Chance] = []
        self._created = int(time.time())
        self._began = time.monotonic()
        self._first: float | None = None
        self._last = self._began

    @property
    def stopped(self) -> bool:
        return self._text.stopped

    def add(self, piece: bytes, chance: Chance | None) -> list[bytes]:
        """Take a token's bytes (none for the one that ends the answer); returns the events that it lets out."""
        events = self._start() if self.tokens == 0 else []
        self.tokens += 1
        self._last = time.monotonic()
        if self._first is None:
            self._first = self._last
        if chance is not None:
            self._chances.append(chance)
        return events + self._show(self._text.feed(piece))

    def finish(self, reason: str) -> list[bytes]:
        """The answer is over, because of `reason` or a stop sequence. Returns the last events, with the usage."""
        events = [] if self.tokens else self._start()
        events += self._show(self._text.close())
        if self.stopped:
            reason = "stop"
        usage = {
            "prompt_tokens": self._prompt,
            "completion_tokens": self.tokens,
            "total_tokens": self._prompt + self.tokens,
            "prompt_tokens_details": {"cached_tokens": self._cached},
        }
        first = self._first or self._last
        timings = {
            "cache_n": self._cached,
            "prompt_n": self._prompt - self._cached,
            "prompt_ms": 1000 * (first - self._began),
            "predicted_n": self.tokens,
            "predicted_ms": 1000 * (self._last - first),
        }
        if self._stream:
            end = self._choice({}, None, reason) if self._chat else self._choice("", None, reason)
            last = {**self._frame(chunk=True), "choices": [], "usage": usage, "timings": timings}
            return [*events, self._event(end), _encode(last), _DONE]
        text = "".join(self._shown)
        chances = self._all_chances if self._logprobs else None
        content = {"role": "assistant", "content": text} if self._chat else text
        choice = self._choice(content, chances, reason, whole=True)
        return [_encode({**self._frame(chunk=False), "choices": [choice], "usage": usage, "timings": timings})]

    def _start(self) -> list[bytes]:
        if not self._stream or not self._chat:
            return []
        return [self._event(self._choice({"role": "assistant", "content": ""}, None, None))]

    def _show(self, text: str) -> list[bytes]:
        if self._text.holds or self.stopped:
            chances: list[Chance] = []
            if self.stopped:
                self._chances.clear()  # they belong to the stop sequence, which nobody is shown
        else:
            chances, self._chances = self._chances, []
        if not text and not chances:
            return []
        if not self._stream:
            self._shown.append(text)
            self._all_chances += chances
            return []
        shown = (chances or None) if self._logprobs else None
        return [self._event(self._choice({"content": text} if self._chat else text, shown, None))]

    def _frame(self, *, chunk: bool) -> dict[str, Any]:
        kind = ("chat.completion.chunk" if chunk else "chat.completion") if self._chat else "text_completion"
        return {"id": "", "object": kind, "created": self._created, "model": ""}

    def _event(self, choice: dict[str, Any]) -> bytes:
        return _encode({**self._frame(chunk=True), "choices": [choice]})

    def _choice(
        self, content: Any, chances: list[Chance] | None, finish: str | None, *, whole: bool = False
    ) -> dict[str, Any]:
        name = ("message" if whole else "delta") if self._chat else "text"
        logprobs = (
            None if chances is None else self._chat_logprobs(chances) if self._chat else self._logprobs_of(chances)
        )
        return {"index": 0, name: content, "logprobs": logprobs, "finish_reason": finish}

    def _chat_logprobs(self, chances: list[Chance]) -> dict[str, Any]:
        def entry(piece: bytes, logprob: float) -> dict[str, Any]:
            return {"token": piece.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(piece)}

        return {
            "content": [
                {**entry(piece, logprob), "top_logprobs": [entry(*one) for one in top]}
                for piece, logprob, top in chances
            ]
        }

    def _logprobs_of(self, chances: list[Chance]) -> dict[str, Any]:
        """The older form, of completions."""
        offsets = []
        for piece, _, _ in chances:
            offsets.append(self._offset)
            self._offset += len(piece.decode("utf-8", "replace"))
        return {
            "tokens": [piece.decode("utf-8", "replace") for piece, _, _ in chances],
            "token_logprobs": [logprob for _, logprob, _ in chances],
            "top_logprobs": [{one.decode("utf-8", "replace"): chance for one, chance in top} for _, _, top in chances],
            "text_offset": offsets,
        }


def encode_embeddings(vectors: Sequence[Sequence[float]], tokens: int, *, as_base64: bool) -> bytes:
    """The answer to an embeddings call."""
    given: list[Any] = list(vectors)
    if as_base64:
        given = [base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode() for vector in vectors]
    data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(given)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return _encode({"object": "list", "data": data, "model": "", "usage": usage})
