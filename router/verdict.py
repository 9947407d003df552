"""One decision as a pure function: ask, endpoints, policy, time and draw in; ranking, removals and odds out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from router.contract import Ask, Candidate, Filter, Removal, Scored
from router.filters import features, reserved, tried
from router.policies import FOR_EVER, FOR_NOW, Policy
from router.ranks import completion
from router.state import Standing

__all__ = ["LOADING_S", "PERMANENT", "Verdict", "judge", "refuse"]

PERMANENT = frozenset({"too_long", "lacks_feature", "feature_unknown"})
"""Removals that no waiting cures."""

LOADING_S = 5.0
"""When to ask again where nothing predicts it: an engine loads, drains or is down."""
SOON_S = 1.0
LONGEST_S = 60.0


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What was found. `wants`: the endpoints that could take the ask but for room.

    `reason`: why none can now, in one word; where one can, the policy's word on its order.
    """

    candidates: dict[str, Candidate]
    ranking: tuple[str, ...] = ()
    propensities: dict[str, float] = {}
    wants: frozenset[str] = frozenset()
    reason: str = ""
    retry_after: float | None = None


def judge(
    ask: Ask,
    views: Sequence[Standing],
    policy: Policy,
    now: float,
    draw: float,
    been: Collection[str] = (),
    ahead: Collection[str] = (),
) -> Verdict:
    """Judge every endpoint for one ask.

    Args:
        views: every endpoint, sorted by name, so that the order of configuration decides nothing.
        draw: uniform in [0, 1), fixed for the attempt.
        been: endpoints that this ask was sent to. ahead: endpoints whose room others wait for.
    """
    filters: tuple[Filter, ...] = (
        *FOR_EVER,
        *((tried.excluding(been),) if been else ()),
        *FOR_NOW,
        *policy.filters,
        *((reserved.keeping(ahead),) if ahead else ()),
    )
    removed: dict[str, Removal] = {}
    kept: list[Standing] = []
    for view in views:
        view.settle(now)
        for check in filters:
            removal = check(ask, view, now)
            if removal is not None:
                removed[view.endpoint.name] = removal
                break
        else:
            kept.append(view)
    if ask.features:
        kept = _prefer_declared(ask, views, kept, removed)
    if not kept:
        wants = frozenset(name for name, removal in removed.items() if removal.reason == "full")
        reason, retry_after = _reason(ask, views, removed, now)
        candidates = _candidates(ask, views, removed, {}, now)
        return Verdict(candidates=candidates, wants=wants, reason=reason, retry_after=retry_after)
    scored = policy.objective(ask, kept, now)
    ranking, odds = _pick(policy, kept, scored, now, draw)
    return Verdict(
        candidates=_candidates(ask, views, removed, scored, now),
        ranking=ranking,
        propensities={view.endpoint.name: odds.get(view.endpoint.name, 0.0) for view in views},
        reason=policy.why(kept),
    )


def refuse(ask: Ask, views: Sequence[Standing], reason: str, now: float) -> Verdict:
    """A verdict without judging: every endpoint is removed for the same reason."""
    removed = dict.fromkeys((view.endpoint.name for view in views), Removal(reason))
    return Verdict(candidates=_candidates(ask, views, removed, {}, now), reason=reason)


def _prefer_declared(
    ask: Ask, views: Sequence[Standing], kept: list[Standing], removed: dict[str, Removal]
) -> list[Standing]:
    """Take out endpoints of unknown features where one that declares them is there, if only it had room."""
    open_to_it = [view for view in views if _reason_of(removed, view) in ("", "full")]
    undeclared = features.undeclared(ask, open_to_it)
    removed.update(undeclared)
    return [view for view in kept if view.endpoint.name not in undeclared]


def _pick(
    policy: Policy, kept: Sequence[Standing], scored: Mapping[str, Scored], now: float, draw: float
) -> tuple[tuple[str, ...], Mapping[str, float]]:
    """Pick among the endpoints in good health; the others rank behind them."""
    behind = {view.endpoint.name for view in kept if view.tier(now)}
    if not behind or len(behind) == len(kept):
        return policy.picker(scored, draw)
    ahead = {name: entry for name, entry in scored.items() if name not in behind}
    ranking, odds = policy.picker(ahead, draw)
    rest = sorted(behind, key=lambda name: (scored[name].score, name))
    return (*ranking, *rest), odds


def _candidates(
    ask: Ask,
    views: Sequence[Standing],
    removed: Mapping[str, Removal],
    scored: Mapping[str, Scored],
    now: float,
) -> dict[str, Candidate]:
    """Every endpoint as it was seen."""
    candidates: dict[str, Candidate] = {}
    generates = ask.kind == "generate"
    for view in views:
        name = view.endpoint.name
        model = view.model
        ttft, tpot = model.ttft, model.tpot
        if generates:
            samples, last = ttft.count, max(ttft.last, tpot.last) if tpot.count else ttft.last
        else:
            samples, last = model.total.count, model.total.last
        removal = removed.get(name)
        entry = scored.get(name)
        candidates[name] = Candidate(
            name=name,
            engine=view.endpoint.engine,
            removed_by=removal.reason if removal else None,
            detail=removal.detail if removal else _behind(view, now),
            ttft=ttft.mean if generates and ttft.count else None,
            ttft_p90=ttft.p90 if generates and ttft.count else None,
            tpot=tpot.mean if generates and tpot.count else None,
            tpot_p90=tpot.p90 if generates and tpot.count else None,
            samples=samples,
            age=max(0.0, now - last) if samples else None,
            terms=entry.terms if entry else {},
            score=entry.score if entry else None,
            inflight=view.inflight,
            waiting=view.waiting,
            context_tokens=view.context_tokens,
            queued_tokens=view.queued_tokens,
        )
    return candidates


def _behind(view: Standing, now: float) -> str:
    """Why an endpoint that stayed ranks behind others, "" where it does not."""
    if not view.tier(now):
        return ""
    word = "not probed yet" if view.health == "unknown" else view.health
    return f"{word}, {view.why}" if view.why else word


def _reason_of(removed: Mapping[str, Removal], view: Standing) -> str:
    removal = removed.get(view.endpoint.name)
    return removal.reason if removal else ""


def _reason(
    ask: Ask, views: Sequence[Standing], removed: Mapping[str, Removal], now: float
) -> tuple[str, float | None]:
    """Why no endpoint can take the ask now, in one word, and when it is worth asking again.

    What no waiting cures counts only where it holds of all. Otherwise the endpoint that will be back first speaks
    for all; those that the ask has been to speak only where no other is left.
    """
    if not views:
        return "no_endpoints", LOADING_S
    reasons = {_reason_of(removed, view) for view in views}
    curable = reasons - PERMANENT
    if not curable:
        return ("too_long" if "too_long" in reasons else "lacks_feature"), None
    speaking = curable - {"tried"} or curable
    back = [(_back_in(ask, view, _reason_of(removed, view), now), _reason_of(removed, view)) for view in views]
    reason = min(entry for entry in back if entry[1] in speaking)[1]
    # An endpoint that failed this ask may well take the next one, so its return counts for the time.
    seconds = min(entry[0] for entry in back if entry[1] in curable)
    return ("tried_all" if reason == "tried" else reason), seconds


def _back_in(ask: Ask, view: Standing, reason: str, now: float) -> float:
    """Seconds until an endpoint that was removed may take such an ask."""
    if reason in ("loading", "draining", "down"):
        return LOADING_S
    barred = max(view.held_for(now), view.broken_for(now), view.busy_for(now))
    if reason != "full":
        return barred or SOON_S
    # A slot comes free about every completion time over slots.
    seconds = completion(ask, view)
    slots = view.endpoint.limits.max_concurrency or 1
    free = SOON_S if seconds is None else min(LONGEST_S, seconds / slots)
    return max(barred, free)
