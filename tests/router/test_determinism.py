"""The same seed, events and times give the same decisions, byte for byte, in any process and order of endpoints."""

from __future__ import annotations

import random
import subprocess
import sys

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.contract import Load
from router import Decision, Endpoint, Router
from router.draw import draw
from router.policies import names as policy_names
from tests.router.build import ask, endpoint

FLEET = [
    endpoint("trt-0", "tensorrt_llm", slots=3, max_input_tokens=900),
    endpoint("vllm-0", slots=6),
    endpoint("vllm-1", "vllm", "quota:x", slots=6),
    endpoint("tgi-0", "tgi", "hf", "quota:x", slots=4),
    endpoint("tgi-1", "tgi", "hf"),
    endpoint("cpu-0", "llamacpp", slots=2),
]


def play(router: Router, steps: int = 300, seed: int = 1, start: float = 0.0) -> list[Decision]:
    """A stormy life, the same for the same seed and the same answers of the router."""
    rng = random.Random(seed)
    now, live, made = start, [], []
    for step in range(steps):
        now += rng.random() * 0.2
        made.append(
            router.decide(ask(f"s{seed}r{step}", prompt_tokens=rng.randrange(1200), stream=rng.random() < 0.8), now)
        )
        live += [made[-1].attempt] if made[-1].action == "send" else []
        for _ in range(rng.randrange(3)):
            if not live:
                break
            attempt = live.pop(rng.randrange(len(live)))
            match rng.randrange(6):
                case 0:
                    made.append(router.retry(attempt, now, failure="error"))
                case 1:
                    made.append(router.retry(attempt, now, failure="overload", retry_after=rng.choice([None, 2.0])))
                case _:
                    router.first_token(attempt, now)
                    router.finish(attempt, now + 0.05, output_tokens=10)
                    continue
            live += [made[-1].attempt] if made[-1].action == "send" else []
        if rng.random() < 0.1:
            router.set_load(rng.choice(FLEET).name, Load(running=rng.randrange(5)), now)
            router.set_health(rng.choice(FLEET).name, rng.choice(["ready", "ready", "down", "degraded"]), now)
        made += router.wake(now)
    return made


def encoded(decisions: list[Decision]) -> bytes:
    return msgspec.msgpack.encode(decisions)


@pytest.mark.parametrize("policy", policy_names())
def test_the_order_of_endpoints_decides_nothing(policy: str) -> None:
    orders = [FLEET, FLEET[::-1], random.Random(3).sample(FLEET, len(FLEET))]
    lives = [encoded(play(Router(order, policy=policy, seed=5))) for order in orders]
    assert lives[0] == lives[1] == lives[2]


def test_the_seed_decides_ties() -> None:
    fleet = [endpoint(name) for name in "abc"]
    assert encoded(play(Router(fleet, seed=1))) == encoded(play(Router(fleet, seed=1)))
    assert encoded(play(Router(fleet, seed=1))) != encoded(play(Router(fleet, seed=2)))


@pytest.mark.parametrize("policy", policy_names())
def test_a_restored_router_decides_as_the_first_goes_on_to(policy: str) -> None:
    first = Router(FLEET, policy=policy, seed=5)
    play(first, seed=1)
    second = Router(FLEET[::-1], policy=policy, seed=5)
    second.restore(first.dump())
    assert second.dump() == first.dump()
    assert encoded(play(first, seed=2, start=100.0)) == encoded(play(second, seed=2, start=100.0))
    assert second.states(200.0) == first.states(200.0)


def test_another_process_decides_the_same() -> None:
    program = (
        "import hashlib; from router import Router; from tests.router.test_determinism import *;"
        "print(hashlib.sha256(encoded(play(Router(FLEET, seed=5)))).hexdigest())"
    )
    digests = set()
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": hash_seed},
        )
        digests.add(done.stdout)
    assert len(digests) == 1


@given(seed=st.integers(), attempt=st.text())
@settings(max_examples=200)
def test_draws_are_in_the_unit_interval(seed: int, attempt: str) -> None:
    assert 0.0 <= draw(seed, attempt) < 1.0


def test_draws_are_uniform_and_differ_by_seed() -> None:
    tenths = [0] * 10
    for number in range(10_000):
        tenths[int(10 * draw(0, f"r{number}"))] += 1
    assert all(900 < count < 1100 for count in tenths)
    assert draw(0, "r1") != draw(1, "r1")


def test_decisions_survive_encoding() -> None:
    decision = Router([Endpoint("a", "vllm")]).decide(ask(), 1.0)
    assert msgspec.json.decode(msgspec.json.encode(decision), type=Decision) == decision
