"""The frames between the embedded engine and its worker, and text out of tokens. No I/O."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.embedded_link import Places
from engines.embedded_pipe import (
    Cancel,
    Credit,
    Deframer,
    Done,
    Event,
    Failed,
    FrameError,
    Ready,
    Start,
    encode_frame,
    read_order,
    read_report,
)
from engines.embedded_worker.text import Text
from engines.errors import Overloaded, Unreached

ORDERS = [Start(1, "chat", b'{"a":"\xc3\xa9"}', True), Credit(1, 32), Cancel(1)]
REPORTS = [Ready(4096), Event(1, b"[DONE]"), Failed(2, "Refused", "no", "n"), Done(1)]


@given(cuts=st.lists(st.integers(0, 400), max_size=20))
def test_frames_come_out_whole_however_they_are_cut(cuts: list[int]) -> None:
    data = b"".join(encode_frame(message) for message in [*ORDERS, *REPORTS])
    edges = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    deframer = Deframer()
    frames = [frame for start, end in itertools.pairwise(edges) for frame in deframer.feed(data[start:end])]
    assert [read_order(frame) for frame in frames[:3]] == ORDERS
    assert [read_report(frame) for frame in frames[3:]] == REPORTS


def test_a_frame_over_the_cap_is_refused_by_its_head_alone() -> None:
    with pytest.raises(FrameError, match="a frame of 101 bytes"):
        Deframer(100).feed((101).to_bytes(4, "little"))


@pytest.mark.parametrize("frame", [b"", b"\x00", b"\xc1", b"\xff" * 9, encode_frame(Done(1))[4:]])
def test_what_is_no_order_is_refused(frame: bytes) -> None:
    with pytest.raises(FrameError):
        read_order(frame)


@given(
    text=st.text("abé🦊", max_size=30),
    stops=st.lists(st.text("abé🦊", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 120), max_size=20),
)
def test_text_ends_before_the_first_stop_however_the_tokens_are_cut(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    data = text.encode()
    edges = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    taker = Text(stops)
    shown = "".join(taker.feed(data[start:end]) for start, end in itertools.pairwise(edges)) + taker.close()
    # A stop may end earlier than one that began before it; whichever is complete first, ends the text.
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    assert taker.stopped == bool(ends)
    if len(stops) <= 1:
        assert shown == (text[: ends[0][1]] if ends else text)
    assert text.startswith(shown)
    assert not any(stop in shown for stop in stops)


def test_half_a_character_is_held_until_it_is_whole_or_the_text_ends() -> None:
    text = Text()
    first, second = "🦊".encode()[:2], "🦊".encode()[2:]
    assert (text.feed(first), text.holds) == ("", True)
    assert (text.feed(second), text.holds) == ("🦊", False)
    text.feed(first)
    assert text.close() == "\ufffd"


async def test_places_go_to_those_who_wait_in_their_order() -> None:
    places, order = Places(1, 3), []

    async def visit(number: int) -> None:
        await places.enter()
        order.append(number)

    async with asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(visit(number))
        await asyncio.sleep(0)
        assert (places.free, places.waiting) == (0, 3)
        with pytest.raises(Overloaded):
            await places.enter()
        for _ in range(4):
            places.leave()
            await asyncio.sleep(0)
    assert (order, places.free, places.waiting) == ([0, 1, 2, 3], 1, 0)


async def test_a_place_that_was_given_to_one_who_leaves_at_that_moment_is_not_lost() -> None:
    places = Places(1, 2)
    await places.enter()
    loop = asyncio.get_running_loop()
    leaver = loop.create_task(places.enter())
    await asyncio.sleep(0)
    places.leave()  # it is the leaver's now, who has not heard of it yet
    leaver.cancel()
    await asyncio.wait({leaver})
    assert (leaver.cancelled(), places.free, places.waiting) == (True, 1, 0)


async def test_all_in_line_can_be_sent_away() -> None:
    places = Places(1, 2)
    await places.enter()
    waiting = asyncio.get_running_loop().create_task(places.enter())
    await asyncio.sleep(0)
    places.clear(Unreached("gone"))
    await asyncio.wait({waiting})
    assert isinstance(waiting.exception(), Unreached)
    assert (places.free, places.waiting) == (0, 0)
