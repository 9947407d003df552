"""Framing of server-sent events over bytes."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import Malformed
from engines.sse import Framer


def frame(*pieces: bytes, max_event: int = 8 * 2**20) -> list[bytes]:
    framer = Framer(max_event)
    out = [payload for piece in pieces for payload in framer.feed(piece)]
    return out + framer.close()


def each_byte(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


TEXT = '안녕 🦀 你好 "quoted" \\ line'
EVENTS = (
    b"\xef\xbb\xbf: hello\n\n"
    b'data: {"a":"' + TEXT.encode() + b'"}\n\n'
    b"data:no space\r\n\r\n"
    b"id: 7\nevent: message\nretry: 3000\n\n"
    b"data: first\rdata: second\r\r"
    b"data\n\n"
    b"data: \n\n"
    b": ping\n\n"
    b"event: x\r\ndata:  two spaces \r\n\r\n"
    b"data: [DONE]\n\n"
)
PAYLOADS = [
    b'{"a":"' + TEXT.encode() + b'"}',
    b"no space",
    b"first\nsecond",
    b" two spaces ",
    b"[DONE]",
]


def test_b03_comments_meta_blocks_missing_spaces_and_every_line_end_are_read_alike() -> None:
    assert frame(EVENTS) == PAYLOADS


def test_b01_one_byte_at_a_time_gives_the_same_events() -> None:
    assert frame(*each_byte(EVENTS)) == PAYLOADS


@given(st.lists(st.integers(0, len(EVENTS)), max_size=12))
def test_b01_any_split_of_the_bytes_gives_the_same_events(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(EVENTS)]
    assert frame(*(EVENTS[a:b] for a, b in pairwise(places))) == PAYLOADS


@given(
    st.lists(st.text(st.characters(blacklist_characters="\r\n"), min_size=1), max_size=6),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.integers(1, 7),
)
def test_b01_any_text_in_any_line_end_and_piece_size_comes_out_as_it_went_in(
    texts: list[str], end: str, size: int
) -> None:
    data = "".join(f"data: {text}{end}{end}" for text in texts).encode("utf-8", "surrogatepass")
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    assert frame(*pieces) == [text.encode("utf-8", "surrogatepass") for text in texts]


def test_a_text_cut_at_every_single_byte_is_whole_again() -> None:
    data = b'data: {"c":"' + TEXT.encode() + b'"}\n\n'
    for cut in range(len(data)):
        assert frame(data[:cut], data[cut:]) == [data[6:-2]]


def test_b03_a_byte_order_mark_before_the_first_event_is_no_part_of_it() -> None:
    data = b"\xef\xbb\xbfdata: 1\n\ndata: \xef\xbb\xbf\n\n"
    assert frame(data) == frame(*each_byte(data)) == [b"1", b"\xef\xbb\xbf"]
    assert frame(b"\xef\xbb\xbfdata: [DONE]") == [b"[DONE]"]


def test_b03_a_line_end_of_two_bytes_may_be_cut_in_two() -> None:
    data = b"data: 1\r\ndata: 2\r\n\r\ndata: 3\r\n\r\n"
    assert frame(*each_byte(data)) == [b"1\n2", b"3"]


def test_an_event_is_given_at_once_when_its_blank_line_came() -> None:
    framer = Framer()
    assert framer.feed(b"data: 1\r\n\r\ndata: 2\r\n") == [b"1"]
    assert framer.feed(b"\r") == [b"2"]
    assert framer.feed(b"\ndata: 3\n\n") == [b"3"]


def test_several_events_in_one_read_come_in_order() -> None:
    assert frame(b"data: 1\n\ndata: 2\n\ndata: 3\n\n") == [b"1", b"2", b"3"]


def test_b03_a_complete_last_line_without_a_blank_line_is_given_at_the_end() -> None:
    assert frame(b"data: 1\n\ndata: tail\n") == [b"1", b"tail"]
    assert frame(b'data: {"a":1}') == [b'{"a":1}']
    assert frame(b"data: [DONE]") == [b"[DONE]"]
    assert frame(b'data: {"a":\ndata: 1}') == [b'{"a":\n1}']


@pytest.mark.parametrize("cut", [b'data: {"a":1', b'data: {"a":"x', b"data: [DON", b'data: {"a":\ndata: ', b"dat"])
def test_a_last_line_that_was_cut_off_is_not_given(cut: bytes) -> None:
    assert frame(b"data: 1\n\n", cut) == [b"1"]


def test_a_comment_at_the_end_takes_nothing_away() -> None:
    assert frame(b"data: text\n: half a com") == [b"text"]


@pytest.mark.parametrize("size", [300 * 1024, 4 * 2**20])
def test_b06_large_events_pass_whole_and_in_order(size: int) -> None:
    big = b'{"c":"' + b"x" * size + b'"}'
    data = b"data: " + big + b"\n\ndata: small\n\ndata: [DONE]\n\n"
    pieces = [data[i : i + 16384] for i in range(0, len(data), 16384)]
    assert frame(*pieces) == [big, b"small", b"[DONE]"]


def test_b06_one_event_over_the_cap_is_refused_in_whatever_form_it_comes() -> None:
    forms = [
        [b"data: " + b"x" * 2000 + b"\n\n"],
        [b"data: " + b"x" * 2000],
        [b"data: ", *[b"x" * 100] * 20],
        [b"data: x\n"] * 2000,
        [b"data:\n"] * 2000,
        [b": " + b"x" * 2000],
    ]
    for pieces in forms:
        with pytest.raises(Malformed, match="1000 bytes"):
            frame(*pieces, max_event=1000)


def test_b06_an_endless_line_in_small_pieces_keeps_memory_at_about_the_cap() -> None:
    cap = 2**20
    framer = Framer(cap)
    tracemalloc.start()
    try:
        with pytest.raises(Malformed):
            for number in range(64 * 2**20 // 7):
                framer.feed(b"data: x" if number == 0 else b"%07d" % number)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * cap


def test_b06_events_below_the_cap_do_not_add_up() -> None:
    assert len(frame(*[b"data: " + b"x" * 900 + b"\n\n"] * 50, max_event=1000)) == 50
    assert len(frame(*each_byte(b"data: " + b"x" * 900 + b"\n\n") * 5, max_event=1000)) == 5
