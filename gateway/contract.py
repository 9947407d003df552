"""The nouns of serving: the client's side of a call, and what was observed of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from engines.contract import Call, Engine, Headers
from gateway.waiting import Waiting
from router import Ask, Decision, Router, Slo

__all__ = [
    "Client",
    "ClientGone",
    "Decisions",
    "House",
    "Keys",
    "Observation",
    "Observer",
    "Pool",
    "Request",
    "Served",
]


class ClientGone(Exception):
    """The client closed its connection."""


class Client(Protocol):
    """The asking side of one call, whatever server stands behind it.

    Attributes:
        gone: set at the moment that the client's connection is lost.
    """

    gone: asyncio.Event

    async def start(self, status: int, headers: Headers) -> None:
        """Send the status line and headers. At most once."""

    async def write(self, block: bytes) -> None:
        """Send bytes; returns when the transport takes more. Raises ClientGone."""

    async def end(self) -> None:
        """The answer is whole."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One accepted request on its way down: the call, what routing asks, and how this client wants it.

    Attributes:
        arrived: when its last body byte was read (monotonic). started: wall clock then, in Unix seconds.
        policy: a policy that the client chose and the pool allows, else None.
        explain: the client sent `x-enginehouse-explain: 1`.
        key: the name (never the value) of the API key, None where none is configured.
    """

    call: Call
    ask: Ask
    arrived: float
    started: float
    policy: str | None = None
    explain: bool = False
    key: str | None = None
    bytes_in: int = 0


class Pool(msgspec.Struct, kw_only=True):
    """What clients call a model: the endpoints that serve it and the router that knows them.

    Attributes:
        waiting: the calls that the router told to wait.
        commit_after: seconds after which a stream's 200 goes out with comment heartbeats; None: never.
        heartbeat: seconds between those comments.
        max_attempts: tries of one call, the first included.
        rerun: when a call that an engine had taken may be run again: "gone" (only where its work is surely void:
            the engine said that it failed, or is gone), or "never".
        slo: what a call of this pool wants where it does not say.
    """

    model: str
    router: Router
    waiting: Waiting
    engines: dict[str, Engine]
    policy: str = "adaptive"
    allowed_policies: frozenset[str] = frozenset()
    commit_after: float | None = 15.0
    heartbeat: float = 10.0
    max_attempts: int = 3
    rerun: str = "gone"
    slo: Slo | None = None
    created: int = 0


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """What one attempt measured. Exactly one per attempt, also when it was cancelled.

    Times are seconds; tokens are counts by the engine's usage, None where it gave none.

    Attributes:
        outcome: ok, cancelled, error, overload (the router's words).
        error: the class name in the tree of `engines.errors`, None when ok.
        queue_wait: from the call's last body byte to this attempt's dispatch.
        call_ttft: from the call's last body byte to the first token; streams only. What an SLO means.
        attempt_ttft: from dispatch to the first token; streams only. What an engine is judged by.
        tpot: (last token - first token) / (output tokens - 1); None under 2 tokens or without a count.
        itl_p50, itl_p99, itl_max: between blocks that carry tokens, from stamps.
        total: from dispatch to the attempt's end.
        overhead: the part of the call's time that was neither waiting for an engine nor for a slow client.
        inflight, running, context_tokens, queued_tokens: the endpoint's state at dispatch, as the router knew it.
        predicted_ttft, predicted_tpot: what the decision expected.
    """

    call: str
    attempt: str
    model: str
    engine: str
    endpoint: str
    policy: str
    kind: str
    stream: bool
    outcome: str
    started: float
    queue_wait: float
    total: float
    error: str | None = None
    shadow: bool = False
    call_ttft: float | None = None
    attempt_ttft: float | None = None
    tpot: float | None = None
    itl_p50: float | None = None
    itl_p99: float | None = None
    itl_max: float | None = None
    overhead: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    tokens_estimated: bool = False
    bytes_in: int = 0
    bytes_out: int = 0
    finish: str | None = None
    finish_derived: bool = False
    engine_prefill: float | None = None
    engine_decode: float | None = None
    inflight: int = 0
    running: int = 0
    context_tokens: int = 0
    queued_tokens: int = 0
    predicted_ttft: float | None = None
    predicted_tpot: float | None = None
    explored: bool = False
    propensity: float | None = None


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one call: one structured log line, and the request metrics.

    Attributes:
        status: what the client saw (499 where it left before a status).
        outcome: ok, cancelled, error, overload, rejected (by the gateway itself).
        code: OpenAI's error code or type word, where there was an error.
        decisions: every decision of the call, the first first.
    """

    call: str
    request_id: str
    model: str
    kind: str
    stream: bool
    policy: str
    status: int
    outcome: str
    started: float
    total: float
    overhead: float
    endpoint: str | None = None
    engine: str | None = None
    key: str | None = None
    code: str | None = None
    detail: str = ""
    observations: tuple[Observation, ...] = ()
    decisions: tuple[Decision, ...] = ()


Observer = Callable[[Served], None]
"""Takes what became of a call. Must not block and must not raise."""


class Keys(Protocol):
    """The API keys that may enter, hashed at rest."""

    def name(self, presented: str) -> str | None:
        """The name of the key that `presented` is, None where it is none of ours. Constant time in its content."""

    def is_admin(self, name: str) -> bool:
        """Whether the key of this name opens `/admin`, too."""


class Decisions(Protocol):
    """The last decisions, by the gateway's call id and by the client's request id. Bounded."""

    def find(self, request_id: str) -> Served | None: ...


class House(msgspec.Struct, kw_only=True):
    """Everything that the API's handlers need. Built in one place, `gateway/app.py`.

    Attributes:
        pools: by public model name, in the order of the configuration.
        keys: None where no keys are configured (then only loopback is bound).
        body_limit: bytes of a request body.
        serve: answers one request, errors included; never raises but CancelledError.
        observe: takes what became of a call that `serve` never saw (refused before routing).
        metrics: renders `/metrics` off the loop: (body, content type).
    """

    pools: dict[str, Pool]
    keys: Keys | None
    body_limit: int
    serve: Callable[[Pool, Request, Client], Awaitable[None]]
    observe: Observer
    metrics: Callable[[], Awaitable[tuple[bytes, str]]]
    decisions: Decisions
