"""What the desk asks of a model. `engines.embedded_worker.llama` answers with llama.cpp; tests put others there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec

__all__ = ["BadCall", "LoadError", "Model", "ModelError", "Part", "Sampler", "Sampling", "Settings"]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to load and how to run it; see `engines.embedded.Options`."""

    model: str
    slots: int
    context: int
    threads: int
    batch_threads: int
    batch: int
    gpu_layers: int
    embeddings: bool
    chat_template: str | None = None


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How one call's tokens are drawn. The defaults are llama.cpp's own, as its server has them.

    Attributes:
        temperature: 0 takes the likeliest token always.
        logit_bias: token id -> what is added to its logit. ignore_eos: the model cannot end the answer.
        format: what the text must be: a JSON schema, as JSON; "json" for any JSON object; None for anything.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int | None = None
    logit_bias: dict[int, float] = {}
    ignore_eos: bool = False
    format: str | None = None


class Part(msgspec.Struct, frozen=True):
    """Tokens of one sequence for the next batch, the first of them at position `start`.

    `row`: the logits of the last one are wanted.
    """

    sequence: int
    start: int
    tokens: Sequence[int]
    row: bool


class LoadError(Exception):
    """The model cannot be loaded. The message is for the operator."""


class ModelError(Exception):
    """A batch could not be computed; the sequences in it are void."""


class BadCall(Exception):
    """A call that cannot be served, and why, for its client."""

    def __init__(
        self,
        message: str,
        param: str | None = None,
        error: Literal["Refused", "ContextTooLong", "Unsupported"] = "Refused",
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.error = error
        self.code = code


class Sampler(Protocol):
    """Draws the tokens of one call."""

    def sample(self, row: int) -> int | None:
        """The token after that row of the last batch; None where the format allows no further one."""

    def close(self) -> None: ...


class Model(Protocol):
    """A loaded model with a fixed number of sequences. One thread uses it, but for `interrupt`.

    Attributes:
        context: tokens that one sequence can hold. batch: tokens that one `decode` takes.
        vocabulary: token ids are below it.
    """

    context: int
    batch: int
    vocabulary: int

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """The tokens of a prompt, with the model's beginning; `special`: control tokens are read as such."""

    def render(self, messages: list[dict[str, Any]]) -> str:
        """The prompt of a chat by the model's template. Raises BadCall."""

    def piece(self, token: int) -> bytes:
        """The token's bytes, empty for control tokens; a character may be split over several tokens."""

    def is_end(self, token: int) -> bool:
        """The model ends its answer with this token."""

    def sampler(self, sampling: Sampling) -> Sampler:
        """Raises BadCall where the format cannot be met."""

    def decode(self, parts: Sequence[Part]) -> list[int] | None:
        """Compute a batch: one row per part that wants one, in order; None where it was interrupted.

        Raises:
            ModelError: it failed.
        """

    def forget(self, sequence: int, start: int) -> bool:
        """Drop what a sequence holds from `start` on. False: only the whole could be dropped, and was."""

    def logprobs(self, row: int, token: int, top: int) -> tuple[float, list[tuple[int, float]]]:
        """Log probabilities of a token and of the `top` likeliest, before sampling."""

    def embed(self, tokens: Sequence[int]) -> list[float] | None:
        """The embedding of a text, of length 1; None where it was interrupted. Raises ModelError."""

    def interrupt(self, stop: bool) -> None:
        """True: `decode` and `embed`, running or next, return None as soon as they can. From any thread."""
