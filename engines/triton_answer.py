"""What a Triton model's responses say: the text that is new, how the answer ended, how many tokens it took. No I/O."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from engines.contract import Usage
from engines.errors import Faulted, Malformed
from engines.text_pieces import Cumulative, Deltas, StopCutter
from engines.triton_layout import Layout
from engines.triton_request import Plan
from engines.triton_wire import Reply

__all__ = ["AnswerReader", "Outcome"]

_AFTER_STOP = 8
"""Responses that may follow a stop sequence until the engine ends by itself; then it is told to."""

_RUNNING = frozenset({"", "none", "not_finished"})
_STOPPED = frozenset({"stop", "end_id", "stop_words", "eos"})


class Outcome(msgspec.Struct, frozen=True):
    """How an answer ended.

    Attributes:
        finish: OpenAI's finish reason. derived: by this module's rule, as the engine stated none.
        usage: None where nothing is known. shown: fit for the client, as no part of it is an estimate.
    """

    finish: str
    derived: bool
    usage: Usage | None
    shown: bool


class AnswerReader:
    """Reads the responses of one inference.

    The finish reason that the classic models do not state is derived when the final response has come: `length` where
    the count of output tokens has reached the cap, else `stop`; `stop` also where the text was cut at a stop sequence.

    Args:
        count: tokens in a text, by a tokenizer that the operator configured.

    Attributes:
        abandoned: a stop sequence was found and the engine does not end by itself: it is to be told.
    """

    def __init__(self, plan: Plan, layout: Layout, count: Callable[[str], int] | None = None) -> None:
        self._plan = plan
        self._layout = layout
        self._count = count
        self._pieces = Cumulative() if layout.cumulative and plan.streamed else Deltas()
        self._stops = StopCutter(plan.stops)
        self._lead = plan.lead
        self._text: list[str] = []  # all of it, for the tokenizer to count
        self._first = True
        self._finish = ""
        self._responses = 0
        self._output: int | None = None
        self._input: int | None = None
        self._after_stop = 0
        self.abandoned = False

    def feed(self, reply: Reply) -> str:
        """The text that may be shown now. Raises Malformed or Faulted where the response is no part of an answer."""
        values, layout = reply.values, self._layout
        if layout.input_count and isinstance(given := values.get(layout.input_count), int):
            self._input = given
        if layout.output_count and isinstance(given := values.get(layout.output_count), int):
            self._output = (self._output or 0) + given  # of this response alone, as TensorRT-LLM's backend states it
        if layout.finish and layout.finish in values:
            self._read_finish(values[layout.finish])
        piece = values.get(layout.text)
        if piece is None:
            return ""
        if not isinstance(piece, bytes):
            raise Malformed("The engine's text is not text.", detail=f"{layout.text}: {type(piece).__name__}")
        self._responses += bool(piece)
        if self._first and self._plan.strip_prompt:
            piece = piece.removeprefix(self._plan.prompt.encode())
        self._first = False
        if self._stops.found:
            self._after_stop += 1
            self.abandoned = self._after_stop >= _AFTER_STOP
            return ""
        return self._show(self._pieces.feed(piece))

    def close(self) -> str:
        """The final response has come: the text that was held back."""
        rest = "" if self._stops.found else self._show(self._pieces.close())
        rest += self._stops.close()
        lead, self._lead = self._lead, ""
        return lead + rest

    def outcome(self, prompt_estimate: int) -> Outcome:
        """How the answer ended; to be asked after `close`."""
        count = self._output
        if count is None and self._count is not None:
            count = self._count("".join(self._text))
        elif count is None and self._plan.streamed:
            count = self._responses
        usage, shown = self._usage(count, prompt_estimate)
        if self._finish:
            return Outcome(self._finish, False, usage, shown)
        cut = count is not None and count >= self._plan.cap
        return Outcome("length" if cut and not self._stops.found else "stop", True, usage, shown)

    def _show(self, text: str) -> str:
        if self._count is not None:
            self._text.append(text)
        out = self._stops.feed(text)
        if self._stops.found and not self._plan.engine_stops:
            self.abandoned = True
        if out and self._lead:
            out, self._lead = self._lead + out, ""
        return out

    def _read_finish(self, given: object) -> None:
        word = given.decode("utf-8", "replace").lower() if isinstance(given, bytes) else str(given).lower()
        if word in _RUNNING:
            return
        if word not in _STOPPED and word != "length":
            raise Faulted("The engine gave up on the answer.", status=500, detail=f"finish_reason: {word}")
        self._finish = "length" if word == "length" else "stop"

    def _usage(self, completion: int | None, prompt_estimate: int) -> tuple[Usage | None, bool]:
        """The counts, and whether they are no estimates: the engine's, or a configured tokenizer's."""
        exact = self._input is not None and self._output is not None
        prompt = self._input
        if prompt is None:
            prompt = self._count(self._plan.prompt) if self._count is not None else prompt_estimate or None
        if prompt is None and completion is None:
            return None, False
        usage = Usage(prompt_tokens=prompt, completion_tokens=completion, estimated=not exact)
        return usage, exact or (self._count is not None and completion is not None)
