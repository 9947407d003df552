"""The last calls with their decisions, so that "why did this request go there?" has an answer."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gateway.contract import Served

__all__ = ["RecentCalls"]

MAX_DETAIL = 2_000


class RecentCalls:
    """Keeps the last calls, by the gateway's call id and by the client's request id. Implements `Decisions`.

    Bounded twice: in calls, and in the candidates that their decisions hold, which are what takes the memory (a
    decision over 64 endpoints is 64 of them). The oldest calls go first.

    Args:
        redact: makes an engine's words safe to show; what is kept here is shown to operators.
        limit: calls kept. max_candidates: candidates kept, in all decisions together.
    """

    def __init__(self, redact: Callable[[str], str], *, limit: int = 2_000, max_candidates: int = 32_000) -> None:
        self._redact = redact
        self._limit = limit
        self._max_candidates = max_candidates
        self._candidates = 0
        self._calls: dict[str, Served] = {}
        self._by_request: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, served: Served) -> None:
        """Keep a call. An `Observer`: it neither blocks nor raises."""
        if served.detail:
            served = msgspec.structs.replace(served, detail=self._redact(served.detail)[:MAX_DETAIL])
        if served.call in self._calls:
            self._forget(served.call)
        self._calls[served.call] = served
        self._by_request[served.request_id] = served.call
        self._candidates += _weight(served)
        while len(self._calls) > self._limit or (self._candidates > self._max_candidates and len(self._calls) > 1):
            self._forget(next(iter(self._calls)))

    def find(self, request_id: str) -> Served | None:
        """Return the call with this call id, else the latest with this request id, else None."""
        found = self._calls.get(request_id)
        if found is None:
            found = self._calls.get(self._by_request.get(request_id, ""))
        return found

    def _forget(self, call: str) -> None:
        served = self._calls.pop(call)
        self._candidates -= _weight(served)
        # A client may use one request id again and again; then it names the latest call, which stays.
        if self._by_request.get(served.request_id) == call:
            del self._by_request[served.request_id]


def _weight(served: Served) -> int:
    return sum(len(decision.candidates) for decision in served.decisions)
