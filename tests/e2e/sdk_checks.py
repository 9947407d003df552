"""Drives a gateway with the official OpenAI SDK, whichever version the interpreter that runs this has.

    python sdk_checks.py BASE_URL MODEL [--engine-only] [--eos TOKEN] [--only NAME ...]

Prints a line per check: `ok name`, `skip name: why` or `FAIL name: why`. The exit code is the number of failures.
Stands alone with its neighbour `sdk_house.py`: both import nothing but the SDK and the standard library.
`--engine-only` leaves out what only a gateway promises, so that the script can be tried against a bare llama.cpp.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import sys
import traceback
from typing import Any

import openai
from sdk_house import ENGLISH, House, Skip, proper, raised, text_of  # beside this script

CHINESE = [{"role": "user", "content": "你好！请用中文介绍一下你自己。"}]
LONG_ANSWER = 1_500  # tokens: many seconds of work for the engine, so that an abandoned call is seen to end early


def check_sync_chat(house: House) -> None:
    answer = house.client().chat.completions.create(**house.chat())
    proper(answer.choices[0].message.content)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason in ("stop", "length"), answer.choices[0].finish_reason
    assert answer.object == "chat.completion" and answer.id
    assert answer.usage is not None and answer.usage.prompt_tokens > 0 and answer.usage.completion_tokens > 0
    if not house.engine_only:
        assert answer.model == house.model, f"the answer names {answer.model!r}"


async def check_async_chat(house: House) -> None:
    async with house.async_client() as client:
        proper((await client.chat.completions.create(**house.chat())).choices[0].message.content)


def check_stream_without_usage(house: House) -> None:
    chunks = list(house.client().chat.completions.create(**house.chat(stream=True)))
    proper(text_of(chunks))
    assert all(chunk.choices for chunk in chunks), "a chunk without choices came to a client that did not ask for usage"
    assert all(not chunk.usage for chunk in chunks), "usage came unasked"
    assert len({chunk.id for chunk in chunks}) == 1, "the chunks have several ids"
    finishes = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert len(finishes) == 1 and finishes[0] in ("stop", "length"), finishes
    if not house.engine_only:
        assert {chunk.model for chunk in chunks} == {house.model}


def check_stream_with_usage(house: House) -> None:
    body = house.chat(stream=True, stream_options={"include_usage": True})
    chunks = list(house.client().chat.completions.create(**body))
    empty = [chunk for chunk in chunks if not chunk.choices]
    assert len(empty) == 1 and chunks[-1] is empty[0], f"{len(empty)} chunks without choices"
    assert empty[0].usage is not None and empty[0].usage.completion_tokens > 0
    assert empty[0].usage.total_tokens == empty[0].usage.prompt_tokens + empty[0].usage.completion_tokens


def check_response_headers(house: House) -> None:
    house.gateway_only()
    client = house.client()
    raw = client.chat.completions.with_raw_response.create(**house.chat(), extra_headers={"x-request-id": "my-own-id"})
    for name in ("x-enginehouse-endpoint", "x-enginehouse-engine", "x-enginehouse-policy"):
        assert raw.headers.get(name), f"{name} is missing"
    assert raw.headers.get("x-request-id") == "my-own-id", raw.headers.get("x-request-id")
    assert float(raw.headers["x-enginehouse-overhead-ms"]) >= 0
    proper(raw.parse().choices[0].message.content)
    with client.chat.completions.with_streaming_response.create(**house.chat(stream=True)) as streaming:
        assert streaming.headers["content-type"].startswith("text/event-stream")
        assert streaming.headers.get("x-request-id") and streaming.headers.get("x-enginehouse-endpoint")
        assert "content-encoding" not in streaming.headers
        assert sum(line == "data: [DONE]" for line in streaming.iter_lines()) == 1


def check_client_timeout_frees_the_engine(house: House) -> None:
    client = house.client(timeout=0.7)
    raised(openai.APITimeoutError, lambda: client.chat.completions.create(**house.endless(max_tokens=LONG_ANSWER)))
    house.wait_until_idle()


def check_stop(house: House) -> None:
    counting = [{"role": "user", "content": "Count from one to nine in digits: 1 2 3 4 5 6 7 8 9"}]
    free = house.client().chat.completions.create(**house.chat(messages=counting, max_tokens=40))
    text = proper(free.choices[0].message.content)
    stop = text[len(text) // 2 :][:2]
    answer = house.client().chat.completions.create(**house.chat(messages=counting, max_tokens=40, stop=[stop]))
    assert stop not in (answer.choices[0].message.content or ""), f"the stop sequence {stop!r} is in the answer"
    assert answer.choices[0].finish_reason == "stop"


def check_output_caps(house: House) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        body = house.endless()
        del body["max_tokens"]
        answer = house.client().chat.completions.create(**body, **{name: 5})
        assert answer.usage is not None and 0 < answer.usage.completion_tokens <= 5, (name, answer.usage)
        assert answer.choices[0].finish_reason == "length", (name, answer.choices[0].finish_reason)


def check_seed(house: House) -> None:
    def drawn(seed: int) -> str:
        answer = house.client().chat.completions.create(**house.endless(temperature=1.5, seed=seed, max_tokens=12))
        return proper(answer.choices[0].message.content)

    drawn(7)  # the engine's prefix cache is warm from here on, so that all draws see the same figures
    first = drawn(7)
    assert drawn(7) == first, "the same seed gave another text"
    assert any(drawn(seed) != first for seed in (8, 9, 10)), "the seed has no effect"


def check_logprobs(house: House) -> None:
    answer = house.client().chat.completions.create(**house.endless(max_tokens=4, logprobs=True, top_logprobs=3))
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content, "there are no logprobs"
    assert len(logprobs.content) == 4
    for token in logprobs.content:
        assert token.logprob <= 0 and len(token.top_logprobs) == 3


def check_json_schema(house: House) -> None:
    schema = {
        "type": "object",
        "properties": {
            "colour": {"type": "string", "enum": ["red", "green", "blue"]},
            "count": {"type": "integer"},
            "bright": {"type": "boolean"},
        },
        "required": ["colour", "count", "bright"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "paint", "strict": True, "schema": schema}}
    answer = house.client().chat.completions.create(**house.chat(response_format=wanted, max_tokens=120))
    said = json.loads(answer.choices[0].message.content or "")
    assert set(said) == {"colour", "count", "bright"}, said
    assert said["colour"] in ("red", "green", "blue") and type(said["count"]) is int and type(said["bright"]) is bool


def check_embeddings_are_refused_clearly(house: House) -> None:
    client = house.client()
    error = raised(openai.APIStatusError, lambda: client.embeddings.create(model=house.model, input="hello"))
    assert "embed" in error.body["message"].lower(), error.body
    assert error.status_code in (400, 404, 501), error.status_code


def check_models(house: House) -> None:
    listed = [model.id for model in house.client().models.list()]
    assert listed, "no model is listed"
    house.gateway_only()
    assert house.model in listed, listed
    for name in listed:
        assert house.client().models.retrieve(name).id == name
    raised(openai.NotFoundError, lambda: house.client().models.retrieve("no-such-model"))


def check_completions_route(house: House) -> None:
    body = {"model": house.model, "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
    whole = house.client().completions.create(**body)  # type: ignore[call-overload]
    proper(whole.choices[0].text)
    chunks = list(house.client().completions.create(**body, stream=True))  # type: ignore[call-overload]
    streamed = "".join(choice.text for chunk in chunks for choice in chunk.choices)
    assert proper(streamed) == whole.choices[0].text, (streamed, whole.choices[0].text)


def check_unknown_model(house: House) -> None:
    house.gateway_only()
    for stream in (False, True):
        body = house.chat(model="no-such-model", stream=stream)
        error = raised(openai.NotFoundError, lambda body=body: house.client().chat.completions.create(**body))
        assert error.code == "model_not_found", error.body


def check_bad_parameter(house: House) -> None:
    for stream in (False, True):
        body = house.chat(temperature="hot", stream=stream)
        error = raised(openai.BadRequestError, lambda body=body: house.client().chat.completions.create(**body))
        assert house.engine_only or error.param == "temperature", error.body


def check_context_too_long(house: House) -> None:
    flood = [{"role": "user", "content": "one two three four " * 10_000}]
    for stream in (False, True):
        body = house.chat(messages=flood, stream=stream)
        error = raised(openai.BadRequestError, lambda body=body: house.client().chat.completions.create(**body))
        assert house.engine_only or error.code == "context_length_exceeded", error.body


def check_english_and_chinese(house: House) -> None:
    for messages in (ENGLISH, CHINESE):
        whole = house.client().chat.completions.create(**house.chat(messages=messages, max_tokens=40))
        chunks = house.client().chat.completions.create(**house.chat(messages=messages, max_tokens=40, stream=True))
        assert proper(text_of(chunks)) == proper(whole.choices[0].message.content)


async def check_closed_stream_frees_the_engine(house: House) -> None:
    async with house.async_client() as client:
        body = house.endless(max_tokens=LONG_ANSWER, stream=True)
        async with await client.chat.completions.create(**body) as stream:
            async for chunk in stream:
                if chunk.choices and chunk.choices[0].delta.content:
                    break
        await asyncio.to_thread(house.wait_until_idle)


async def check_four_parallel_streams(house: House) -> None:
    async with house.async_client() as client:

        async def one(number: int) -> str:
            messages = [{"role": "user", "content": f"Say the number {number}."}]
            body = house.endless(messages=messages, max_tokens=24, stream=True)
            stream = await client.chat.completions.create(**body)
            return proper(text_of([chunk async for chunk in stream]))

        assert len(await asyncio.gather(*(one(number) for number in range(4)))) == 4


def run(house: House, only: list[str]) -> int:
    """Run the checks and return how many failed."""
    failures = 0
    for function_name, check in list(globals().items()):
        name = function_name.removeprefix("check_")
        if name == function_name or (only and name not in only):
            continue
        try:
            outcome = check(house)
            if inspect.isawaitable(outcome):
                asyncio.run(_awaited(outcome))
        except Skip as why:
            print(f"skip {name}: {why}", flush=True)
        except Exception as error:
            failures += 1
            where = traceback.extract_tb(error.__traceback__)[-1]
            print(f"FAIL {name}: {type(error).__name__}: {error} (line {where.lineno})", flush=True)
        else:
            print(f"ok {name}", flush=True)
    return failures


async def _awaited(outcome: Any) -> None:
    await outcome


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("base_url")
    parser.add_argument("model")
    parser.add_argument("--engine-only", action="store_true")
    parser.add_argument("--eos", default="2", help="the model's end-of-turn token (2: SmolLM2's)")
    parser.add_argument("--only", nargs="*", default=[])
    given = parser.parse_args()
    sys.exit(run(House(given.base_url, given.model, given.engine_only, given.eos), given.only))
