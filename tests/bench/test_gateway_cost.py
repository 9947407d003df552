"""What the gateway costs beside nginx in one interleaved run: CPU per chunk and per request, added TTFT, memory.

Only ratios of one run mean anything: on a shared machine the same nginx costs now this, now that. The bars are for the
ratios; a loss of a fifth against the figures in `COST` (kept by hand, with the run that they come from) fails.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

import pytest

from tests.bench.house import Proxy, bench, cpu_seconds, load

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
STREAMS, CHUNKS, INTERVAL_US, REQUESTS = 50, 100, 20_000, 1500

COST = {"chunk": 3.9, "request": 38.0}
"""Times nginx, in a run of this benchmark on two cores of a shared x86 machine."""


def _chunk_us(proxy: Proxy) -> float:
    before = cpu_seconds(proxy.process.pid)
    load(proxy.url, "stream", connections=STREAMS, requests=STREAMS, chunks=CHUNKS, interval_us=INTERVAL_US)
    time.sleep(0.2)
    return (cpu_seconds(proxy.process.pid) - before) * 1e6 / (STREAMS * CHUNKS)


def _request_us(proxy: Proxy) -> float:
    before = cpu_seconds(proxy.process.pid)
    load(proxy.url, "plain", connections=16, requests=REQUESTS)
    time.sleep(0.2)
    return (cpu_seconds(proxy.process.pid) - before) * 1e6 / REQUESTS


def _ttft_ms(url: str) -> float:
    return load(url, "stream", connections=1, requests=200, chunks=8, interval_us=250)["first_p50_ms"]


def test_the_gateway_costs_no_more_than_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows: dict[str, list[float]] = {}
    with bench(tmp_path) as (nginx, gateway, engine):
        for proxy in (nginx, gateway):  # warm both
            load(proxy.url, "plain", connections=4, requests=200)
        for _ in range(ROUNDS):
            for proxy in (nginx, gateway):
                rows.setdefault(f"{proxy.name} us/chunk", []).append(_chunk_us(proxy))
                rows.setdefault(f"{proxy.name} us/request", []).append(_request_us(proxy))
            direct = _ttft_ms(engine)
            for proxy in (nginx, gateway):
                rows.setdefault(f"{proxy.name} added TTFT ms", []).append(_ttft_ms(proxy.url) - direct)
        memory = {proxy.name: proxy.pss_mb() for proxy in (nginx, gateway)}
    ratios = {
        kind: statistics.median(
            ours / theirs for ours, theirs in zip(rows[f"enginehouse us/{kind}"], rows[f"nginx us/{kind}"], strict=True)
        )
        for kind in COST
    }
    with capsys.disabled():
        print(f"\n\n{ROUNDS} interleaved rounds; load average {', '.join(f'{x:.1f}' for x in os.getloadavg())}")
        print(f"{'':32}{'median':>10}{'least':>10}{'most':>10}")
        for name, values in rows.items():
            print(f"{name:32}{statistics.median(values):10.2f}{min(values):10.2f}{max(values):10.2f}")
        for name, megabytes in memory.items():
            print(f"{name + ' PSS MB after':32}{megabytes:10.1f}")
        for kind, ratio in ratios.items():
            print(f"{'times nginx per ' + kind:32}{ratio:10.2f}   (was {COST[kind]:.2f})")
    for kind, ratio in ratios.items():
        assert ratio <= 1.2 * COST[kind], f"per {kind}: {ratio:.2f} times nginx, was {COST[kind]:.2f}"
