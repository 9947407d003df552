"""The endpoints of a router, and what is pushed into it about them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import get_args

from engines.contract import HealthState
from router.contract import Ask, Endpoint, EndpointState, Load
from router.policies import FOR_NOW
from router.state import Standing, Tally

__all__ = ["Fleet"]

_HEALTH = frozenset(get_args(HealthState))
_PLAIN = Ask(id="")


class Fleet:
    """Endpoints by name, and `views`: the same sorted by name, so that their order decides nothing."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self.tally = Tally()
        self.by_name: dict[str, Standing] = {}
        self.views: tuple[Standing, ...] = ()
        for endpoint in endpoints:
            if endpoint.name in self.by_name:
                raise ValueError(f"two endpoints are named {endpoint.name!r}")
            self.by_name[endpoint.name] = Standing(endpoint, self.tally)
        self._sort()

    def get(self, name: str) -> Standing | None:
        return self.by_name.get(name)

    def put(self, endpoint: Endpoint) -> None:
        """Add an endpoint, or change the one of its name."""
        old = self.by_name.get(endpoint.name)
        if old is not None:
            old.change(endpoint)
            return
        self.by_name[endpoint.name] = Standing(endpoint, self.tally)
        self._sort()

    def remove(self, name: str) -> bool:
        """Take one away; its attempts belong to no endpoint from then on. False where it is not there."""
        standing = self.by_name.pop(name, None)
        if standing is None:
            return False
        for live in list(standing.live.values()):
            standing.leave(live.id)
            live.endpoint = ""
        self._sort()
        return True

    def reset(self) -> None:
        """Forget everything of every endpoint but what was configured."""
        self.tally = Tally()
        self.by_name = {name: Standing(old.endpoint, self.tally) for name, old in self.by_name.items()}
        self._sort()

    def set_load(self, name: str, load: Load, now: float) -> bool:
        standing = self.by_name.get(name)
        if standing is None:
            return False
        standing.set_load(load, now)
        return True

    def set_health(self, name: str, health: str, now: float, why: str = "") -> bool:
        """Raises ValueError where `health` is none of the known words."""
        if health not in _HEALTH:
            raise ValueError(f"unknown health {health!r}; known are {', '.join(sorted(_HEALTH))}")
        standing = self.by_name.get(name)
        if standing is None:
            return False
        if standing.health != health:
            standing.health, standing.health_at = health, now
        standing.why = why
        return True

    def hold(self, standing: Standing, seconds: float, now: float) -> None:
        """Leave an endpoint alone for so long, and with it all that draw on the same quota."""
        for other in self.views:
            if other is standing or not standing.quotas.isdisjoint(other.quotas):
                other.hold(seconds, now)

    def serves(self, standing: Standing, now: float, room: bool = True) -> bool:
        """Whether a plain call could be sent there now; without `room`, whether one could if it had room."""
        for check in FOR_NOW:
            removal = check(_PLAIN, standing, now)
            if removal is not None:
                return removal.reason == "full" and not room
        return True

    def usable(self, now: float, room: bool = True) -> set[str]:
        """The names of all that `serves` holds of."""
        return {view.endpoint.name for view in self.views if self.serves(view, now, room)}

    def next_moment(self, after: float) -> float:
        """The first time after `after` at which one of them changes by itself; infinite where none will."""
        moments = (moment for view in self.views for moment in view.moments() if moment > after)
        return min(moments, default=math.inf)

    def states(self, now: float) -> dict[str, EndpointState]:
        """How every endpoint stands, by name."""
        found: dict[str, EndpointState] = {}
        for view in self.views:
            view.settle(now)
            found[view.endpoint.name] = EndpointState(
                health=view.health,
                breaker=view.breaker.state(now),
                eligible=self.serves(view, now),
                inflight=view.inflight,
                waiting=view.waiting,
                context_tokens=view.context_tokens,
                queued_tokens=view.queued_tokens,
                load=view.load if now < view.load_until else None,
                why=view.why,
            )
        return found

    def shift(self, seconds: float) -> None:
        """Move every time stamp, for a clock that started anew."""
        for view in self.views:
            view.shift(seconds)

    def _sort(self) -> None:
        self.views = tuple(self.by_name[name] for name in sorted(self.by_name))
