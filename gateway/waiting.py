"""Calls that the router told to wait: each sleeps here until the router lets it go.

The router queues and orders them; this only carries its word. `pump` must be called after every event that may have
freed a place, and a timer calls it when the router asked to be woken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from router import Decision, Router

__all__ = ["Waiting"]


class Waiting:
    """Sleeping calls of one pool.

    Args:
        router: the pool's router.
        clock: monotonic seconds; the same clock that every router event is stamped with.
    """

    def __init__(self, router: Router, clock: Callable[[], float]) -> None:
        self._router = router
        self._clock = clock
        self._asleep: dict[str, asyncio.Future[Decision]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def settled(self, decision: Decision) -> asyncio.Future[Decision]:
        """Give what will be the decision that follows a "wait": a "send" or a "reject". Cancelling withdraws the call.

        The call sleeps from this moment on, not from when the future is awaited: the very next step of the loop may
        free the place that it waits for, and a place given to nobody would leave it asleep for ever.
        """
        future: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        self._asleep[decision.attempt] = future
        future.add_done_callback(lambda _: self._asleep.pop(decision.attempt, None))
        self._arm()
        return future

    def pump(self) -> None:
        """Ask the router who may go now, and wake them."""
        returned = True
        while returned and self._asleep:
            returned = False
            for decision in self._router.wake(self._clock()):
                future = self._asleep.pop(decision.attempt, None)
                if future is not None and not future.done():
                    future.set_result(decision)
                elif decision.action == "send":
                    # Its caller is gone: the place goes back, and to the next one, or it would stay taken for ever.
                    self._router.finish(decision.attempt, self._clock(), "cancelled")
                    returned = True
        self._arm()

    def close(self) -> None:
        """Stop the timer. Sleeping calls stay with their owners."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self.close()
        when = self._router.next_wake()
        if when is None or not self._asleep:
            return
        delay = max(0.0, when - self._clock())
        self._timer = asyncio.get_running_loop().call_later(delay, self.pump)
