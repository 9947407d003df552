"""Whatever happens in whatever order: no exception, no drift, no invented candidate, nothing left behind."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from engines.contract import Load
from router import Ask, Decision, Endpoint, Limits, Router, Slo
from router.policies import names as policy_names

NAMES = ["a", "b", "c", "d"]
TOOLS = frozenset({"tools"})

ENDPOINTS = st.builds(
    Endpoint,
    name=st.sampled_from(NAMES),
    engine=st.sampled_from(["vllm", "tgi", "llamacpp", "tensorrt_llm", "triton", "embedded", "sglang"]),
    limits=st.builds(
        Limits,
        max_input_tokens=st.none() | st.integers(0, 200),
        max_total_tokens=st.none() | st.integers(0, 300),
        max_concurrency=st.none() | st.integers(0, 4),
        features=st.sampled_from([frozenset(), TOOLS, frozenset({"images"})]),
    ),
    tags=st.frozensets(st.sampled_from(["gpu", "cpu", "hf", "quota:x"])),
)
ASKS = st.builds(
    Ask,
    id=st.sampled_from([f"r{number}" for number in range(12)] + ["r1/2", "r2/m1"]),
    prompt_tokens=st.integers(-1, 250),
    max_tokens=st.none() | st.integers(0, 100),
    kind=st.sampled_from(["generate", "generate", "embed", "other"]),
    stream=st.booleans(),
    sequences=st.integers(0, 3),
    arrived=st.none() | st.floats(0, 50),
    deadline=st.none() | st.floats(0, 200),
    features=st.sampled_from([frozenset(), frozenset(), TOOLS]),
    slo=st.none() | st.builds(Slo, ttft=st.none() | st.floats(0, 1), tpot=st.none() | st.floats(0, 1)),
    priority=st.integers(-1, 1),
)
COUNTS = st.none() | st.integers(0, 50)
SECONDS = st.none() | st.floats(0, 5)
BOGUS = st.sampled_from(["r1", "r2/2", "r3/m1", "nobody", ""])


class Life(RuleBasedStateMachine):
    """A router under random events; times mostly rise, and sometimes come late."""

    attempts: Bundle[str] = Bundle("attempts")

    @initialize(
        endpoints=st.lists(ENDPOINTS, max_size=4, unique_by=lambda one: one.name),
        policy=st.sampled_from(policy_names()),
    )
    def begin(self, endpoints: list[Endpoint], policy: str) -> None:
        self.router = Router(endpoints, policy=policy, seed=3)
        self.time = 0.0

    def now(self, late: float = 0.0) -> float:
        return max(0.0, self.time - late)

    def check(self, decision: Decision) -> Decision:
        states = self.router.states(self.time)
        assert set(decision.candidates) == set(states)
        ranked = set(decision.ranking)
        removed = {name for name, candidate in decision.candidates.items() if candidate.removed_by is not None}
        assert len(ranked) == len(decision.ranking)
        assert ranked | removed == set(states)
        assert not ranked & removed
        for name, candidate in decision.candidates.items():
            assert (candidate.score is None) == (name in removed)
            assert min(candidate.inflight, candidate.waiting, candidate.context_tokens, candidate.queued_tokens) >= 0
        if decision.action == "send":
            assert decision.endpoint == decision.ranking[0]
            assert set(decision.propensities) == set(states)
            assert abs(sum(decision.propensities.values()) - 1.0) < 1e-9
            assert decision.propensities[decision.endpoint] > 0.0
            assert all(decision.propensities[name] == 0.0 for name in removed)
        else:
            assert decision.endpoint is None
            assert decision.reason
        return decision

    @rule(target=attempts, ask=ASKS, policy=st.none() | st.sampled_from(policy_names()))
    def decide(self, ask: Ask, policy: str | None) -> str:
        return self.check(self.router.decide(ask, self.now(), policy)).attempt

    @rule(
        target=attempts,
        attempt=attempts | BOGUS,
        failure=st.sampled_from(["connect", "overload", "timeout", "error", "bad_output"]),
        retry_after=st.none() | st.floats(),
    )
    def retry(self, attempt: str, failure: str, retry_after: float | None) -> str:
        return self.check(self.router.retry(attempt, self.now(), failure, retry_after)).attempt  # type: ignore[arg-type]

    @rule(target=attempts, id=attempts | BOGUS)
    def hedge(self, id: str) -> str:
        return self.check(self.router.hedge(id, self.now())).attempt

    @rule(target=attempts, ask=ASKS, endpoint=st.sampled_from([*NAMES, "nowhere"]))
    def mirror(self, ask: Ask, endpoint: str) -> str:
        return self.router.mirror(ask, endpoint, self.now())

    @rule(attempt=attempts | BOGUS, late=st.floats(0, 3))
    def first_token(self, attempt: str, late: float) -> None:
        self.router.first_token(attempt, self.now(late))

    @rule(attempt=attempts | BOGUS, tokens=st.integers(-5, 100), late=st.floats(0, 3))
    def progress(self, attempt: str, tokens: int, late: float) -> None:
        self.router.progress(attempt, tokens, self.now(late))

    @rule(
        attempt=consumes(attempts) | BOGUS,
        outcome=st.sampled_from(["ok", "ok", "cancelled", "error", "overload"]),
        counts=st.tuples(COUNTS, COUNTS, COUNTS),
        times=st.tuples(SECONDS, SECONDS, SECONDS),
        twice=st.booleans(),
    )
    def finish(
        self, attempt: str, outcome: str, counts: tuple[int | None, ...], times: tuple[float | None, ...], twice: bool
    ) -> None:
        for _ in range(1 + twice):
            self.router.finish(attempt, self.now(), outcome, *counts, *times)  # type: ignore[arg-type]

    @rule(target=attempts, seconds=st.floats(0, 40))
    def wake(self, seconds: float) -> object:
        self.time += seconds
        decisions = [self.check(decision) for decision in self.router.wake(self.now())]
        assert all(decision.action != "wait" for decision in decisions)
        assert self.router.wake(self.now()) == [], "one wake does all that can be done"
        upcoming = self.router.next_wake()
        assert upcoming is None or upcoming > self.now()
        return multiple(*(decision.attempt for decision in decisions))

    @rule(endpoint=ENDPOINTS)
    def set_endpoint(self, endpoint: Endpoint) -> None:
        self.router.set_endpoint(endpoint, self.now())

    @rule(name=st.sampled_from(NAMES))
    def remove(self, name: str) -> None:
        self.router.remove(name, self.now())

    @rule(name=st.sampled_from(NAMES), running=st.none() | st.integers(-2, 9), waiting=st.none() | st.integers(-2, 9))
    def set_load(self, name: str, running: int | None, waiting: int | None) -> None:
        self.router.set_load(name, Load(running, waiting), self.now())

    @rule(
        name=st.sampled_from(NAMES),
        health=st.sampled_from(["unknown", "loading", "ready", "ready", "degraded", "draining", "down"]),
    )
    def set_health(self, name: str, health: str) -> None:
        self.router.set_health(name, health, self.now())

    @rule()
    def restore(self) -> None:
        data = self.router.dump()
        before = self.router.states(self.time)
        self.router.restore(data)
        assert self.router.dump() == data
        assert self.router.states(self.time) == before

    @invariant()
    def gauges_are_sums_over_what_lives(self) -> None:
        desk = self.router._desk
        carried = 0
        for name, state in self.router.states(self.time).items():
            standing = desk.fleet.by_name[name]
            lives = [live for live in desk.ledger.live.values() if live.endpoint == name]
            assert {live.id for live in lives} == set(standing.live)
            assert state.inflight == len(lives) >= 0
            assert state.waiting == sum(not live.running for live in lives)
            assert state.context_tokens == sum(
                live.prompt_tokens + live.output_tokens for live in lives if live.running
            )
            assert state.queued_tokens == sum(live.prompt_tokens for live in lives if not live.running)
            assert standing.sequences == sum(live.sequences for live in lives)
            carried += sum(not live.mirror for live in lives)
        assert desk.fleet.tally.inflight == carried

    @invariant()
    def every_ask_under_way_lives_or_waits_exactly_once(self) -> None:
        desk = self.router._desk
        waiting = {entry.attempt for entry in desk.queue.in_order()}
        assert waiting == set(desk.ledger.waiting)
        assert waiting == {course.waiting for course in desk.ledger.courses.values() if course.waiting is not None}
        assert not waiting & set(desk.ledger.live)
        for course in desk.ledger.courses.values():
            assert course.live or course.waiting is not None
        wanted: dict[str, int] = {}
        for entry in desk.queue.in_order():
            for name in entry.wants:
                wanted[name] = wanted.get(name, 0) + 1
        assert dict(desk.queue.wanted) == wanted

    def teardown(self) -> None:
        """When all has ended, nothing is left."""
        if not hasattr(self, "router"):
            return
        desk = self.router._desk
        for attempt in [*desk.ledger.waiting, *desk.ledger.live]:
            self.router.finish(attempt, self.now())
        assert not desk.ledger.courses
        assert not desk.ledger.live
        assert not desk.queue
        assert all(state.inflight == 0 for state in self.router.states(self.time).values())


Life.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestLife = Life.TestCase
