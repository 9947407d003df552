"""How the endpoints stand when the page is made, and numbers that other parts of the gateway count themselves."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from engines.contract import HealthState, Load
from gateway.contract import Pool
from gateway.labels import known_endpoint
from router import EndpointState

__all__ = ["Gauges"]

WHERE = ("model", "engine", "endpoint")
HEALTH: tuple[str, ...] = get_args(HealthState)
BREAKER = ("closed", "open", "half_open")

UNSAID = Load()

Labels = tuple[str, str, str]

GAUGES: tuple[tuple[str, str, Callable[[EndpointState], float | None]], ...] = (
    ("in_flight", "The gateway's own attempts on the endpoint.", lambda s: s.inflight),
    ("waiting", "Those of them without their first token.", lambda s: s.waiting),
    ("context_tokens", "Tokens of context among the gateway's running attempts.", lambda s: s.context_tokens),
    ("queued_tokens", "Prompt tokens of the gateway's waiting attempts.", lambda s: s.queued_tokens),
    ("eligible", "1 where a plain call could be sent there now.", lambda s: s.eligible),
    ("engine_running", "Calls that run there, by the engine's own word.", lambda s: (s.load or UNSAID).running),
    ("engine_waiting", "Calls that wait there, by the engine's own word.", lambda s: (s.load or UNSAID).waiting),
    ("engine_kv_used_ratio", "Used share of the KV cache (0..1), by the engine.", lambda s: (s.load or UNSAID).kv_used),
)
STATES: tuple[tuple[str, str, tuple[str, ...], Callable[[EndpointState], str]], ...] = (
    ("health", "1 for the state that the endpoint is in.", HEALTH, lambda s: s.health),
    ("breaker", "1 for the state that the endpoint's breaker is in.", BREAKER, lambda s: s.breaker),
)


class Gauges:
    """A prometheus_client collector over what `read` last saw.

    `read` runs on the loop, `collect` in the rendering thread; what passes between them is replaced whole.
    """

    def __init__(self, version: str) -> None:
        self._build = (version, platform.python_version())
        self._watched: list[tuple[str, str, Callable[[], float], str]] = []
        self._endpoints: list[tuple[Labels, EndpointState]] = []
        self._numbers: list[tuple[str, str, float, str]] = []

    def watch(self, name: str, help: str, read: Callable[[], float], kind: Literal["counter", "gauge"]) -> None:
        self._watched.append((name, help, read, kind))

    def read(self, pools: Mapping[str, Pool], now: float) -> None:
        """Ask every router and every watched part. `now` is a time on the routers' clock."""
        endpoints: list[tuple[Labels, EndpointState]] = []
        for model, pool in pools.items():
            for name, state in pool.router.states(now).items():
                endpoints.append(((model, *known_endpoint(pool, name)), state))
        self._endpoints = endpoints
        self._numbers = [(name, help, read(), kind) for name, help, read, kind in self._watched]

    def collect(self) -> Iterator[Metric]:
        endpoints, numbers = self._endpoints, self._numbers
        build = GaugeMetricFamily("enginehouse_build_info", "Always 1.", labels=("version", "python"))
        build.add_metric(self._build, 1)
        yield build
        for name, help, figure in GAUGES:
            gauge = GaugeMetricFamily(f"enginehouse_{name}", help, labels=WHERE)
            for labels, state in endpoints:
                value = figure(state)
                if value is not None:  # an engine that does not say is not an engine that says nought
                    gauge.add_metric(labels, value)
            yield gauge
        for name, help, words, word in STATES:
            gauge = GaugeMetricFamily(f"enginehouse_endpoint_{name}", help, labels=(*WHERE, "state"))
            for labels, state in endpoints:
                for each in words:
                    gauge.add_metric((*labels, each), float(word(state) == each))
            yield gauge
        for name, help, number, kind in numbers:
            family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
            yield family(name, help, value=number)
