"""The whole gateway in front of the embedded engine with the real llama-cpp-python, while its clients misbehave."""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.harness import Gateway, running
from tests.real.house import Client, gguf_of

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(600)]

ROUNDS = 200
MODEL = "tiny"


@pytest.fixture(params=[1, 3], ids=["one slot", "three slots"])
def gateway(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Gateway]:
    endpoint = {
        "name": "emb-0",
        "engine": "embedded",
        "model": str(gguf_of(tmp_path)),
        "slots": request.param,
        "threads": 1,
        "context": 2048,
        "batch": 64,
    }
    with running(tmp_path, {"pools": [{"model": MODEL, "endpoints": [endpoint]}]}) as gateway:
        yield gateway


class Health:
    """Asks for `/health` all the time, and keeps how long each answer took, in seconds."""

    def __init__(self, gateway: Gateway) -> None:
        self.took: list[float] = []
        self.bad: list[int] = []
        self._gateway = gateway
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Health:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self._stop.wait(0.01):
            began = time.perf_counter()
            status, _ = self._gateway.get("/health")
            self.took.append(time.perf_counter() - began)
            if status != 200:
                self.bad.append(status)


def body(**fields: Any) -> dict[str, Any]:
    asked = {"role": "user", "content": fields.pop("content", "tell me what you would like")}
    return {"model": MODEL, "messages": [asked], "stream": True, **fields}


def test_two_concurrent_streams_are_both_whole_and_the_same_as_alone(gateway: Gateway) -> None:
    def text(client: Client) -> str:
        chunks = client.chunks()
        assert [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]][-1] in ("stop", "length")
        return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])

    def asked(content: str) -> Client:
        return Client(gateway.port, body(content=content, temperature=0, max_tokens=200))

    alone = [text(asked(content)) for content in ("first one", "the other of the two")]
    together = [asked(content) for content in ("first one", "the other of the two")]
    assert [text(client) for client in together] == alone
    assert alone[0] != alone[1]


def test_two_hundred_rounds_of_clients_that_leave_at_random(gateway: Gateway) -> None:
    draw = random.Random(1)
    (worker,) = gateway.engines()
    for _ in range(20):  # so that what grows at the beginning has grown
        Client(gateway.port, body(max_tokens=20)).chunks()
    gateway.wait_until("the calls are over", lambda: gateway.metric("enginehouse_in_flight") == 0)
    before = _sizes(gateway.process, worker)
    with Health(gateway) as health:
        for number in range(ROUNDS):
            long = "word " * draw.choice((1, 20, 300))
            clients = [
                Client(gateway.port, body(content=long, max_tokens=draw.randrange(1, 400), stream=draw.random() < 0.8))
                for _ in range(draw.randrange(1, 4))
            ]
            for client in clients:
                if draw.random() < 0.2:
                    assert client.read().startswith(b"HTTP/1.1 200"), client.received[:500]
                    continue
                client.read(draw.choice((0, 0, 1, 500, 3000)))
                client.leave(rudely=number % 2 == 0)
    gateway.wait_until("no call is left", lambda: gateway.metric("enginehouse_in_flight") == 0)
    assert len(Client(gateway.port, body(max_tokens=20)).chunks()) > 1, "a place is stuck"
    after = _sizes(gateway.process, worker)

    assert worker.is_running() and gateway.engines() == [worker], "the worker crashed"
    print(f"\nfiles, threads, MB of gateway and worker: {before} -> {after}")
    assert after["files"] <= before["files"] + 2 and after["threads"] == before["threads"]
    assert after["megabytes"] <= before["megabytes"] + 20
    took = sorted(health.took)
    median, most, nearly_all = statistics.median(took), took[int(0.95 * len(took))], took[int(0.99 * len(took))]
    print(f"/health {len(took)} times, ms: {1000 * median:.1f}, p95 {1000 * most:.1f}, p99 {1000 * nearly_all:.1f}")
    assert not health.bad
    assert most < 0.05  # what is promised; the last twentieth is left to what else runs on the machine


def _sizes(*processes: psutil.Process) -> dict[str, float]:
    return {
        "files": sum(process.num_fds() for process in processes),
        "threads": sum(process.num_threads() for process in processes),
        "megabytes": round(sum(process.memory_info().rss for process in processes) / 2**20, 1),
    }
