"""What `/metrics` shows: names of the convention, labels of the configuration, and nothing that a client makes up."""

from __future__ import annotations

import asyncio
import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.contract import Pool
from gateway.metrics import Metrics
from router import EndpointState
from tests.gateway.served import StandingRouter, decision, observation, pool, served


class Page:
    """A rendered page, parsed by Prometheus's own parser."""

    def __init__(self, body: bytes) -> None:
        self.size = len(body)
        self.families = {family.name: family for family in text_string_to_metric_families(body.decode())}

    def value(self, name: str, **labels: str) -> float:
        """Sum of the samples of this name whose labels hold these."""
        return sum(
            sample.value
            for family in self.families.values()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def series(self) -> int:
        return sum(len(family.samples) for family in self.families.values())


def build(pools: dict[str, Pool] | None = None, max_age: float = 0.0) -> Metrics:
    return Metrics(pools or {"m": pool(vllm_0="vllm", tgi_0="tgi")}, version="9.9", max_age=max_age)


async def page(metrics: Metrics) -> Page:
    body, content_type = await metrics.render()
    assert content_type.startswith("text/plain; version=0.0.4")
    return Page(body)


async def test_a_call_is_counted_under_the_convention_s_names_and_labels() -> None:
    metrics = build()
    metrics.observe(served())
    seen = await page(metrics)
    where = {
        "gen_ai_operation_name": "chat",
        "gen_ai_provider_name": "vllm",
        "gen_ai_request_model": "m",
        "engine": "vllm",
        "endpoint": "vllm-0",
        "policy": "adaptive",
        "outcome": "ok",
    }
    assert seen.value("gen_ai_server_time_to_first_token_seconds_count", **where) == 1
    assert seen.value("gen_ai_server_time_to_first_token_seconds_sum", **where) == pytest.approx(0.05)
    assert seen.value("gen_ai_server_time_to_first_token_seconds_bucket", le="0.04", **where) == 0
    assert seen.value("gen_ai_server_time_to_first_token_seconds_bucket", le="0.06", **where) == 1
    assert seen.value("gen_ai_server_time_per_output_token_seconds_sum", **where) == pytest.approx(0.02)
    assert seen.value("gen_ai_server_request_duration_seconds_sum", **where) == pytest.approx(1.6)
    assert seen.value("gen_ai_client_token_usage_sum", gen_ai_token_type="input", **where) == 12
    assert seen.value("gen_ai_client_token_usage_sum", gen_ai_token_type="output", **where) == 70
    assert seen.value("enginehouse_call_ttft_seconds_sum", endpoint="vllm-0") == pytest.approx(0.052)
    assert seen.value("enginehouse_tokens_total", type="cached") == 4
    assert seen.value("enginehouse_removed_total", endpoint="tgi-0", reason="too_long") == 1
    assert seen.value("enginehouse_requests_total", code="2xx", outcome="ok", kind="chat") == 1
    assert seen.value("enginehouse_build_info", version="9.9") == 1
    assert "1.41.0" in seen.families["gen_ai_server_time_to_first_token_seconds"].documentation
    assert seen.value("process_resident_memory_bytes") > 0


async def test_b26_a_call_that_does_not_stream_gives_no_sample_of_first_tokens() -> None:
    metrics = build()
    # Even where a relay were to fill the fields in: without a stream there is no first token to be seen.
    metrics.observe(served(stream=False, observations=(observation(stream=False),)))
    seen = await page(metrics)
    for name in (
        "gen_ai_server_time_to_first_token_seconds",
        "gen_ai_server_time_per_output_token_seconds",
        "enginehouse_call_ttft_seconds",
        "enginehouse_itl_seconds",
    ):
        assert seen.value(f"{name}_count") == 0, name
    assert seen.value("gen_ai_server_request_duration_seconds_count") == 1
    assert seen.value("gen_ai_client_token_usage_count") == 2


async def test_only_successful_streams_count_as_the_server_s_ttft_but_every_client_s_wait_counts() -> None:
    metrics = build()
    metrics.observe(served(outcome="cancelled", status=499, observations=(observation(outcome="cancelled"),)))
    seen = await page(metrics)
    assert seen.value("gen_ai_server_time_to_first_token_seconds_count") == 0
    assert seen.value("enginehouse_call_ttft_seconds_count", outcome="cancelled") == 1
    assert seen.value("enginehouse_client_gone_total", model="m") == 1
    assert seen.value("enginehouse_requests_total", code="4xx") == 1


async def test_b29_ten_thousand_junk_labels_add_a_handful_of_series() -> None:
    metrics = build()
    metrics.observe(served())
    before = await page(metrics)
    for index in range(10_000):
        junk = f"gpt-4o-mimi-{index}"
        metrics.observe(
            served(
                model=junk,
                kind=junk,
                policy=junk,
                outcome=junk,
                endpoint=junk,
                engine=junk,
                code=junk,
                status=index,
                observations=(
                    observation(
                        model=junk, kind=junk, policy=junk, engine=junk, endpoint=junk, outcome=junk, error=junk
                    ),
                    observation(model="m", endpoint=junk, engine=junk, policy=junk, outcome="error", error=junk),
                ),
                decisions=(decision(policy=junk),),
            )
        )
    after = await page(metrics)
    # Each family has one series of `other`, a histogram of which is up to twenty samples.
    assert after.series() - before.series() < 600
    assert after.value("enginehouse_attempts_total", model="other") == 10_000
    assert after.value("enginehouse_attempts_total", model="m", endpoint="other") == 10_000
    text = str(after.families)
    assert "mimi" not in text
    assert len(metrics._attempts) < 10  # the look-up itself must not grow either


async def test_b29_words_that_look_right_are_bounded_too() -> None:
    metrics = build()
    for index in range(1_000):
        metrics.observe(served(outcome="rejected", status=400, code=f"code_{index}", observations=(), decisions=()))
    seen = await page(metrics)
    kinds = {
        sample.labels.get("error_type") for sample in seen.families["gen_ai_server_request_duration_seconds"].samples
    }
    assert len(kinds) <= 65
    assert "other" in kinds


async def test_failed_attempts_show_as_retries_and_failovers() -> None:
    metrics = build()
    failed = observation(
        endpoint="tgi-0", engine="tgi", outcome="error", error="Unreached", call_ttft=None, attempt_ttft=None, tpot=None
    )
    again = observation(attempt="c1/2", queue_wait=9.0)
    metrics.observe(served(observations=(failed, again), decisions=(decision(), decision(attempt="c1/2"))))
    seen = await page(metrics)
    assert seen.value("enginehouse_attempts_total", endpoint="tgi-0", outcome="error", error="Unreached") == 1
    assert seen.value("enginehouse_attempts_total", endpoint="vllm-0", outcome="ok", error="none") == 1
    assert seen.value("enginehouse_retries_total", error="Unreached") == 1
    assert seen.value("enginehouse_failovers_total", endpoint="vllm-0") == 1
    assert seen.value("enginehouse_requests_total") == 1
    assert seen.value("enginehouse_queue_wait_seconds_sum") == pytest.approx(0.002)  # of the first dispatch alone


async def test_estimated_tokens_are_never_shown_as_counted() -> None:
    metrics = build()
    metrics.observe(served(observations=(observation(tokens_estimated=True),)))
    seen = await page(metrics)
    assert seen.value("gen_ai_client_token_usage_count") == 0
    assert seen.value("enginehouse_tokens_total") == 0
    assert seen.value("enginehouse_estimated_tokens_total", type="output") == 70


async def test_b38_mirrored_attempts_count_apart_and_nowhere_else() -> None:
    metrics = build()
    metrics.observe(served(observations=(observation(), observation(endpoint="tgi-0", engine="tgi", shadow=True))))
    seen = await page(metrics)
    assert seen.value("enginehouse_shadow_attempts_total", endpoint="tgi-0", outcome="ok") == 1
    assert seen.value("enginehouse_shadow_time_to_first_token_seconds_count") == 1
    assert seen.value("gen_ai_server_time_to_first_token_seconds_count") == 1
    assert seen.value("enginehouse_tokens_total", type="output") == 70
    assert seen.value("enginehouse_attempts_total") == 1
    assert seen.value("enginehouse_retries_total") == 0


async def test_endpoints_are_shown_as_the_router_knows_them_at_the_scrape() -> None:
    one = pool(vllm_0="vllm")
    assert isinstance(one.router, StandingRouter)
    metrics = Metrics({"m": one}, version="1", clock=lambda: 77.0, max_age=0.0)
    seen = await page(metrics)
    assert one.router.asked == [77.0]
    assert seen.value("enginehouse_in_flight", model="m", engine="vllm", endpoint="vllm-0") == 3
    assert seen.value("enginehouse_endpoint_health", state="ready") == 1
    assert seen.value("enginehouse_endpoint_health") == 1
    assert seen.value("enginehouse_engine_running") == 5
    assert not seen.families["enginehouse_engine_waiting"].samples  # the engine did not say

    one.router.written = {
        "vllm-0": EndpointState(
            health="down", breaker="open", eligible=False, inflight=0, waiting=0, context_tokens=0, queued_tokens=0
        )
    }
    seen = await page(metrics)
    assert seen.value("enginehouse_endpoint_health", state="down") == 1
    assert seen.value("enginehouse_endpoint_health", state="ready") == 0
    assert seen.value("enginehouse_endpoint_breaker", state="open") == 1
    assert seen.value("enginehouse_eligible") == 0


async def test_what_other_parts_count_is_shown() -> None:
    metrics = build()
    dropped = 3
    metrics.watch("enginehouse_log_dropped_total", "Lines.", lambda: dropped)
    metrics.watch("enginehouse_record_queue", "Rows.", lambda: 5, kind="gauge")
    seen = await page(metrics)
    assert seen.value("enginehouse_log_dropped_total") == 3
    assert seen.value("enginehouse_record_queue") == 5


async def test_a_page_is_made_once_a_second_off_the_loop_however_many_scrape() -> None:
    now = 100.0
    metrics = Metrics({"m": pool()}, version="1", clock=lambda: now, max_age=1.0)
    threads: list[int] = []
    metrics.watch("enginehouse_probe", "Where it is read.", lambda: threads.append(threading.get_ident()) or 0.0)
    first = await asyncio.gather(*(metrics.render() for _ in range(20)))
    assert len({id(body) for body, _ in first}) == 1
    metrics.observe(served())
    now = 100.9
    assert (await metrics.render())[0] is first[0][0]
    now = 101.0
    assert (await metrics.render())[0] is not first[0][0]
    assert threads == [threading.get_ident()] * 2  # twice, and on the loop, to which routers belong


async def test_rendering_leaves_the_loop_free() -> None:
    """The loop goes on while the page is made: a rendering that waits for the loop would else never end."""
    metrics = build()
    entered, release = threading.Event(), threading.Event()

    class Slow:
        def collect(self) -> list[object]:
            entered.set()
            assert release.wait(30)
            return []

    metrics._registry.register(Slow())  # type: ignore[arg-type]  # a collector that stands still
    entered.clear()
    rendering = asyncio.ensure_future(metrics.render())
    assert await asyncio.to_thread(entered.wait, 30)
    release.set()
    await rendering


async def test_a_scraper_that_leaves_does_not_take_the_page_from_the_others() -> None:
    metrics = build()
    leaving = asyncio.ensure_future(metrics.render())
    staying = asyncio.ensure_future(metrics.render())
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert (await staying)[0].startswith(b"# HELP")


async def test_a_rendering_that_failed_is_told_and_not_kept() -> None:
    metrics = build(max_age=60.0)
    broken = True

    class Fragile:
        def collect(self) -> list[object]:
            if broken:
                raise RuntimeError("collector broke")
            return []

    broken = False
    metrics._registry.register(Fragile())  # type: ignore[arg-type]
    broken = True
    with pytest.raises(RuntimeError, match="collector broke"):
        await metrics.render()
    broken = False
    assert (await metrics.render())[0]


async def test_counting_while_a_page_is_made_never_breaks_it() -> None:
    """Series are added on the loop while a thread walks over them; every histogram stays whole in itself."""
    pools = {f"m{index}": pool(f"m{index}") for index in range(300)}
    metrics = build(pools)
    rendering = asyncio.ensure_future(metrics.render())
    for index in range(300):
        model = f"m{index}"
        metrics.observe(served(model=model, observations=(observation(model=model),)))
        if not index % 10:
            await asyncio.sleep(0)
    await rendering
    seen = await page(metrics)
    assert seen.value("enginehouse_requests_total") == 300
    for family in seen.families.values():
        if family.type == "histogram":
            total = seen.value(f"{family.name}_count")
            assert seen.value(f"{family.name}_bucket", le="+Inf") == total
