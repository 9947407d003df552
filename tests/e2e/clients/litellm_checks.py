"""Drives a gateway with LiteLLM's SDK, as the provider `openai/` with an `api_base`.

    python litellm_checks.py BASE_URL MODEL [--key KEY] [--refuses FEATURE,...] [--only NAME ...]

Prints `ok name`, `skip name: why` or `FAIL name: why` per check; the exit code is the number of failures.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any, Literal

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else importing it fetches a price list

import litellm
from checks import PAINT, PIXEL, WEATHER, House, Skip, main, proper  # beside this script
from pydantic import BaseModel

litellm.telemetry = False
litellm.suppress_debug_info = True


class Paint(BaseModel):
    """What to paint with."""

    colour: Literal["red", "green", "blue"]
    count: int
    bright: bool


def said(error: BaseException) -> tuple[int | None, str | None]:
    status = getattr(error, "status_code", None)
    if status is None or not type(error).__module__.startswith("litellm"):
        return None, None
    body = getattr(error, "body", None)
    return status, body.get("param") if isinstance(body, dict) else getattr(error, "param", None)


def to(house: House, provider: str = "openai", **changes: Any) -> dict[str, Any]:
    """The arguments of `litellm.completion`."""
    body = house.chat(**changes)
    where = {"api_base": house.base_url, "api_key": house.key, "max_retries": 0, "timeout": 120}
    return where | body | {"model": f"{provider}/{body['model']}"}


def text_of(chunks: list[Any]) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def check_completion(house: House) -> None:
    answer = litellm.completion(**to(house))
    proper(answer.choices[0].message.content)
    assert answer.choices[0].finish_reason in ("stop", "length"), answer.choices[0].finish_reason
    assert answer.model == house.model, answer.model
    assert answer.usage.prompt_tokens > 0 and answer.usage.completion_tokens > 0, answer.usage
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens, answer.usage


def check_stream(house: House) -> None:
    chunks = list(litellm.completion(**to(house, stream=True)))
    whole = litellm.completion(**to(house))
    assert proper(text_of(chunks)) == whole.choices[0].message.content
    finishes = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert finishes == [whole.choices[0].finish_reason], finishes


def check_stream_usage(house: House) -> None:
    chunks = list(litellm.completion(**to(house, stream=True, stream_options={"include_usage": True})))
    counts = [chunk.usage for chunk in chunks if getattr(chunk, "usage", None)]
    whole = litellm.completion(**to(house)).usage
    assert len(counts) == 1, counts
    assert counts[0].completion_tokens == whole.completion_tokens, (counts[0], whole)
    built = litellm.stream_chunk_builder(chunks)
    assert proper(built.choices[0].message.content) == text_of(chunks)


async def check_async(house: House) -> None:
    whole = await litellm.acompletion(**to(house))
    stream = await litellm.acompletion(**to(house, stream=True))
    assert proper(text_of([chunk async for chunk in stream])) == whole.choices[0].message.content


def check_hosted_vllm_provider(house: House) -> None:
    answer = litellm.completion(**to(house, provider="hosted_vllm"))
    assert proper(answer.choices[0].message.content)
    chunks = list(litellm.completion(**to(house, provider="hosted_vllm", stream=True)))
    assert text_of(chunks) == answer.choices[0].message.content


def check_text_completion(house: House) -> None:
    body = to(house, provider="text-completion-openai", prompt="The capital of France is")
    del body["messages"]
    answer = litellm.text_completion(**body)
    streamed = list(litellm.text_completion(**body, stream=True))
    said_there = "".join(choice.text or "" for chunk in streamed for choice in chunk.choices)
    assert proper(answer.choices[0].text) == said_there, (answer.choices[0].text, said_there)


def check_parameters(house: House) -> None:
    body = to(house, seed=7, stop=["zzzz"], top_p=0.9, frequency_penalty=0.1, presence_penalty=0.1, user="somebody")
    proper(litellm.completion(**body).choices[0].message.content)


def check_max_completion_tokens(house: House) -> None:
    body = to(house, logit_bias={house.eos: -100}, max_completion_tokens=4)
    del body["max_tokens"]
    answer = litellm.completion(**body)
    assert answer.choices[0].finish_reason == "length", answer.choices[0].finish_reason
    assert answer.usage.completion_tokens <= 4, answer.usage


def check_logprobs(house: House) -> None:
    with house.may_refuse("logprobs"):
        answer = litellm.completion(**to(house, logprobs=True, top_logprobs=2))
        assert answer.choices[0].logprobs.content[0].logprob <= 0, answer.choices[0].logprobs


def check_json_schema(house: House) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "paint", "strict": True, "schema": PAINT}}
    with house.may_refuse("json_schema"):
        for shape in (wanted, Paint):
            answer = litellm.completion(**to(house, text="Describe it.", response_format=shape, max_tokens=120))
            Paint.model_validate_json(answer.choices[0].message.content, strict=True)


def check_tools(house: House) -> None:
    with house.may_refuse("tools", "tool_choice"):
        body = to(house, text="How is the weather in Paris?", tools=[WEATHER], tool_choice="required", max_tokens=120)
        answer = litellm.completion(**body)
        (call,) = answer.choices[0].message.tool_calls
        assert call.function.name == "weather" and call.id, call
        assert set(json.loads(call.function.arguments)) == {"city"}, call
        assert answer.choices[0].finish_reason == "tool_calls", answer.choices[0].finish_reason


def check_tools_streamed(house: House) -> None:
    with house.may_refuse("tools", "tool_choice"):
        body = to(house, text="How is the weather in Paris?", tools=[WEATHER], tool_choice="required", max_tokens=120)
        built = litellm.stream_chunk_builder(list(litellm.completion(**body, stream=True)))
        (call,) = built.choices[0].message.tool_calls
        assert call.function.name == "weather" and call.id, call
        assert set(json.loads(call.function.arguments)) == {"city"}, call
        assert built.choices[0].finish_reason == "tool_calls", built.choices[0].finish_reason


def check_results_of_tools(house: House) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
    messages = [
        {"role": "user", "content": "How is the weather in Paris?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "It rains."},
    ]
    with house.may_refuse("tools"):
        message = litellm.completion(**to(house, messages=messages, tools=[WEATHER])).choices[0].message
        assert message.content or message.tool_calls, message


def check_image(house: House) -> None:
    parts = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": PIXEL}}]
    with house.may_refuse("images"):
        answer = litellm.completion(**to(house, messages=[{"role": "user", "content": parts}]))
        proper(answer.choices[0].message.content)


def check_embeddings_are_refused_clearly(house: House) -> None:
    where = {"api_base": house.base_url, "api_key": house.key, "max_retries": 0}
    try:
        litellm.embedding(model=f"openai/{house.model}", input=["hello"], **where)
    except Exception as error:
        status, _ = said(error)
        assert status in (400, 404, 501) and "embed" in str(error).lower(), (status, error)
        return
    raise AssertionError("a model that only generates embedded something")


def check_unknown_model(house: House) -> None:
    for stream in (False, True):
        with house.raises(litellm.NotFoundError, 404):
            list(litellm.completion(**to(house, model="no-such-model", stream=stream)))


def check_bad_parameter(house: House) -> None:
    for stream in (False, True):
        with house.raises(litellm.BadRequestError, 400, "temperature"):
            list(litellm.completion(**to(house, temperature=3.5, stream=stream)))


def check_context_too_long(house: House) -> None:
    for stream in (False, True):
        with house.raises(litellm.ContextWindowExceededError, 400):
            list(litellm.completion(**to(house, text="one two three four " * 10_000, stream=stream)))


def check_wrong_key(house: House) -> None:
    if not house.keyed:
        raise Skip("the gateway has no keys")
    with house.raises(litellm.AuthenticationError, 401):
        litellm.completion(**to(house) | {"api_key": "sk-wrong"})


async def check_left_stream_frees_the_engine(house: House) -> None:
    stream = await litellm.acompletion(**to(house, stream=True, **house.endless))
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            break
    await stream.aclose()
    await asyncio.to_thread(house.wait_until_idle)


if __name__ == "__main__":
    sys.exit(main(__doc__, globals(), said))
