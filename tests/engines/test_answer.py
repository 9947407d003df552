"""Streams on their way to the client: what stays byte for byte, and the shortcut for ordinary chunks."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.answer import StreamEditor
from engines.contract import ORDINARY, Call, Mark
from engines.dialect import Dialect
from engines.errors import Malformed
from engines.sse import Framer
from tests.engines.recorded import (
    calling,
    chunks,
    edit,
    event,
    feed_all,
    recorded,
    stream,
    stream_through,
    text_of,
)

CHAT = calling("chat", stream=True)


STREAMS: list[tuple[str, Call]] = [
    ("vllm/chat_stream", calling(model="tiny", stream=True)),
    ("vllm/chat_stream_n2", calling(model="tiny", stream=True, include_usage=True, sequences=2)),
    ("vllm/chat_stream_usage", calling(model="tiny", stream=True, include_usage=True)),
    (
        "vllm/chat_stream_usage_continuous",
        calling(
            model="tiny",
            stream=True,
            include_usage=True,
            body={"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        ),
    ),
    ("vllm/chat_stream_logprobs", calling(model="tiny", stream=True, body={"logprobs": True})),
    ("vllm/completions_stream", calling("completions", "tiny", stream=True, include_usage=True)),
    ("vllm/tools_required_stream", calling(model="tiny", stream=True)),
    ("vllm/tools_named_stream", calling(model="tiny", stream=True, named_tool=True)),
    ("llamacpp/chat_stream", calling(model="smollm2-135m", stream=True)),
    ("llamacpp/chat_stream_usage", calling(model="smollm2-135m", stream=True, include_usage=True)),
    ("llamacpp/chat_stream_logprobs", calling(model="smollm2-135m", stream=True)),
    ("llamacpp/chat_stream_timings", calling(model="smollm2-135m", stream=True, include_usage=True)),
    ("llamacpp/chat_n2_stream", calling(model="smollm2-135m", stream=True, sequences=2)),
]


@pytest.mark.parametrize(("name", "call"), STREAMS, ids=[name for name, _ in STREAMS])
def test_a_well_formed_stream_goes_through_byte_for_byte(name: str, call: Call) -> None:
    out, marks = stream_through(name, call)
    assert out.rstrip(b"\n") == recorded(name).body
    assert marks[-1].terminal


@pytest.mark.parametrize(("name", "call"), STREAMS, ids=[name for name, _ in STREAMS])
def test_the_model_name_is_all_that_changes_and_it_changes_in_every_chunk(name: str, call: Call) -> None:
    own = call.model
    out, _ = stream_through(name, msgspec.structs.replace(call, model='org/"public"'))
    expected = recorded(name).body.replace(b'"model":"%s"' % own.encode(), b'"model":"org/\\"public\\""')
    assert out.rstrip(b"\n") == expected


OTHERS = [
    ("tgi/chat_stream", CHAT),
    ("tgi/tools_stream", CHAT),
    ("tgi/completions_two_prompts_stream", calling("completions", stream=True, sequences=2)),
    ("tensorrt_llm/chat_stream_new_ids", CHAT),
    ("tensorrt_llm/completions_stream", calling("completions", stream=True, include_usage=True)),
]


@pytest.mark.parametrize(("name", "call"), STREAMS + OTHERS, ids=[name for name, _ in STREAMS + OTHERS])
def test_the_shortcut_for_ordinary_chunks_gives_what_a_full_parse_would(name: str, call: Call) -> None:
    body = recorded(name).body + b"\n\n"
    call = msgspec.structs.replace(call, model="public")
    slow_editor = StreamEditor(call, Dialect())
    slow_editor._most_templates = 0
    assert feed_all(StreamEditor(call, Dialect()), body) == feed_all(slow_editor, body)


def test_ordinary_chunks_share_one_mark_and_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    payloads = Framer().feed(recorded("vllm/chat_stream").body + b"\n\n")
    editor = StreamEditor(calling(model="tiny", stream=True), Dialect())
    for payload in payloads[:2]:
        editor.feed(payload)

    def parsed(payload: bytes) -> None:
        raise AssertionError(payload)

    monkeypatch.setattr(editor, "_read", parsed)
    for payload in payloads[2:8]:
        block, mark = editor.feed(payload) or (b"", None)
        assert mark is ORDINARY and block == b"data: " + payload + b"\n\n"


def test_the_model_name_inside_the_content_is_left_alone() -> None:
    said = 'the "model":"m" is m'
    events, _ = edit(CHAT, *[event({"content": said})] * 3, event({}, "stop"), b"[DONE]")
    assert text_of(events) == said * 3
    assert {item["model"] for item in events[:-1]} == {"public"}


@pytest.mark.parametrize("spacing", [(", ", ": "), (",", ":"), (" ,\t", " : ")])
def test_any_spacing_of_the_json_is_understood(spacing: tuple[str, str]) -> None:
    import json

    payloads = [
        json.dumps(msgspec.json.decode(payload), separators=spacing).encode()
        for payload in (event({"role": "assistant", "content": ""}), event({"content": "a"}), event({"content": "b"}))
    ]
    events, marks = edit(CHAT, *payloads, event({}, "stop"), b"[DONE]")
    assert text_of(events) == "ab"
    assert {item["model"] for item in events[:-1]} == {"public"}
    assert [mark.token for mark in marks] == [False, True, True, False, False]


def test_json_over_several_data_lines_becomes_one_line() -> None:
    pretty = b"data: {\ndata: " + event({"content": "a"})[1:] + b"\n\n"
    data = pretty * 3 + stream(event({}, "stop"), b"[DONE]")
    out, _ = feed_all(StreamEditor(CHAT, Dialect()), data)
    assert text_of(chunks(out)) == "aaa"


@given(st.lists(st.text(min_size=1), min_size=1, max_size=8), st.integers(1, 40))
def test_b01_any_text_in_any_pieces_arrives_as_it_was_generated(texts: list[str], size: int) -> None:
    data = stream(*[event({"content": text}) for text in texts], event({}, "stop"), b"[DONE]")
    framer, editor, out, tokens = Framer(), StreamEditor(CHAT, Dialect()), b"", 0
    for start in range(0, len(data), size):
        for payload in framer.feed(data[start : start + size]):
            block, mark = editor.feed(payload) or (b"", Mark())
            out += block
            tokens += mark.token
    assert text_of(chunks(out)) == "".join(texts)
    assert tokens == len(texts)


def test_b01_emoji_and_hangul_cut_at_every_byte_arrive_whole() -> None:
    said = "안녕 🦀 你好"
    data = stream(event({"content": said}), event({"content": said}), event({}, "stop"), b"[DONE]")
    for cut in range(len(data)):
        framer, editor = Framer(), StreamEditor(CHAT, Dialect())
        blocks = [editor.feed(payload) for piece in (data[:cut], data[cut:]) for payload in framer.feed(piece)]
        out = b"".join(block for block, _ in filter(None, blocks))
        assert text_of(chunks(out)) == said * 2 and "\ufffd" not in out.decode()


def test_a_broken_string_is_not_taken_for_ordinary() -> None:
    editor = StreamEditor(CHAT, Dialect())
    editor.feed(event({"content": "a"}))
    for bad in (b'x"y', b"x\\"):
        with pytest.raises(Malformed):
            editor.feed(event({"content": "@"}).replace(b"@", bad))
