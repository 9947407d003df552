"""A router's state as bytes: a magic word with the version, a digest, MessagePack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b

import msgspec

from engines.contract import Load
from router.breaker import Breaker
from router.ledger import Course, Ledger
from router.model import Model
from router.queue import Queue, Waiting
from router.state import Live, Standing

__all__ = ["Remembered", "Snapshot", "decode", "encode", "reinstate", "remember", "resume"]

_MAGIC = b"enginehouse-router/"
_VERSION = b"1\n"
_DIGEST = 16


class Remembered(msgspec.Struct, frozen=True):
    """One endpoint: what was learnt of it and how it stood."""

    engine: str
    model: Model
    breaker: Breaker
    health: str
    health_at: float | None
    load: Load | None
    load_until: float
    others: int
    held_until: float
    busy_until: float
    overloads: int
    sent: int


class Snapshot(msgspec.Struct, frozen=True):
    """A whole router. `now`: the latest time that it had heard of."""

    now: float
    sends: int
    endpoints: dict[str, Remembered]
    counters: dict[str, int]
    courses: list[Course]
    live: list[Live]
    queue: list[Waiting]


def remember(view: Standing) -> Remembered:
    """An endpoint's state without its attempts."""
    return Remembered(
        engine=view.endpoint.engine,
        model=view.model,
        breaker=view.breaker,
        health=view.health,
        health_at=view.health_at,
        load=view.load,
        load_until=view.load_until,
        others=view.others,
        held_until=view.held_until,
        busy_until=view.busy_until,
        overloads=view.overloads,
        sent=view.sent,
    )


def reinstate(view: Standing, remembered: Remembered, live: bool) -> None:
    """Give an endpoint its state back: all of it if `live`, else what outlives a process."""
    view.model = remembered.model
    view.breaker = remembered.breaker
    view.held_until = remembered.held_until
    view.busy_until = remembered.busy_until
    view.overloads = remembered.overloads
    view.sent = remembered.sent
    if not live:
        view.breaker.trial = None
        return
    view.health, view.health_at = remembered.health, remembered.health_at
    view.load, view.load_until, view.others = remembered.load, remembered.load_until, remembered.others


def encode(
    views: Mapping[str, Standing], ledger: Ledger, queue: Queue, counters: Mapping[str, int], now: float, sends: int
) -> bytes:
    """The bytes of a router's state. The same state gives the same bytes."""
    snapshot = Snapshot(
        now=now,
        sends=sends,
        endpoints={name: remember(views[name]) for name in sorted(views)},
        counters=dict(sorted(counters.items())),
        courses=list(ledger.courses.values()),
        live=list(ledger.live.values()),
        queue=queue.in_order(),
    )
    body = msgspec.msgpack.Encoder(order="deterministic").encode(snapshot)
    return _MAGIC + _VERSION + blake2b(body, digest_size=_DIGEST).digest() + body


def decode(data: bytes) -> Snapshot:
    """Read what `encode` wrote. Raises ValueError for anything else, saying what is wrong with it."""
    if not data.startswith(_MAGIC):
        raise ValueError("not a dump of a router: it does not begin with the magic word")
    head = _MAGIC + _VERSION
    if not data.startswith(head):
        version = data[len(_MAGIC) :].split(b"\n", 1)[0][:20].decode("ascii", "replace")
        raise ValueError(f"a dump of version {version}, where this router reads version {_VERSION.decode().strip()}")
    digest, body = data[len(head) : len(head) + _DIGEST], data[len(head) + _DIGEST :]
    if blake2b(body, digest_size=_DIGEST).digest() != digest:
        raise ValueError("a corrupt dump: its digest does not match its content")
    try:
        return msgspec.msgpack.decode(body, type=Snapshot)
    except msgspec.MsgspecError as exc:
        raise ValueError(f"a dump that cannot be read: {exc}") from exc


def resume(snapshot: Snapshot, views: Iterable[Standing], ledger: Ledger, queue: Queue) -> None:
    """Put the asks and attempts of a snapshot into an empty ledger and queue, and onto the endpoints that are here."""
    here = {view.endpoint.name: view for view in views}
    for course in snapshot.courses:
        ledger.courses[course.ask.id] = course
        if course.waiting is not None:
            ledger.waiting[course.waiting] = course.ask.id
    for live in snapshot.live:
        ledger.live[live.id] = live
        if live.endpoint in here:
            here[live.endpoint].enter(live)
    for waiting in snapshot.queue:
        queue.add(waiting)
