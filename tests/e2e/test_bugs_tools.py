"""B17 and B20 through the whole gateway: parallel tool calls, and finish reasons, from every engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.inside import FAKES, Home, chat, house, pool
from tests.e2e.scripts import DONE, ROLE, answering, chunk, completion, events, finish, payloads, streaming, token
from tests.fakes.vllm import FakeVllm

Json = dict[str, Any]

TOOL = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}
NAMED = {"type": "function", "function": {"name": "read"}}

# B17: parallel tool calls


def part(arguments: str, call: str | None = None, index: int | None = None) -> Json:
    """One delta of a tool call, as an engine may write it."""
    said: Json = {"function": {"arguments": arguments}}
    if call is not None:
        said = {"id": call, "type": "function", "function": {"name": "read", "arguments": arguments}}
    return said if index is None else {"index": index, **said}


SPELLINGS: dict[str, list[list[Json]]] = {
    "index always 0": [[part('{"path":"a"}', "call_1", 0)], [part('{"path":"b"}', "call_2", 0)]],
    "index always 0, in pieces": [
        [part('{"path"', "call_1", 0)],
        [part(':"a"}', None, 0)],
        [part('{"path"', "call_2", 0)],
        [part(':"b"}', None, 0)],
    ],
    "no index": [[part('{"path":"a"}', "call_1")], [part('{"path":', "call_2")], [part('"b"}')]],
    "no index, the id in every piece": [
        [part('{"path":', "call_1")],
        [part('"a"}', "call_1")],
        [part('{"path":', "call_2")],
        [part('"b"}', "call_2")],
    ],
    "an empty id goes on with the last": [
        [part('{"path":"a"}', "call_1", 0)],
        [part('{"path":', "call_2", 0)],
        [part('"b"}', "", 0)],
    ],
    "both in one chunk": [[part('{"path":"a"}', "call_1", 0), part('{"path":"b"}', "call_2", 0)]],
    "right, in turns": [
        [part("", "call_1", 0), part("", "call_2", 1)],
        [part('{"path":', None, 1), part('{"path":', None, 0)],
        [part('"b"}', None, 1)],
        [part('"a"}', None, 0)],
    ],
}


def joined(body: bytes) -> dict[int, list[tuple[str, Json]]]:
    """Tool calls by choice, joined by index as clients do: (id, arguments)."""
    found: dict[tuple[int, int], list[str]] = {}
    for each in payloads(body):
        for choice in each["choices"]:
            for call in choice["delta"].get("tool_calls") or ():
                said = found.setdefault((choice["index"], call["index"]), ["", "", ""])
                said[0] += call.get("id") or ""
                said[1] += call["function"].get("name") or ""
                said[2] += call["function"].get("arguments") or ""
    calls: dict[int, list[tuple[str, Json]]] = {}
    for (choice, _), (call_id, name, arguments) in sorted(found.items()):
        assert name == "read"
        calls.setdefault(choice, []).append((call_id, json.loads(arguments)))
    return calls


TWO = [("call_1", {"path": "a"}), ("call_2", {"path": "b"})]


@pytest.mark.parametrize("kind", FAKES)
async def test_b17_parallel_tool_calls_stay_apart_however_the_engine_counts_them(tmp_path: Path, kind: str) -> None:
    async with FAKES[kind]() as fake, house(tmp_path, pool("m", fake)) as home, home.sdk() as sdk:
        for name, deltas in SPELLINGS.items():
            said = [chunk({"tool_calls": calls}) for calls in deltas]
            fake.script = streaming(ROLE, *(events(each) for each in said), finish("tool_calls"), DONE)
            async with home.ask(chat(stream=True, tools=[TOOL])) as reply:
                assert joined(await reply.rest()) == {0: TWO}, name
            async with sdk.chat.completions.stream(**chat(tools=[TOOL])) as stream:
                final = await stream.get_final_completion()
            calls = final.choices[0].message.tool_calls or []
            assert [(call.id, json.loads(call.function.arguments)) for call in calls] == TWO, name


async def test_b17_indexes_are_kept_apart_by_choice(tmp_path: Path) -> None:
    def of(choice: int, delta: Json, reason: str | None = None) -> Json:
        return chunk({}, choices=[{"index": choice, "delta": delta, "finish_reason": reason}])

    said = []
    for call, path in TWO:
        said += [of(choice, {"tool_calls": [part(json.dumps(path), call, 0)]}) for choice in (0, 1)]
    said += [of(choice, {}, "tool_calls") for choice in (0, 1)]
    async with FakeVllm() as fake, house(tmp_path, pool("m", fake)) as home:
        fake.script = streaming(*(events(each) for each in said), DONE)
        async with home.ask(chat(stream=True, tools=[TOOL], n=2)) as reply:
            assert joined(await reply.rest()) == {0: TWO, 1: TWO}


async def test_b17_a_well_formed_stream_passes_byte_for_byte(tmp_path: Path) -> None:
    said = [chunk({"tool_calls": calls}, model="m") for calls in SPELLINGS["right, in turns"]]
    last = finish("tool_calls", model="m")
    async with FakeVllm() as fake, house(tmp_path, pool("m", fake)) as home:
        fake.script = streaming(*(events(each) for each in said), last, DONE)
        async with home.ask(chat(stream=True, tools=[TOOL])) as reply:
            assert await reply.rest() == b"".join(events(each) for each in said) + last + DONE


# B20: finish reasons

WITH_TOOLS: Json = {"tools": [TOOL]}
CALLS = [part('{"path":"a"}', "call_1", 0)]
TABLE: dict[str, tuple[Json, bool, str, str]] = {
    # what the client asked beside, whether tools were called, the engine's word, ours
    "auto, called": (WITH_TOOLS, True, "stop", "tool_calls"),
    "auto by name, called": (WITH_TOOLS | {"tool_choice": "auto"}, True, "stop", "tool_calls"),
    "required, called": (WITH_TOOLS | {"tool_choice": "required"}, True, "stop", "tool_calls"),
    "required, said so": (WITH_TOOLS | {"tool_choice": "required"}, True, "tool_calls", "tool_calls"),
    "a named function": (WITH_TOOLS | {"tool_choice": NAMED}, True, "stop", "stop"),
    "auto, not called": (WITH_TOOLS, False, "stop", "stop"),
    "called, cut off": (WITH_TOOLS, True, "length", "length"),
    "called, eos": (WITH_TOOLS, True, "eos_token", "tool_calls"),
    "cut off": ({}, False, "length", "length"),
    "filtered": ({}, False, "content_filter", "content_filter"),
    "the old word": ({}, False, "function_call", "function_call"),
    "eos_token": ({}, False, "eos_token", "stop"),
    "stop_sequence": ({}, False, "stop_sequence", "stop"),
    "stop": ({}, False, "stop", "stop"),
}


async def reasons(home: Home, body: Json) -> list[str]:
    """The finish reasons that are not null, of a stream or a whole answer."""
    async with home.ask(body) as reply:
        assert reply.status == 200, await reply.rest()
        said = payloads(await reply.rest()) if body.get("stream") else [await reply.json()]
    given = [choice["finish_reason"] for each in said for choice in each["choices"]]
    return [reason for reason in given if reason is not None]


@pytest.mark.parametrize("kind", FAKES)
async def test_b20_finish_reasons_are_openais_from_every_engine_streamed_and_whole(tmp_path: Path, kind: str) -> None:
    async with FAKES[kind]() as fake, house(tmp_path, pool("m", fake)) as home:
        for name, (asked, called, word, ours) in TABLE.items():
            fake.script = answering(completion({"content": None, "tool_calls": CALLS} if called else HELLO, word))
            assert await reasons(home, chat(**asked)) == [ours], name
            begun = events(chunk({"tool_calls": CALLS})) if called else token("hello")
            # `""` where a chunk is not the last, as some engines write it
            fake.script = streaming(ROLE, begun, finish(""), finish(word), DONE)
            assert await reasons(home, chat(stream=True, **asked)) == [ours], f"{name}, streamed"


HELLO = {"content": "hello"}


@pytest.mark.parametrize("kind", FAKES)
async def test_b20_every_choice_of_a_stream_has_exactly_one_finish_reason(tmp_path: Path, kind: str) -> None:
    async with FAKES[kind]() as fake, house(tmp_path, pool("m", fake)) as home:
        empty = [chunk({"content": "x"}, ""), chunk({"content": "y"}, "")]
        twice = [chunk({}, "stop"), chunk({}, "length"), chunk({}, "stop")]
        fake.script = streaming(*(events(each) for each in [*empty, *twice]), DONE)
        async with home.ask(chat(stream=True)) as reply:
            said = payloads(await reply.rest())
        given = [choice["finish_reason"] for each in said for choice in each["choices"]]
        assert given == [None, None, "stop", None, None]


async def test_b20_a_reason_that_no_client_knows_is_no_success(tmp_path: Path) -> None:
    async with FakeVllm() as fake, house(tmp_path, pool("m", fake)) as home:
        for word in ("error", "abort", "cancelled"):
            fake.script = answering(completion(HELLO, word))
            async with home.ask(chat()) as reply:
                assert reply.status == 500, word
