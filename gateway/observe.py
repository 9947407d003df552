"""What was seen of an attempt, folded into one `Observation`."""

from __future__ import annotations

from engines import EngineError
from gateway.contract import Observation, Pool, Request
from gateway.observation import estimate_tokens, tpot
from gateway.relay import Relay
from router import Candidate, Decision

__all__ = ["observation"]


def observation(
    pool: Pool,
    request: Request,
    decision: Decision,
    relay: Relay,
    dispatched: float,
    now: float,
    outcome: str,
    error: EngineError | None,
) -> Observation:
    """Fold one ended attempt. Pure; `dispatched` and `now` are on the house's clock."""
    call, usage = request.call, relay.usage
    name = decision.endpoint or ""
    candidate = decision.candidates.get(name) or Candidate(name=name, engine="")
    first, last = relay.first_token, relay.last_token
    output = usage.completion_tokens if usage else None
    p50, p99, longest = relay.stamps.fold()
    if call.kind == "embeddings":
        output = 0
    estimated = usage is None or usage.estimated or output is None or usage.prompt_tokens is None
    return Observation(
        call=call.id,
        attempt=decision.attempt,
        model=pool.model,
        engine=candidate.engine,
        endpoint=name,
        policy=decision.policy,
        kind=call.kind,
        stream=call.stream,
        outcome=outcome,
        error=type(error).__name__ if error is not None else None,
        started=request.started,
        queue_wait=dispatched - request.arrived,
        total=now - dispatched,
        call_ttft=None if first is None else first - request.arrived,
        attempt_ttft=None if first is None else first - dispatched,
        tpot=None if first is None or last is None or estimated else tpot(first, last, output),
        itl_p50=p50,
        itl_p99=p99,
        itl_max=longest,
        prompt_tokens=usage.prompt_tokens if usage and usage.prompt_tokens is not None else call.prompt_tokens,
        cached_tokens=usage.cached_tokens if usage else None,
        # Blocks are a better guess of tokens than bytes where the engine streams, as nearly all send one a block.
        output_tokens=output if output is not None else (relay.blocks or estimate_tokens(relay.bytes)),
        reasoning_tokens=usage.reasoning_tokens if usage else None,
        tokens_estimated=estimated,
        bytes_in=request.bytes_in,
        bytes_out=relay.bytes,
        finish=relay.finish,
        finish_derived=relay.derived,
        engine_prefill=relay.timings.prefill if relay.timings else None,
        engine_decode=relay.timings.decode if relay.timings else None,
        inflight=candidate.inflight,
        running=candidate.inflight - candidate.waiting,
        context_tokens=candidate.context_tokens,
        queued_tokens=candidate.queued_tokens,
        predicted_ttft=candidate.ttft,
        predicted_tpot=candidate.tpot,
        explored=decision.explored,
        propensity=decision.propensities.get(name),
    )
