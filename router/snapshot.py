"""A router's state as bytes: a magic word with the version, a digest, MessagePack."""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from engines.contract import Load
from router.breaker import Breaker
from router.desk import Desk
from router.ledger import Course, Ledger
from router.model import Model
from router.queue import Queue, Waiting
from router.state import Live, Standing

__all__ = ["Remembered", "Snapshot", "decode", "encode", "learnt", "whole"]

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
    why: str = ""


class Snapshot(msgspec.Struct, frozen=True):
    """A whole router; the scalars are those of `router.desk.Desk`."""

    now: float
    sends: int
    stale: bool
    woken: float
    usable: set[str]
    epoch: int
    endpoints: dict[str, Remembered]
    counters: dict[str, int]
    courses: list[Course]
    live: list[Live]
    queue: list[Waiting]


def _remember(view: Standing) -> Remembered:
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
        why=view.why,
    )


def _reinstate(view: Standing, remembered: Remembered, live: bool) -> None:
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
    view.health, view.health_at, view.why = remembered.health, remembered.health_at, remembered.why
    view.load, view.load_until, view.others = remembered.load, remembered.load_until, remembered.others


def encode(desk: Desk) -> bytes:
    """The bytes of a router's state. The same state gives the same bytes."""
    views = desk.fleet.by_name
    snapshot = Snapshot(
        now=desk.now,
        sends=desk.sends,
        stale=desk.stale,
        woken=desk.woken,
        usable=desk.usable,
        epoch=desk.epoch,
        endpoints={name: _remember(views[name]) for name in sorted(views)},
        counters=dict(desk.counters),
        courses=list(desk.ledger.courses.values()),
        live=list(desk.ledger.live.values()),
        queue=desk.queue.in_order(),
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


def learnt(snapshot: Snapshot, desk: Desk) -> None:
    """Take over what outlives a process: models, breakers, holds, and whose turn it is."""
    _endpoints(snapshot, desk, live=False)
    desk.sends = max(desk.sends, snapshot.sends)
    desk.widened()


def whole(snapshot: Snapshot, desk: Desk) -> None:
    """Take over everything; what was under way is dropped. Attempts on endpoints that are not here have none."""
    for course in snapshot.courses:
        desk.policy(course.policy)  # raises before anything has changed
    desk.fleet.reset()
    desk.ledger, desk.queue = Ledger(), Queue()
    desk.counters.clear()
    desk.counters.update(snapshot.counters)
    desk.now, desk.sends, desk.stale, desk.woken = snapshot.now, snapshot.sends, snapshot.stale, snapshot.woken
    desk.usable, desk.epoch = snapshot.usable, snapshot.epoch
    _endpoints(snapshot, desk, live=True)
    for course in snapshot.courses:
        desk.ledger.courses[course.ask.id] = course
        if course.waiting is not None:
            desk.ledger.waiting[course.waiting] = course.ask.id
    for live in snapshot.live:
        desk.ledger.live[live.id] = live
        standing = desk.fleet.get(live.endpoint)
        if standing is not None:
            standing.enter(live)
    for waiting in snapshot.queue:
        desk.queue.add(waiting)
    if desk.fleet.by_name.keys() != snapshot.endpoints.keys():
        desk.widened()


def _endpoints(snapshot: Snapshot, desk: Desk, live: bool) -> None:
    for name, remembered in snapshot.endpoints.items():
        standing = desk.fleet.get(name)
        if standing is not None and standing.endpoint.engine == remembered.engine:
            _reinstate(standing, remembered, live)
