"""When serving is given up at the start."""

from __future__ import annotations

import sys

import pytest

from engines import Health
from engines.launch import Command, Supervisor, free_port
from engines.llamacpp_launch import Launch
from gateway.config import Config, Endpoint, Pool
from gateway.launches import none_came_up


def supervisor(name: str, code: str) -> Supervisor:
    """Of a program that is healthy as long as it runs."""

    async def health() -> Health:
        return Health("ready" if code == GOOD else "loading")

    made = Command((sys.executable, "-c", code))
    return Supervisor(name, lambda port: made, health, port=free_port(), backoff=(60.0, 60.0))


GOOD = "import time; time.sleep(999)"
BAD = "raise SystemExit('error: no tensors')"
LAUNCHED = Launch(model="m.gguf")


@pytest.mark.parametrize(
    ("codes", "elsewhere", "want"),
    [
        ((BAD,), False, "e0 ended with exit code 1; it said: error: no tensors"),
        ((BAD, GOOD), False, None),
        ((GOOD,), False, None),
        ((BAD,), True, None),
    ],
)
async def test_serving_is_given_up_only_where_every_engine_failed_at_its_first_load(
    codes: tuple[str, ...], elsewhere: bool, want: str | None
) -> None:
    supervisors = {f"e{n}": supervisor(f"e{n}", code) for n, code in enumerate(codes)}
    endpoints = [Endpoint(name=name, engine="llamacpp", launch=LAUNCHED) for name in supervisors]
    pools = [Pool(model=endpoint.name, endpoints=[endpoint]) for endpoint in endpoints]
    if elsewhere:
        pools.append(Pool(model="x", endpoints=[Endpoint(name="x", engine="vllm", url="http://127.0.0.1:1")]))
    for one in supervisors.values():
        one.start()
    try:
        assert await none_came_up(Config(pools=pools), supervisors) == want
    finally:
        for one in supervisors.values():
            await one.stop()
