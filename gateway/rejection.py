"""The router's "reject", in words for the client: which endpoints there are, and why none could take the call."""

from __future__ import annotations

from engines.errors import Overloaded
from gateway.errors import BadRequest, GatewayError, NoEndpoint, QueueFull
from router import Decision
from router.contract import Removal

__all__ = ["rejection"]

_UNFIT = {"too_long", "lacks_feature", "feature_unknown"}
"""Reasons that lie in the request: asking again would not help."""

_PARAMS = {
    "tools": "tools",
    "tool_choice": "tool_choice",
    "json_schema": "response_format",
    "json_object": "response_format",
    "logprobs": "logprobs",
    "logit_bias": "logit_bias",
    "n": "n",
    "echo": "echo",
    "suffix": "suffix",
    "token_prompt": "prompt",
    "images": "messages",
    "audio": "messages",
}


def rejection(decision: Decision, model: str) -> GatewayError | Overloaded:
    """The error that tells a rejected call why. Names each endpoint with its reason."""
    removed = {n: c for n, c in decision.candidates.items() if c.removed_by is not None}
    reasons = {c.removed_by for c in removed.values()}
    why = "; ".join(f"{n}: {Removal(c.removed_by or '', c.detail)}" for n, c in removed.items())
    if decision.reason == "queue_full":
        text = f"Too many calls wait for {model!r} already; try again later."
        return QueueFull(text, retry_after=decision.retry_after)
    text = f"No endpoint of {model!r} can take this call: {why or decision.reason or 'there is none'}."
    if reasons and reasons <= _UNFIT:
        if "too_long" in reasons:
            return BadRequest(text, param="messages", code="context_length_exceeded")
        lacking = next((c.detail for c in removed.values() if c.removed_by == "lacks_feature"), "")
        return BadRequest(text, param=_PARAMS.get(lacking.split(", ")[0]), code="unsupported_parameter")
    if decision.reason == "on_hold":
        # Every engine that could take it asked to be left alone for a while, and said so with the client's status.
        return Overloaded(text, status=429, retry_after=decision.retry_after)
    return NoEndpoint(text, retry_after=decision.retry_after)
