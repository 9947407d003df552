"""This is a fake: a model for the embedded engine's worker that does what the prompt says. The rest is real.

A token is a byte; 256 ends an answer. A prompt is text, which is said again, or JSON: `{"say": "...", ...}` with

    "crash": n     the process dies by SIGSEGV before the token number n (0: in the prompt's own batch)
    "hang": n      computing stops for ever there, deaf to interruption
    "wait": n      computing stops there until it is interrupted
    "fail": n      the batch fails
    "garbage": n   something that is no frame goes to the gateway
    "slow": s      every batch with this call in it takes s seconds

What it did goes, line by line, into the file beside the model's that ends in `.journal`. A model named `broken` cannot
be loaded; one named `waits` loads once the file `go` lies beside it; `forgetful` cannot drop parts of sequences.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engines.embedded_worker.model import BadCall, LoadError, ModelError, Part, Sampling, Settings

__all__ = ["load"]

END = 256
_PROMPT_END = 0


def load(settings: Settings) -> Scripted:
    """The model; its file's name says how it behaves."""
    file = Path(settings.model)
    if "broken" in file.name:
        raise LoadError("the fake's file is said to be broken")
    while "waits" in file.name and not file.with_name("go").exists():
        time.sleep(0.005)
    return Scripted(settings, file)


class Scripted:
    """A `Model`."""

    def __init__(self, settings: Settings, file: Path) -> None:
        self.context = settings.context
        self.batch = settings.batch
        self.vocabulary = END + 1
        self._forgetful = "forgetful" in file.name
        self._journal = file.with_suffix(".journal").open("a", buffering=1)
        self._held: dict[int, list[int]] = {number: [] for number in range(settings.slots)}
        self._rows: list[int] = []
        self._interrupted = threading.Event()
        self._note(f"loaded {os.getpid()}")

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        return [*text.encode(), _PROMPT_END]

    def render(self, messages: list[dict[str, Any]]) -> str:
        if messages[-1]["role"] == "nobody":
            raise BadCall("The template knows no role nobody.", "messages")
        return "".join(message["content"] for message in messages)

    def piece(self, token: int) -> bytes:
        return bytes([token])

    def is_end(self, token: int) -> bool:
        return token == END

    def sampler(self, sampling: Sampling) -> Scribe:
        return Scribe(self, sampling)

    def decode(self, parts: Sequence[Part]) -> list[int] | None:
        self._rows = []
        for part in parts:
            held = self._held[part.sequence]
            assert len(held) == part.start, "tokens must follow on what the sequence holds"
            held += part.tokens
            if part.row:
                self._rows.append(part.sequence)
        for part in parts:
            if not self._obey(part):
                self._note("interrupted")
                return None
        return list(range(len(self._rows)))

    def forget(self, sequence: int, start: int) -> bool:
        held = self._held[sequence]
        if self._forgetful and 0 < start < len(held):
            held.clear()
            return False
        del held[start:]
        return True

    def logprobs(self, row: int, token: int, top: int) -> tuple[float, list[tuple[int, float]]]:
        return -0.5, [(token, -0.5), (ord("x"), -1.5)][:top]

    def embed(self, tokens: Sequence[int]) -> list[float] | None:
        script = _script(list(tokens))
        if "wait" in script:
            self._note(f"embeds {script['say']}")
            self._interrupted.wait()
            return None
        return [1.0, float(len(tokens))]

    def interrupt(self, stop: bool) -> None:
        if stop:
            self._interrupted.set()
        else:
            self._interrupted.clear()

    def next(self, row: int) -> int:
        """The answer's next byte."""
        held = self._held[self._rows[row]]
        said = len(held) - held.index(_PROMPT_END) - 1
        answer = _script(held)["say"].encode()
        return answer[said] if said < len(answer) else END

    def _obey(self, part: Part) -> bool:
        held = self._held[part.sequence]
        if _PROMPT_END not in held:
            return not self._interrupted.is_set()
        script = _script(held)
        number = len(held) - held.index(_PROMPT_END) - 1
        if number == 0:
            self._note(f"begins {script['say'][:40]}")
        if script.get("crash") == number:
            os.kill(os.getpid(), signal.SIGSEGV)
        if script.get("fail") == number:
            raise ModelError("as the script wants")
        if script.get("garbage") == number:
            os.write(int(sys.argv[1]), b"\xff" * 64)
        while script.get("hang") == number:
            time.sleep(1)
        if script.get("wait") == number:
            self._note("waits")
            self._interrupted.wait()
        if "slow" in script:
            self._interrupted.wait(script["slow"])
        return not self._interrupted.is_set()

    def _note(self, line: str) -> None:
        self._journal.write(line + "\n")


class Scribe:
    """A `Sampler`. A seed of 7 allows no token at all, as a format that is at its end would."""

    def __init__(self, model: Scripted, sampling: Sampling) -> None:
        self._model = model
        self._sampling = sampling

    def sample(self, row: int) -> int | None:
        return None if self._sampling.seed == 7 else self._model.next(row)

    def close(self) -> None:
        pass


def _script(tokens: list[int]) -> dict[str, Any]:
    end = tokens.index(_PROMPT_END) if _PROMPT_END in tokens else len(tokens)
    text = bytes(tokens[:end]).decode()
    return json.loads(text) if text.startswith("{") else {"say": text}
