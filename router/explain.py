"""A decision in one line that fits into a header."""

from __future__ import annotations

from router.contract import Candidate, Decision, Removal

__all__ = ["LONGEST", "explain"]

LONGEST = 2_000
"""Characters, which are bytes: the line is ASCII."""


def explain(decision: Decision) -> str:
    """By which policy, who was chosen and on what grounds, and how the others stood.

    "policy latency (tensorrt_llm before vllm before tgi before llamacpp): sent to vllm-0: rank 2, 0 in flight,
    expected 43 ms to first token, 8.1 ms per token (212 calls); trt-0: too long (2,310 > 2,048)"

    One line of printable ASCII, at most `LONGEST` characters.
    """
    ranked = set(decision.ranking)
    order = [*decision.ranking, *(name for name in decision.candidates if name not in ranked)]
    stood = "; ".join(_candidate(decision.candidates[name]) for name in order if name in decision.candidates)
    text = _by(decision) + _action(decision)
    if stood:
        # The chosen one stands first, so that its name follows upon "sent to".
        text += (" " if decision.action == "send" else ": ") + stood
    line = "".join(char if " " <= char <= "~" else "?" for char in text)
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..."


def _by(decision: Decision) -> str:
    if not decision.policy:
        return ""
    why = f" ({decision.reason})" if decision.action == "send" and decision.reason else ""
    return f"policy {decision.policy}{why}: "


def _action(decision: Decision) -> str:
    """What was decided, with its reason where no endpoint says the same."""
    if decision.action == "send":
        return "sent to"
    word = "waits" if decision.action == "wait" else "rejected"
    said = any(candidate.removed_by == decision.reason for candidate in decision.candidates.values())
    return word if said or not decision.reason else f"{word}, {decision.reason.replace('_', ' ')}"


def _candidate(candidate: Candidate) -> str:
    if candidate.removed_by is not None:
        return f"{candidate.name}: {Removal(candidate.removed_by, candidate.detail)}"
    parts = [candidate.detail] if candidate.detail else []
    parts += [_term(name, value) for name, value in candidate.terms.items()]
    expected = [
        f"{_milliseconds(seconds)} ms {what}"
        for seconds, what in ((candidate.ttft, "to first token"), (candidate.tpot, "per token"))
        if seconds is not None
    ]
    calls = "1 call" if candidate.samples == 1 else f"{candidate.samples:,} calls"
    parts.append(f"expected {', '.join(expected)} ({calls})" if expected else "not measured yet")
    return f"{candidate.name}: {', '.join(filter(None, parts))}"


def _term(name: str, value: float) -> str:
    """One part of a score in words; "" where it made no difference."""
    match name:
        case "rank":
            return f"rank {value + 1:,.0f}"
        case "calls":
            return f"{value:,.0f} in flight"
        case "tokens":
            return f"{value:,.0f} tokens in hand"
        case "slowdown":
            return "" if value == 1.0 else f"{value:,.2f} times the fastest's time"
        case "last_send":
            return f"its last call was number {value:,.0f}" if value else "had no call yet"
    return f"{name.replace('_', ' ')} {value:g}"


def _milliseconds(seconds: float) -> str:
    milliseconds = seconds * 1000.0
    return f"{milliseconds:,.0f}" if milliseconds >= 10.0 else f"{milliseconds:.1f}"
