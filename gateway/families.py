"""Every metric that the gateway counts itself: names, help, buckets and labels, as one table.

Names that begin with `gen_ai_` follow the OpenTelemetry semantic conventions for generative AI, version 1.41.0
(status: development; since then they are kept in a repository of their own), in Prometheus form: dots become
underscores and the unit is spelt out. Their labels are the attributes that the convention requires, beside ours.
Their buckets hold every boundary that the convention asks for, and some more where engines are faster or calls are
longer than it foresees. `gen_ai_provider_name` is the engine's kind; the convention allows custom values.

By the convention TTFT and TPOT are those of successful answers only, and usage is never an estimate. TTFT there runs
from dispatch, as the engine is the server that it describes; what a client waited is `enginehouse_call_ttft_seconds`.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from gateway.series import Counter, Histogram

__all__ = ["CONVENTION", "Families"]

CONVENTION = "OpenTelemetry GenAI semantic conventions 1.41.0"

TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0)
TPOT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
DURATION = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84, 327.68)
TOKENS = tuple(float(4**power) for power in range(14))
OVERHEAD = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
RATIO = (0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0)

GENAI = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")
WHERE = ("engine", "endpoint", "policy", "outcome")
OURS = ("model", "kind", *WHERE)


class Families:
    """The counters and histograms, each an attribute. The order of the attributes is the order on the page."""

    def __init__(self) -> None:
        self.server_ttft = Histogram(
            "gen_ai_server_time_to_first_token_seconds",
            f"From dispatch to the first token of successful streams. {CONVENTION}.",
            TTFT,
            (*GENAI, *WHERE),
        )
        self.server_tpot = Histogram(
            "gen_ai_server_time_per_output_token_seconds",
            f"Per output token after the first, by the engine's own count, of successful streams. {CONVENTION}.",
            TPOT,
            (*GENAI, *WHERE),
        )
        self.server_duration = Histogram(
            "gen_ai_server_request_duration_seconds",
            f"Calls as the client saw them, from their last body byte to their end. {CONVENTION}.",
            DURATION,
            (*GENAI, *WHERE, "error_type"),
        )
        self.token_usage = Histogram(
            "gen_ai_client_token_usage",
            f"Input and output tokens of a call by the engine's own count. {CONVENTION}.",
            TOKENS,
            (*GENAI, "gen_ai_token_type", *WHERE),
        )
        self.requests = Counter(
            "enginehouse_requests_total",
            "Calls by what became of them; code is the class of the HTTP status (4xx holds 499, client gone).",
            ("model", "kind", "policy", "outcome", "code"),
        )
        self.client_gone = Counter(
            "enginehouse_client_gone_total", "Calls whose client left before the answer's end.", ("model", "kind")
        )
        self.attempts = Counter(
            "enginehouse_attempts_total",
            "Tries of calls on endpoints; error is the class in the tree of engine errors.",
            ("model", "engine", "endpoint", "outcome", "error"),
        )
        self.retries = Counter(
            "enginehouse_retries_total",
            "Attempts after a call's first, by the error of the one before.",
            ("model", "error"),
        )
        self.failovers = Counter(
            "enginehouse_failovers_total",
            "Attempts after a call's first that went to another endpoint.",
            ("model", "endpoint"),
        )
        self.call_ttft = Histogram(
            "enginehouse_call_ttft_seconds",
            "From the call's last body byte to the first token of streams: what an SLO means.",
            TTFT,
            OURS,
        )
        self.attempt_duration = Histogram(
            "enginehouse_attempt_duration_seconds", "From an attempt's dispatch to its end.", DURATION, OURS
        )
        self.queue_wait = Histogram(
            "enginehouse_queue_wait_seconds",
            "From the call's last body byte to its first dispatch.",
            (*OVERHEAD, 2.5, 5.0, 10.0, 30.0, 60.0),
            ("model", "kind", "policy"),
        )
        self.overhead = Histogram(
            "enginehouse_overhead_seconds",
            "The part of a call that was neither waiting for an engine nor for a slow client.",
            OVERHEAD,
            ("model", "kind", "policy"),
        )
        self.itl = Histogram(
            "enginehouse_itl_seconds",
            "Between blocks that carry tokens; one sample per stream and statistic (p50, p99, max of that stream).",
            TPOT,
            (*OURS, "stat"),
        )
        self.prediction = Histogram(
            "enginehouse_prediction_ratio",
            "Predicted over measured seconds of successful streams; 1 is a perfect prediction.",
            RATIO,
            ("model", "engine", "endpoint", "what"),
        )
        self.tokens = Counter(
            "enginehouse_tokens_total",
            "Tokens by the engine's own count; cached ones are among the input, reasoning ones among the output.",
            ("model", "engine", "endpoint", "type"),
        )
        self.estimated_tokens = Counter(
            "enginehouse_estimated_tokens_total",
            "Tokens that the gateway had to estimate, because the engine gave no count.",
            ("model", "engine", "endpoint", "type"),
        )
        self.bytes = Counter(
            "enginehouse_attempt_bytes_total",
            "Body bytes sent to engines (in) and answered by them (out).",
            ("model", "engine", "endpoint", "direction"),
        )
        self.decisions = Counter(
            "enginehouse_decisions_total",
            "Routing decisions; explored ones were drawn to be measured.",
            ("model", "policy", "action", "explored"),
        )
        self.removed = Counter(
            "enginehouse_removed_total",
            "Endpoints that a decision could not choose, by the reason word.",
            ("model", "endpoint", "reason"),
        )
        self.shadow_attempts = Counter(
            "enginehouse_shadow_attempts_total",
            "Mirrored attempts. They are in no other metric, as no client asked for them.",
            ("model", "engine", "endpoint", "outcome", "error"),
        )
        self.shadow_ttft = Histogram(
            "enginehouse_shadow_time_to_first_token_seconds",
            "From dispatch to the first token of successful mirrored streams.",
            TTFT,
            ("model", "engine", "endpoint"),
        )
        self.shadow_tpot = Histogram(
            "enginehouse_shadow_time_per_output_token_seconds",
            "Per output token after the first, of successful mirrored streams.",
            TPOT,
            ("model", "engine", "endpoint"),
        )

    def collect(self) -> Iterator[Metric]:
        """Yield every family, in the order above. (prometheus_client's collector protocol.)"""
        for family in vars(self).values():
            yield family.collect()
