"""A decision in one line that fits into a header."""

from __future__ import annotations

from router.contract import Candidate, Decision, Removal

__all__ = ["LONGEST", "explain"]

LONGEST = 2_000
"""Characters, which are bytes: the line is ASCII."""


def explain(decision: Decision) -> str:
    """Who was chosen, what was expected of each, why the others were not asked.

    "vllm-0: expected 43 ms to first token, 8.1 ms per token (212 calls); trt-0: too long (2,310 > 2,048)"

    One line of printable ASCII, at most `LONGEST` characters.
    """
    ranked = set(decision.ranking)
    order = [*decision.ranking, *(name for name in decision.candidates if name not in ranked)]
    parts = [_candidate(decision.candidates[name]) for name in order if name in decision.candidates]
    if decision.action != "send":
        head = "waits" if decision.action == "wait" else "rejected"
        parts.insert(0, f"{head}: {decision.reason.replace('_', ' ')}" if decision.reason else head)
    line = "".join(char if " " <= char <= "~" else "?" for char in "; ".join(parts))
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..."


def _candidate(candidate: Candidate) -> str:
    if candidate.removed_by is not None:
        return f"{candidate.name}: {Removal(candidate.removed_by, candidate.detail)}"
    expected = [
        f"{_milliseconds(seconds)} ms {what}"
        for seconds, what in ((candidate.ttft, "to first token"), (candidate.tpot, "per token"))
        if seconds is not None
    ]
    if not expected:
        return f"{candidate.name}: not measured yet"
    return f"{candidate.name}: expected {', '.join(expected)} ({candidate.samples:,} calls)"


def _milliseconds(seconds: float) -> str:
    milliseconds = seconds * 1000.0
    return f"{milliseconds:,.0f}" if milliseconds >= 10.0 else f"{milliseconds:.1f}"
