"""The nouns of the house: what a call is, what an answer is, and how the two pass between gateway and engine.

The canonical form of an answer is the OpenAI wire form. Engines that speak it are passed through as whole
server-sent events in bytes; engines that do not encode to it at their own edge. Around the bytes goes a `Mark`
that says what they mean, so that nothing above has to parse them again.

All times are seconds on a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec

from engines.errors import EngineError

__all__ = [
    "ORDINARY",
    "Attempt",
    "Call",
    "Engine",
    "Headers",
    "Health",
    "HealthState",
    "Kind",
    "Limits",
    "Load",
    "Mark",
    "Sink",
    "Timings",
    "Usage",
]

Headers = Sequence[tuple[str, str]]
"""Header names in lower case, with their values."""

Kind = Literal["chat", "completions", "embeddings"]
HealthState = Literal["unknown", "loading", "ready", "degraded", "draining", "down"]


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an endpoint can take. `None` means not known, which is not the same as unlimited.

    Tokens are counted by the engine's own tokenizer. `features` is the set of request features that the endpoint
    is known to serve ("tools", "json_schema", ...); empty means that none was declared or discovered.
    """

    max_input_tokens: int | None = None
    max_total_tokens: int | None = None
    max_concurrency: int | None = None
    features: frozenset[str] = frozenset()
    kv_tokens: int | None = None
    max_batch_tokens: int | None = None


class Load(msgspec.Struct, frozen=True):
    """What an engine says of its own load: calls running and waiting, and the used share of its KV cache (0..1)."""

    running: int | None = None
    waiting: int | None = None
    kv_used: float | None = None


class Health(msgspec.Struct, frozen=True):
    """One probe's answer. `why` is for the operator, short and free of secrets."""

    state: HealthState
    why: str = ""


class Usage(msgspec.Struct, frozen=True):
    """Token counts of one answer as the engine gave them; `estimated` when the gateway had to count itself."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    estimated: bool = False


class Timings(msgspec.Struct, frozen=True):
    """Seconds that the engine itself states for one answer (llama.cpp's `timings`)."""

    prefill: float | None = None
    decode: float | None = None


class Mark(msgspec.Struct, frozen=True):
    """What a block of answer bytes means.

    Attributes:
        events: how many server-sent events the block holds (1 for a whole JSON answer).
        token: some event carries content, reasoning, a refusal or a tool call. Role-only and empty deltas do not.
        terminal: the answer has come to its end here: a finish reason, `[DONE]`, or a whole JSON answer.
        finish: the finish reason, from OpenAI's set, where the block carries one.
        derived: the adapter derived `finish` by its documented rule; the engine did not state it.
        usage: token counts, where the block carried them (also when they were stripped from the bytes).
        timings: the engine's own timings, where it states them.
        error: an error that the engine put into a stream it had begun; the block holds it in OpenAI's shape.
    """

    events: int = 1
    token: bool = False
    terminal: bool = False
    finish: str | None = None
    derived: bool = False
    usage: Usage | None = None
    timings: Timings | None = None
    error: EngineError | None = None


ORDINARY = Mark(events=1, token=True)
"""The mark of nearly every block: one event with a token in it. Shared, because it is made so often."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a client, as received: its body's members and what was read from them.

    `fields` holds the members of the JSON body, in order, each as raw JSON bytes, top-level nulls dropped (null
    means default). Adapters build the outgoing body from it; nothing in it is parsed again unless it must be.

    Attributes:
        id: the gateway's own id of the call, `[a-z0-9]+`; engines get it as `x-request-id`, and answers without
            an id get one made from it.
        request_id: the client's `x-request-id`, or ours; a label, returned and logged, trusted for nothing.
        kind: which of the three OpenAI routes.
        model: the public model name, which the answer must show in every chunk.
        stream: the client asked for server-sent events.
        include_usage: the client asked for the usage chunk (`stream_options.include_usage`).
        max_tokens: the smaller of `max_tokens` and `max_completion_tokens`, where given.
        sequences: `n`, times the number of prompts on the completions route.
        features: what the request needs of an engine: "tools", "tool_choice", "json_schema", "json_object",
            "logprobs", "images", "audio", "n", "logit_bias", "echo", "suffix", "token_prompt".
        prompt_tokens: an estimate from the prompt's bytes.
        named_tool: `tool_choice` names one function.
        headers: further headers to pass on, from a fixed list (trace context).
    """

    id: str
    request_id: str
    kind: Kind
    model: str
    fields: dict[str, msgspec.Raw]
    stream: bool = False
    include_usage: bool = False
    max_tokens: int | None = None
    sequences: int = 1
    features: frozenset[str] = frozenset()
    prompt_tokens: int = 0
    named_tool: bool = False
    headers: Headers = ()


class Sink(Protocol):
    """The gateway's side of an attempt. Synchronous, so that the fastest relay can sit behind it.

    The engine calls `head` at most once, then `data` any number of times, then exactly one of `end` and `fail`,
    then nothing more. An attempt that was aborted may fall silent without either.
    """

    def head(self, status: int, headers: Headers) -> None:
        """The engine accepted the call and answers. An error answer is never a head: it is a `fail`."""

    def data(self, block: bytes, mark: Mark) -> bool:
        """Take whole events (or a whole JSON answer). False: stop reading until resumed."""

    def on_resume(self, callback: Callable[[], None]) -> None:
        """Call `callback` when `data` may go on (for push sources, such as sockets)."""

    async def writable(self) -> None:
        """Return when `data` may go on (for pull sources, such as an HTTP client's iterator)."""

    def end(self) -> None:
        """The answer is whole."""

    def fail(self, error: EngineError) -> None:
        """The answer will not come, or broke off."""


class Attempt(Protocol):
    """One try of a call on one endpoint."""

    def abort(self, why: str) -> None:
        """Tell the engine to stop. Synchronous, idempotent, in any state."""

    async def closed(self) -> None:
        """Return when the engine was told and the resources are back."""


class Engine(Protocol):
    """One running instance of an inference server, serving one model."""

    name: str
    kind: str

    def open(self, call: Call, sink: Sink) -> Attempt:
        """Start the call. Returns at once and never raises: what goes wrong reaches `sink.fail`."""

    async def probe(self) -> Health:
        """Ask the engine's own health route. Never raises."""

    async def aclose(self) -> None:
        """End every attempt and give back every resource."""
