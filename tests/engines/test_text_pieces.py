"""Text out of an engine's pieces: nothing lost, nothing twice, no half character, no half stop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import Malformed
from engines.text_pieces import Cumulative, Deltas, StopCutter

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)
CUTS = st.lists(st.integers(0, 200), max_size=12)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({min(place, len(data)) for place in places} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@given(TEXT, CUTS)
def test_b01_deltas_cut_anywhere_give_the_text(text: str, places: list[int]) -> None:
    deltas = Deltas()
    out = [deltas.feed(piece) for piece in cut(text.encode(), places)]
    assert "".join(out) + deltas.close() == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in out)


@given(TEXT, CUTS, st.booleans())
def test_b01_cumulative_text_cut_anywhere_gives_the_text(text: str, places: list[int], decoded: bool) -> None:
    cumulative, so_far, out = Cumulative(), b"", []
    for piece in cut(text.encode(), places):
        so_far += piece
        # A tokenizer shows half a character as a replacement mark; raw bytes end within it.
        out.append(cumulative.feed(so_far.decode("utf-8", "replace").encode() if decoded else so_far))
    assert "".join(out) + cumulative.close() == text


def test_b01_marks_at_the_end_wait_for_the_character_that_they_stand_for() -> None:
    cumulative = Cumulative()
    assert [cumulative.feed(text.encode()) for text in ("a", "a\ufffd", "a\ufffd\ufffd", "a🦀", "a🦀b")] == [
        "a",
        "",
        "",
        "🦀",
        "b",
    ]


def test_a_mark_that_the_model_did_write_is_kept() -> None:
    cumulative = Cumulative()
    out = [cumulative.feed(text.encode()) for text in ("a\ufffd", "a\ufffdb", "a\ufffdb\ufffd")]
    assert "".join(out) + cumulative.close() == "a\ufffdb\ufffd"


@pytest.mark.parametrize("then", ["Goodbye", "abX", "x", " two"])
def test_text_that_contradicts_what_was_given_out_is_malformed(then: str) -> None:
    cumulative = Cumulative()
    cumulative.feed(b"abc")
    with pytest.raises(Malformed):
        cumulative.feed(then.encode())


def test_text_that_grew_shorter_or_came_twice_adds_nothing() -> None:
    cumulative = Cumulative()
    assert [cumulative.feed(text) for text in (b"abc", b"abc", b"ab", b"abcd")] == ["abc", "", "", "d"]


def test_a_stream_that_ends_within_a_character_leaves_one_mark() -> None:
    deltas = Deltas()
    assert deltas.feed("é".encode()[:1]) == "" and deltas.close() == "\ufffd"


@given(st.text("abAB", max_size=24), st.lists(st.text("abAB", min_size=1, max_size=4), max_size=3), CUTS)
def test_text_ends_before_the_first_stop_wherever_it_is_cut(text: str, stops: list[str], places: list[int]) -> None:
    cutter = StopCutter(stops)
    out = "".join(cutter.feed(piece.decode()) for piece in cut(text.encode(), places)) + cutter.close()
    # The first stop to be complete ends the text; where two are complete at once, the one that begins first.
    ends = {end for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)}
    if not ends:
        assert out == text and not cutter.found
    else:
        assert cutter.found and text.startswith(out)
        assert not any(stop in out for stop in stops)
        assert any(text.startswith(stop, len(out)) for stop in stops)


def test_no_beginning_of_a_stop_is_shown_before_it_is_known_to_be_none() -> None:
    cutter = StopCutter(["END"])
    assert [cutter.feed(piece) for piece in ("xE", "N", "EN", "D", "more")] == ["x", "", "EN", "", ""]
    assert cutter.found and cutter.close() == ""
