"""B21 and B22 through the whole gateway: nulls, empty contents and output caps, as each engine is sent them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.inside import FAKES, Home, chat, house, pool
from tests.e2e.scripts import DONE, ROLE, finish, streaming, text_of, token
from tests.fakes.engine import FakeEngine
from tests.fakes.server import Peer, Script, response

Json = dict[str, Any]


@asynccontextmanager
async def serving(folder: Path, kind: str) -> AsyncIterator[tuple[FakeEngine, Home]]:
    async with FAKES[kind]() as fake, house(folder, pool("m", fake)) as home:
        yield fake, home


async def sent(home: Home, fake: FakeEngine, body: Json, path: str = "/v1/chat/completions") -> Json:
    """What the engine was sent for this body, which it must have answered."""
    async with home.ask(body, path) as reply:
        answer = await reply.rest()
        assert reply.status == 200, (body, answer)
    found: Json = json.loads(fake.requests[-1].body)
    return found


# B21: nulls

NULLS = [
    *("temperature", "top_p", "max_tokens", "max_completion_tokens", "n", "stop", "seed", "stream", "stream_options"),
    *("presence_penalty", "frequency_penalty", "logit_bias", "logprobs", "top_logprobs", "response_format", "tools"),
    *("tool_choice", "parallel_tool_calls", "user", "metadata"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", FAKES)
async def test_b21_nulls_mean_the_default_on_every_engine(tmp_path: Path, kind: str, stream: bool) -> None:
    async with serving(tmp_path, kind) as (fake, home):
        for name in NULLS:
            out = await sent(home, fake, chat(stream=stream) | {name: None})
            assert None not in out.values(), name
            assert out == await sent(home, fake, chat(stream=stream if name != "stream" else False)), name
        every = dict.fromkeys(NULLS) | ({"stream": True} if stream else {})
        assert None not in (await sent(home, fake, chat(**every))).values()
        for name in ("temperature", "max_tokens", "suffix", "echo", "best_of", "stop", "logprobs"):
            body = {"model": "m", "prompt": "hi", "stream": stream, name: None}
            assert None not in (await sent(home, fake, body, "/v1/completions")).values(), name


async def test_b21_nulls_of_embeddings_mean_the_default(tmp_path: Path) -> None:
    async with serving(tmp_path, "llamacpp") as (fake, home):
        body = {"model": "m", "input": "hi", "dimensions": None, "encoding_format": None, "user": None}
        assert None not in (await sent(home, fake, body, "/v1/embeddings")).values()


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CONTENTS: dict[str, Json] = {"absent": {}, "null": {"content": None}, "empty": {"content": ""}}
WANTED: dict[str, Json] = {
    "vllm": {"content": None},
    "tgi": {},  # its parser takes a message with tool calls only without one
    "llamacpp": {"content": None},
    "tensorrt_llm": {"content": None},
}


@pytest.mark.parametrize("given", CONTENTS)
@pytest.mark.parametrize("kind", FAKES)
async def test_b21_a_tool_calling_message_carries_the_content_that_its_engine_takes(
    tmp_path: Path, kind: str, given: str
) -> None:
    history = [
        {"role": "user", "content": ""},
        {"role": "assistant", "tool_calls": [CALL], **CONTENTS[given]},
        {"role": "tool", "tool_call_id": "c1", "content": ""},
        {"role": "assistant", "tool_calls": [CALL], "content": "I will"},
    ]
    async with serving(tmp_path, kind) as (fake, home):
        out = (await sent(home, fake, chat() | {"messages": history}))["messages"]
        assert out[1] == {"role": "assistant", "tool_calls": [CALL], **WANTED[kind]}
        assert [out[0], *out[2:]] == [history[0], *history[2:]], "no other message is touched"


@pytest.mark.parametrize("wanted", CONTENTS)
async def test_b21_an_operator_may_say_what_content_the_template_takes(tmp_path: Path, wanted: str) -> None:
    message = {"role": "assistant", "tool_calls": [CALL]}
    async with FAKES["vllm"]() as fake:
        settings = pool("m", fake, options={"assistant_content": wanted})
        async with house(tmp_path, settings) as home:
            for given in CONTENTS.values():
                out = await sent(home, fake, chat() | {"messages": [message | given]})
                assert out["messages"] == [message | CONTENTS[wanted]]


FALSY: Json = {"temperature": 0, "top_p": 0.0, "seed": 0, "frequency_penalty": 0, "presence_penalty": 0, "stop": []}


@pytest.mark.parametrize("kind", FAKES)
async def test_b21_what_is_falsy_and_meant_is_sent(tmp_path: Path, kind: str) -> None:
    # TGI reads the presence penalty into another one, and refuses `top_p: 0`, as it is free to.
    left_out = {"presence_penalty", "top_p"} if kind == "tgi" else set()
    wanted = {name: value for name, value in FALSY.items() if name not in left_out}
    async with serving(tmp_path, kind) as (fake, home):
        out = await sent(home, fake, chat(**{name: FALSY[name] for name in FALSY if name != "top_p" or kind != "tgi"}))
        assert {name: out.get(name, "left out") for name in wanted} == wanted
        tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
        if kind != "tgi":  # which makes one call at most, so the field is honoured without being sent
            async with home.ask(chat(tools=tools, parallel_tool_calls=False)):  # older trtllm-serve refuse it aloud
                assert fake.requests[-1].json["parallel_tool_calls"] is False
        assert (await sent(home, fake, chat(logprobs=False)))["messages"] == chat()["messages"]
        out = await sent(home, fake, {"model": "m", "prompt": "", "temperature": 0}, "/v1/completions")
        assert (out["prompt"], out["temperature"]) == ("", 0)


# B22: output caps

KNOWN = {"vllm": "max_tokens", "tgi": "max_tokens", "llamacpp": "max_tokens", "tensorrt_llm": "max_completion_tokens"}
OTHER = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
CAPS: list[tuple[Json, int | None]] = [
    ({"max_completion_tokens": 10}, 10),
    ({"max_tokens": 10}, 10),
    ({"max_tokens": 10, "max_completion_tokens": 20}, 10),
    ({"max_tokens": 20, "max_completion_tokens": 10}, 10),
    ({"max_tokens": None, "max_completion_tokens": 10}, 10),
    ({"max_tokens": 10, "max_completion_tokens": None}, 10),
    ({}, None),
    ({"max_tokens": None, "max_completion_tokens": None}, None),
]


def obedient(fake: FakeEngine) -> Script:
    """An engine that makes as many tokens as the one cap that it knows allows, else 100, and says `length`."""

    async def script(peer: Peer) -> None:
        body = peer.request.json
        known = KNOWN[fake.kind] if "messages" in body else "max_tokens"
        fake.text = "abc" * body.get(known, 100)
        fake.finish = "length"
        if body.get("stream"):
            usage = {"prompt_tokens": 7, "completion_tokens": len(fake.pieces), "total_tokens": 7 + len(fake.pieces)}
            await streaming(ROLE, *(token(piece) for piece in fake.pieces), finish("length", usage=usage), DONE)(peer)
        else:
            answer = fake.chat_answer(body) if "messages" in body else fake.completion_answer(body)
            await peer.send(response(200, answer))

    return script


@pytest.mark.parametrize("kind", FAKES)
async def test_b22_either_name_of_the_cap_is_obeyed_by_every_engine(tmp_path: Path, kind: str) -> None:
    async with serving(tmp_path, kind) as (fake, home):
        fake.script = obedient(fake)
        for asked, cap in CAPS:
            for stream in (False, True):
                async with home.ask(chat(stream=stream, **asked)) as reply:
                    said = await (reply.rest() if stream else reply.json())
                    assert reply.status == 200, said
                out = fake.requests[-1].json
                assert out.get(KNOWN[kind]) == cap, asked
                assert OTHER[KNOWN[kind]] not in out, asked
                made = len(text_of(said)) // 3 if stream else said["usage"]["completion_tokens"]
                assert made == (cap or 100), (asked, stream)
                if not stream:
                    assert said["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("kind", FAKES)
async def test_b22_completions_are_capped_under_either_name(tmp_path: Path, kind: str, name: str) -> None:
    async with serving(tmp_path, kind) as (fake, home):
        fake.script = obedient(fake)
        out = await sent(home, fake, {"model": "m", "prompt": "hi", name: 10}, "/v1/completions")
        assert out.get("max_tokens") == 10 and "max_completion_tokens" not in out


async def test_b22_an_engines_own_name_of_the_cap_cannot_lift_it(tmp_path: Path) -> None:
    async with serving(tmp_path, "llamacpp") as (fake, home):
        fake.script = obedient(fake)
        async with home.ask(chat(max_tokens=10, n_predict=5000)) as reply:
            assert reply.status == 400
            assert (await reply.json())["error"]["param"] == "n_predict"
        assert not [request for request in fake.requests if request.method == "POST"]
