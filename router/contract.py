"""The nouns of routing: what is asked, who could take it, what was decided, and the three kinds of step.

Times are seconds on any monotonic clock; nothing here reads one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from engines.contract import Limits, Load

__all__ = [
    "Action",
    "Ask",
    "AskKind",
    "Candidate",
    "Decision",
    "Endpoint",
    "EndpointState",
    "Failure",
    "Filter",
    "Limits",
    "Load",
    "Objective",
    "Outcome",
    "Picker",
    "Removal",
    "Scored",
    "Slo",
    "View",
]

Action = Literal["send", "wait", "reject"]
AskKind = Literal["generate", "embed", "other"]
Failure = Literal["connect", "overload", "timeout", "error", "bad_output"]
Outcome = Literal["ok", "cancelled", "error", "overload"]


class Slo(msgspec.Struct, frozen=True):
    """What the caller wants: seconds to the first token, seconds per output token. None: no wish."""

    ttft: float | None = None
    tpot: float | None = None


class Endpoint(msgspec.Struct, frozen=True):
    """One running instance of an engine. `tags`: free text from configuration; "gpu", "cpu", "hf" mean something."""

    name: str
    engine: str
    limits: Limits = Limits()
    tags: frozenset[str] = frozenset()


class Ask(msgspec.Struct, frozen=True):
    """What routing needs to know of a call. `prompt_tokens` is an estimate; `arrived` and `deadline` are times."""

    id: str
    prompt_tokens: int = 0
    max_tokens: int | None = None
    kind: AskKind = "generate"
    stream: bool = True
    sequences: int = 1
    prefix: tuple[str, ...] = ()
    arrived: float | None = None
    deadline: float | None = None
    features: frozenset[str] = frozenset()
    slo: Slo | None = None
    priority: int = 0
    session: str | None = None


class Removal(msgspec.Struct, frozen=True):
    """Why an endpoint cannot take the ask: a word ("too_long") and the figures behind it ("2,310 > 2,048")."""

    reason: str
    detail: str = ""

    def __str__(self) -> str:
        text = self.reason.replace("_", " ")
        return f"{text} ({self.detail})" if self.detail else text


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint as a decision saw it.

    Attributes:
        removed_by: the reason word, None where the endpoint stayed in the ranking; `detail` has the figures or the
            cause. Of one that stayed, `detail` says why it ranks behind healthy ones, if it does.
        ttft, ttft_p90, tpot, tpot_p90: predicted seconds for this ask there; None where nothing was measured.
        samples: finished calls behind the prediction. age: seconds since the last of them.
        terms: what went into the score, by name. score: lower is better; None where removed.
        inflight: the gateway's own calls there, waiting: those without their first token.
        context_tokens: tokens of context among the running ones. queued_tokens: prompt tokens that wait.
    """

    name: str
    engine: str
    removed_by: str | None = None
    detail: str = ""
    ttft: float | None = None
    ttft_p90: float | None = None
    tpot: float | None = None
    tpot_p90: float | None = None
    samples: int = 0
    age: float | None = None
    terms: dict[str, float] = {}
    score: float | None = None
    inflight: int = 0
    waiting: int = 0
    context_tokens: int = 0
    queued_tokens: int = 0


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A ranking that can say why. Serialisable; the same state and ask give the same bytes.

    Attributes:
        id: the ask's id. attempt: this try's id: the ask's own at first, then "id/2", "id/3", ...
        action: "send" (the caller has dispatched), "wait" (ask again through `wake`), "reject".
        endpoint: the one to send to. ranking: all that stayed, best first.
        candidates: every endpoint of the router, by name, removed ones too.
        retry_after: predicted seconds until it is worth asking again, with "reject".
        explored: the endpoint was not the best but drawn to be measured.
        propensities: the probability with which each endpoint would have been chosen; removed ones have 0.
        reason: one word for the action where it is not "send"; with "send" the policy's own word on its order.
    """

    id: str
    attempt: str
    action: Action
    endpoint: str | None = None
    ranking: tuple[str, ...] = ()
    candidates: dict[str, Candidate] = {}
    retry_after: float | None = None
    explored: bool = False
    propensities: dict[str, float] = {}
    policy: str = ""
    reason: str = ""


class EndpointState(msgspec.Struct, frozen=True, kw_only=True):
    """How an endpoint stands, for `/ready`, `/metrics` and operators.

    `health` is the last pushed word and `why` its cause, where one was given; `breaker` is "closed", "open" or
    "half_open"; `eligible` says whether a plain call could be sent there now. Counts are the gateway's own calls.
    """

    health: str
    breaker: str
    eligible: bool
    inflight: int
    waiting: int
    context_tokens: int
    queued_tokens: int
    load: Load | None = None
    why: str = ""


class View(Protocol):
    """What a filter, an objective or a picker may see of one endpoint. Read only.

    Attributes:
        why: the cause of its health, where whoever probes gave one.
        inflight: the gateway's own attempts there, mirrors included. waiting: those without their first token.
        sequences: sequences among those attempts (an ask with `n` of 3 has three).
        tokens: prompt tokens that wait and context tokens that run.
        ttft, tpot: measured mean seconds; total: the same for whole calls that have no first token (embeddings).
            None where nothing was measured: unknown, not fast.
        sent: the number of the router's last send that went there; 0: never.
        pool_inflight: attempts in flight over all endpoints of the router, mirrors left out.
    """

    endpoint: Endpoint
    health: str
    why: str

    @property
    def inflight(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def sequences(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def ttft(self) -> float | None: ...
    @property
    def tpot(self) -> float | None: ...
    @property
    def total(self) -> float | None: ...
    @property
    def sent(self) -> int: ...
    @property
    def pool_inflight(self) -> int: ...

    def age(self, now: float) -> float:
        """Seconds since a measured time was last learnt there; 0 where none was."""

    def foreign(self, now: float) -> int:
        """Calls that others run or queue there, by the engine's last word; 0 where that is too old."""

    def held_for(self, now: float) -> float:
        """Seconds for which the engine asked to be left alone (`Retry-After`)."""

    def busy_for(self, now: float) -> float:
        """Seconds for which it counts as full, because it said so without naming a time."""

    def broken_for(self, now: float) -> float:
        """Seconds until its breaker lets an attempt pass."""


class Scored(msgspec.Struct, frozen=True):
    """An objective's word on one candidate. Lower is better; `terms` is what the score was made of."""

    score: float
    terms: dict[str, float] = {}


class Filter(Protocol):
    """Judges one endpoint. Returns the reason why it cannot take the ask, or None."""

    def __call__(self, ask: Ask, view: View, now: float) -> Removal | None: ...


class Objective(Protocol):
    """Scores the endpoints that stayed."""

    def __call__(self, ask: Ask, views: Sequence[View], now: float) -> Mapping[str, Scored]: ...


class Picker(Protocol):
    """Turns scores into a ranking and the probability of each first place. `draw` is uniform in [0, 1)."""

    def __call__(self, scored: Mapping[str, Scored], draw: float) -> tuple[tuple[str, ...], Mapping[str, float]]: ...
