"""The engine `triton` against a real Triton 2.51: the layouts, the text, the ends, cancellation, failures."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from engines import Engine, build
from engines.errors import Faulted, Gone, Misconfigured, Refused, Unreached, Unsupported
from tests.engines.harness import PUBLIC, RecordingSink, make_call, run
from tests.real.triton import Ears, Triton

pytestmark = [pytest.mark.real, pytest.mark.timeout(15)]

ENGLISH = "  It was a bright cold day in April, and the clocks were striking thirteen.\n\n\t– said  he. "
CHINESE = " 四月里一个晴朗而寒冷的日子，时钟敲了十三下。🦀 안녕"
LAYOUTS = ["single:ensemble", "classic:ensemble", "classic:tensorrt_llm_bls", "single:tensorrt_llm"]
TEMPLATE = "{{ messages[-1].content }}"
WAYS = ["grpc", "http"]


@pytest.fixture(autouse=True, scope="module")
def nothing_left() -> Iterator[None]:
    """gRPC's channels hang together in circles: collected here, so that later tests may count descriptors."""
    yield
    gc.collect()


@pytest.fixture
def at(request: pytest.FixtureRequest) -> Any:
    """`at("single:ensemble", way)`: a context with the engine on that server's model."""

    @asynccontextmanager
    async def opened(where: str, way: str = "grpc", **options: Any) -> AsyncIterator[Engine]:
        repository, _, model = where.partition(":")
        server: Triton = request.getfixturevalue(repository)
        url = server.grpc if way == "grpc" else server.http
        engine = build("triton", "t0", {"url": url, "model": model, "chat_template": TEMPLATE, **options})
        try:
            yield engine
        finally:
            await engine.aclose()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    return opened


def script(**lines: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": json.dumps(lines, ensure_ascii=False)}]}


def text_of(sink: RecordingSink, stream: bool) -> str:
    if stream:
        return sink.text
    choice = json.loads(sink.body)["choices"][0]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


@pytest.mark.parametrize("text", [ENGLISH, CHINESE], ids=["english", "chinese"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("where", LAYOUTS)
async def test_the_text_is_the_source_in_every_layout(at: Any, where: str, way: str, stream: bool, text: str) -> None:
    async with at(where, way) as engine:
        sink = await run(engine, RecordingSink(), stream=stream, **script(say=text))
    assert sink.error is None
    assert text_of(sink, stream) == text
    assert sink.finish == "stop"
    assert sink.marks[-1].derived == (where != "single:tensorrt_llm")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("where", LAYOUTS)
@pytest.mark.parametrize("size", [1, 2, 5])
async def test_b01_characters_cut_over_pieces_come_whole(at: Any, where: str, way: str, size: int) -> None:
    async with at(where, way) as engine:
        sink = await run(engine, RecordingSink(), **script(say=CHINESE, piece=size))
    assert sink.error is None
    assert sink.text == CHINESE and "\ufffd" not in sink.body.decode()
    assert all(mark.token for mark, block in zip(sink.marks[:-1], sink.blocks[:-1], strict=True) if block)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("where", LAYOUTS)
async def test_eight_at_once_do_not_mix(at: Any, where: str, way: str) -> None:
    texts = [f"{number}: {CHINESE} {number}" for number in range(8)]
    async with at(where, way) as engine:
        sinks = [RecordingSink() for _ in texts]
        calls = [make_call(stream=n % 2 == 0, **script(say=text, delay=0.002)) for n, text in enumerate(texts)]
        attempts = [engine.open(call, sink) for call, sink in zip(calls, sinks, strict=True)]
        for attempt in attempts:
            await attempt.closed()
    assert [text_of(sink, n % 2 == 0) for n, sink in enumerate(sinks)] == texts


@pytest.mark.parametrize("tail", ["empty", "text"])
@pytest.mark.parametrize("where", ["single:ensemble", "classic:ensemble"])
async def test_b39_a_stream_ends_with_its_final_response_whatever_its_shape(at: Any, where: str, tail: str) -> None:
    async with at(where) as engine:
        sink = await run(engine, RecordingSink(), **script(say="abc", tail=tail))
        nothing = await run(engine, RecordingSink(), **script(say=""))
    assert sink.error is None and sink.text == "abc"
    assert sink.payloads[-1] == b"[DONE]"
    assert not any(choice["delta"].get("content") == "" for chunk in sink.chunks[1:] for choice in chunk["choices"])
    # Only a final response: an empty answer. (An ensemble without a response from its core says that it failed.)
    assert nothing.error is None or where == "classic:ensemble"
    assert nothing.finish == "stop" or where == "classic:ensemble"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("where", LAYOUTS)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_count_at_the_cap_is_length(at: Any, where: str, way: str, stream: bool) -> None:
    async with at(where, way) as engine:
        cut = await run(engine, RecordingSink(), stream=stream, max_tokens=3, **script(say="abcdef", piece=1))
        whole = await run(engine, RecordingSink(), stream=stream, max_tokens=4, **script(say="abc", piece=1))
    assert (text_of(cut, stream), cut.finish) == ("abc", "length")
    assert (text_of(whole, stream), whole.finish) == ("abc", "stop")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("where", LAYOUTS)
async def test_b41_the_model_sees_a_cancelled_call_within_a_second(at: Any, where: str, way: str, ears: Ears) -> None:
    ears.forget()
    async with at(where, way) as engine:
        sink = RecordingSink()
        attempt = engine.open(make_call(**script(say="a" * 400, piece=1, delay=0.02)), sink)
        await sink.got(3)
        sink.silent = True
        began = time.monotonic()
        attempt.abort("the client left")
        heard = await ears.hear("cancelled")
        await attempt.closed()
    assert heard["at"] - began < 1.0
    assert heard["after"] < 100


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("where", LAYOUTS)
async def test_b41_one_bad_request_of_ten_leaves_nine_whole(at: Any, where: str, way: str) -> None:
    async with at(where, way) as engine:
        sinks = [RecordingSink() for _ in range(10)]
        attempts = []
        for number, sink in enumerate(sinks):
            lines = {"say": f"{number}" * 20, "piece": 1, "delay": 0.002}
            if number == 4:
                lines |= {"fail_at": 0, "error": "this prompt is refused", "code": "INVALID_ARG"}
            attempts.append(engine.open(make_call(**script(**lines)), sink))
        for attempt in attempts:
            await attempt.closed()
    bad = sinks.pop(4)
    assert [sink.text for sink in sinks] == [f"{number}" * 20 for number in (0, 1, 2, 3, 5, 6, 7, 8, 9)]
    assert isinstance(bad.error, Refused) and bad.error.status == 400 and "this prompt is refused" in bad.error.message
    assert not bad.blocks


@pytest.mark.parametrize("where", LAYOUTS)
async def test_an_error_in_a_stream_is_no_finish(at: Any, where: str) -> None:
    async with at(where) as engine:
        sink = await run(engine, RecordingSink(), **script(say="abcdef", piece=1, fail_at=3, error="CUDA error"))
    assert isinstance(sink.error, Faulted) and sink.error.retry == "once"
    # In an ensemble the core's error may overtake a piece that is still on its way through the last step.
    assert sink.text == "abc" or (where == "classic:ensemble" and "abc".startswith(sink.text))
    assert sink.finish is None and b"[DONE]" not in sink.body


async def test_counts_are_the_models_where_it_gives_them(at: Any) -> None:
    async with at("single:ensemble") as engine:
        exact = await run(engine, RecordingSink(), include_usage=True, **script(say="abcdef", piece=2))
        whole = await run(engine, RecordingSink(), stream=False, **script(say="abcdef"))
    async with at("classic:ensemble") as engine:
        guessed = await run(engine, RecordingSink(), include_usage=True, **script(say="abcdef"))
    async with at("classic:ensemble", estimate_usage=True) as engine:
        shown = await run(engine, RecordingSink(), include_usage=True, **script(say="abcdef"))
    usage = exact.marks[-1].usage
    assert usage is not None and usage.completion_tokens == 3 and usage.prompt_tokens and not usage.estimated
    assert exact.chunks[-1]["usage"]["completion_tokens"] == 3
    assert json.loads(whole.body)["usage"]["completion_tokens"] == 6
    usage = guessed.marks[-1].usage
    assert usage is not None and usage.completion_tokens == 6 and usage.estimated
    assert all(chunk["choices"] for chunk in guessed.chunks), "an estimate is not shown"
    assert shown.chunks[-1]["usage"]["completion_tokens"] == 6


async def test_parameters_reach_the_model_in_its_own_terms(at: Any, ears: Ears) -> None:
    async with at("single:ensemble") as engine:
        ears.forget()
        await run(
            engine,
            RecordingSink(),
            temperature=0,
            seed=-1,
            stop=["###", "\n\n"],
            bad_words=["no"],
            min_tokens=2,
            **script(say="abc"),
        )
        greedy = (await ears.hear("began"))["seen"]
        await run(engine, RecordingSink(), temperature=0.5, top_k=-1, seed=7, **script(say="abc"))
        warm = (await ears.hear("began"))["seen"]
    assert (greedy["temperature"], greedy["top_k"], greedy["seed"]) == (None, 1, 2**64 - 1)
    assert (greedy["stop_words"], greedy["bad_words"], greedy["min_tokens"]) == (["###", "\n\n"], ["no"], 2)
    assert (warm["temperature"], warm["top_k"], warm["top_p"], warm["seed"]) == (0.5, 0, 1.0, 7)


@pytest.mark.parametrize("where", LAYOUTS)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_text_ends_before_a_stop_that_the_engine_left_in(at: Any, where: str, stream: bool) -> None:
    async with at(where) as engine:
        sink = await run(engine, RecordingSink(), stream=stream, stop="END", **script(say="one ENDEND", piece=1))
        near = await run(engine, RecordingSink(), stream=stream, stop=["END"], **script(say="one EN", piece=1))
    assert text_of(sink, stream) == "one " and sink.finish == "stop"
    assert text_of(near, stream) == "one EN" and near.finish == "stop"


async def test_an_engine_that_runs_on_after_a_stop_is_told_to_end(at: Any, ears: Ears) -> None:
    ears.forget()
    async with at("classic:ensemble") as engine:
        lines = script(say="one END" + "x" * 400, piece=1, delay=0.01)
        sink = await run(engine, RecordingSink(), stop="END", **lines)
        heard = await ears.hear("cancelled")
    assert sink.text == "one " and sink.finish == "stop" and heard["after"] < 100


async def test_json_schema_and_tools_are_guided_where_the_model_can(at: Any, ears: Ears) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tools = [{"type": "function", "function": {"name": name, "parameters": schema}} for name in ("weather", "time")]
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    said = '{"name":"time","arguments":{"city":"Paris"}}'
    async with at("single:ensemble") as engine:
        ears.forget()
        held = await run(engine, RecordingSink(), response_format=wanted, **script(say="{}"))
        assert held.error is None
        assert [json.loads(guide) for guide in (await ears.hear("began"))["seen"]["guide"]] == [schema]
        sink = await run(engine, RecordingSink(), tools=tools, tool_choice="required", **script(say=said, piece=3))
        whole = await run(
            engine, RecordingSink(), stream=False, tools=tools, tool_choice="required", **script(say=said, piece=3)
        )
    async with at("classic:ensemble") as engine:
        no_schema = await run(engine, RecordingSink(), response_format=wanted, **script(say="{}"))
        no_tools = await run(engine, RecordingSink(), tools=tools, **script(say="{}"))
    deltas = [d for c in sink.chunks for x in c["choices"] for d in x["delta"].get("tool_calls", [])]
    assert deltas[0]["function"]["name"] == "time" and sink.finish == "tool_calls"
    assert json.loads("".join(delta["function"]["arguments"] for delta in deltas)) == {"city": "Paris"}
    (call,) = json.loads(whole.body)["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "time", "arguments": '{"city":"Paris"}'}
    for refused, param in ((no_schema, "response_format"), (no_tools, "tools")):
        assert isinstance(refused.error, Unsupported) and refused.error.param == param


@pytest.mark.parametrize("way", WAYS)
async def test_another_model_name_is_misconfigured(at: Any, way: str) -> None:
    async with at("single:nope", way) as engine:
        sink = await run(engine, RecordingSink(), **script(say="abc"))
        health = await engine.probe()
    assert isinstance(sink.error, Misconfigured) and sink.error.retry == "free"
    assert health.state != "ready"


@pytest.mark.parametrize("way", WAYS)
async def test_the_model_is_found_and_probed(single: Triton, classic: Triton, way: str) -> None:
    for server in (single, classic):
        engine = build("triton", "t0", {"url": getattr(server, way)})
        assert (await engine.probe()).state == "ready"
        assert (await engine.layout()).model == "ensemble"  # type: ignore[attr-defined]
        await engine.aclose()


@pytest.mark.parametrize("way", WAYS)
async def test_a_server_that_dies_with_a_call_is_gone_and_then_unreached(ears: Ears, classic: Triton, way: str) -> None:
    server = Triton("classic", ears)
    server.start()
    try:
        options = {"url": getattr(server, way), "model": "ensemble", "chat_template": TEMPLATE}
        engine = build("triton", "t0", options)
        sink = RecordingSink()
        attempt = engine.open(make_call(**script(say="a" * 400, piece=1, delay=0.02)), sink)
        await sink.got(2)
        server.kill()
        await attempt.closed()
        after = await run(engine, RecordingSink(), **script(say="abc"))
        health = await engine.probe()
        await engine.aclose()
    finally:
        server.stop()
    assert isinstance(sink.error, Gone) and sink.finish is None
    assert isinstance(after.error, Unreached)
    assert health.state == "down"


@pytest.mark.parametrize("way", WAYS)
async def test_llama_cpp_inside_gives_the_same_text_streamed_and_whole(at: Any, way: str) -> None:
    async with at("single:llama", way) as engine:
        sinks = []
        for stream in (True, False):
            sink = RecordingSink()
            call = {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0, "seed": 1}
            sinks.append(await run(engine, sink, kind="completions", stream=stream, **call))
        eight = [RecordingSink() for _ in range(8)]
        attempts = [
            engine.open(make_call("completions", prompt=f"Number {n}", max_tokens=16, temperature=0), sink)
            for n, sink in enumerate(eight)
        ]
        for attempt in attempts:
            await attempt.closed()
    streamed, whole = sinks
    assert streamed.text and streamed.text == text_of(whole, False)
    assert {sink.finish for sink in sinks} == {"length"}
    counts = [sink.marks[-1].usage for sink in sinks]
    assert counts[0] == counts[1] or way == "http"
    assert counts[0] is not None and counts[0].completion_tokens == 24 and not counts[0].estimated
    assert all(sink.error is None and sink.finish for sink in eight)
    assert {chunk["model"] for chunk in streamed.chunks} == {PUBLIC}


async def test_llama_cpp_inside_sees_a_cancelled_call(at: Any, ears: Ears) -> None:
    ears.forget()
    async with at("single:llama") as engine:
        sink = RecordingSink()
        attempt = engine.open(make_call("completions", prompt="Once", max_tokens=4000), sink)
        await sink.got(2)
        sink.silent = True
        attempt.abort("the client left")
        heard = await ears.hear("cancelled")
        await attempt.closed()
    assert heard["after"] < 4000
