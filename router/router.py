"""The router: sole owner of in-flight counts, load, health, breakers and learnt models."""

from __future__ import annotations

from collections.abc import Iterable

from router.contract import Ask, Decision, Endpoint, EndpointState, Failure, Load, Outcome

__all__ = ["Router"]


class Router:
    """Decides which endpoint takes a call, and learns from what comes of it (DESIGN 5.1)."""

    def __init__(self, endpoints: Iterable[Endpoint] = (), policy: str = "adaptive", seed: int = 0) -> None:
        raise NotImplementedError

    def decide(self, ask: Ask, now: float, policy: str | None = None) -> Decision:
        raise NotImplementedError

    def retry(self, attempt: str, now: float, failure: Failure = "error", retry_after: float | None = None) -> Decision:
        raise NotImplementedError

    def hedge(self, id: str, now: float) -> Decision:
        raise NotImplementedError

    def mirror(self, ask: Ask, endpoint: str, now: float) -> str:
        raise NotImplementedError

    def first_token(self, attempt: str, now: float) -> None:
        raise NotImplementedError

    def progress(self, attempt: str, output_tokens: int, now: float) -> None:
        raise NotImplementedError

    def finish(
        self,
        attempt: str,
        now: float,
        outcome: Outcome = "ok",
        prompt_tokens: int | None = None,
        output_tokens: int | None = None,
        cached_tokens: int | None = None,
        last_token: float | None = None,
        engine_prefill: float | None = None,
        engine_decode: float | None = None,
    ) -> None:
        raise NotImplementedError

    def wake(self, now: float) -> list[Decision]:
        raise NotImplementedError

    def next_wake(self) -> float | None:
        raise NotImplementedError

    def set_endpoint(self, endpoint: Endpoint, now: float) -> None:
        raise NotImplementedError

    def remove(self, name: str, now: float) -> None:
        raise NotImplementedError

    def set_load(self, name: str, load: Load, now: float) -> None:
        raise NotImplementedError

    def set_health(self, name: str, health: str, now: float) -> None:
        raise NotImplementedError

    def states(self, now: float) -> dict[str, EndpointState]:
        raise NotImplementedError

    def dump(self) -> bytes:
        raise NotImplementedError

    def restore(self, data: bytes) -> None:
        raise NotImplementedError
