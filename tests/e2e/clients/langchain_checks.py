"""Drives a gateway with LangChain's ChatOpenAI.

    python langchain_checks.py BASE_URL MODEL [--key KEY] [--refuses FEATURE,...] [--only NAME ...]

Prints `ok name`, `skip name: why` or `FAIL name: why` per check; the exit code is the number of failures.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any, Literal

import openai
from checks import PIXEL, House, Skip, main, proper  # beside this script
from langchain_core.exceptions import ContextOverflowError, ModelNotFoundError
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

os.environ["LANGSMITH_TRACING"] = "false"
COLOURS = "Name three colours, please."


class Paint(BaseModel):
    """What to paint with."""

    colour: Literal["red", "green", "blue"]
    count: int
    bright: bool


def weather(city: str) -> str:
    """The weather in a city."""
    return f"It rains in {city}."


def time_of_day(city: str) -> str:
    """The time of day in a city."""
    return f"It is noon in {city}."


def said(error: BaseException) -> tuple[int | None, str | None]:
    return (error.status_code, error.param) if isinstance(error, openai.APIStatusError) else (None, None)


def model(house: House, **changes: Any) -> ChatOpenAI:
    where = {"base_url": house.base_url, "api_key": house.key, "max_retries": 0, "timeout": 120}
    return ChatOpenAI(**where | {"model": house.model, "temperature": 0, "max_tokens": 16} | changes)


def joined(chunks: list[AIMessageChunk]) -> AIMessageChunk:
    assert chunks, "the stream is empty"
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    return whole


def check_invoke(house: House) -> None:
    answer = model(house).invoke([SystemMessage("You are brief."), HumanMessage(COLOURS)])
    proper(answer.content)
    assert answer.response_metadata["finish_reason"] in ("stop", "length"), answer.response_metadata
    assert answer.response_metadata["model_name"] == house.model, answer.response_metadata
    counts = answer.usage_metadata
    assert counts is not None and counts["input_tokens"] > 0 and counts["output_tokens"] > 0, counts
    assert counts["total_tokens"] == counts["input_tokens"] + counts["output_tokens"], counts


def check_stream(house: House) -> None:
    chunks = list(model(house, stream_usage=False).stream(COLOURS))
    whole = joined(chunks)
    assert proper(whole.content) == model(house).invoke(COLOURS).content
    assert whole.response_metadata["finish_reason"] in ("stop", "length"), whole.response_metadata
    assert whole.usage_metadata is None, f"usage came unasked: {whole.usage_metadata}"


def check_stream_usage(house: House) -> None:
    chunks = list(model(house, stream_usage=True).stream(COLOURS))
    counts = joined(chunks).usage_metadata
    assert counts is not None and counts["input_tokens"] > 0 and counts["output_tokens"] > 0, counts
    assert sum(chunk.usage_metadata is not None for chunk in chunks) == 1, "usage came more than once"


def check_chain(house: House) -> None:
    chain = ChatPromptTemplate.from_messages([("human", "Name three {things}.")]) | model(house) | StrOutputParser()
    assert "".join(chain.stream({"things": "colours"})) == proper(chain.invoke({"things": "colours"}))


def check_batch(house: House) -> None:
    answers = model(house).batch([f"Say the number {number}." for number in range(4)])
    assert len([proper(answer.content) for answer in answers]) == 4


async def check_async(house: House) -> None:
    whole = await model(house).ainvoke(COLOURS)
    chunks = [chunk async for chunk in model(house, stream_usage=True).astream(COLOURS)]
    assert proper(joined(chunks).content) == whole.content
    many = await model(house).abatch([COLOURS, "Count to three."])
    assert [bool(proper(answer.content)) for answer in many] == [True, True]


def check_parameters(house: House) -> None:
    chat = model(house, seed=7, stop=["zzzz"], top_p=0.9, frequency_penalty=0.1, presence_penalty=0.1, n=1)
    proper(chat.invoke(COLOURS, user="somebody").content)


def check_max_completion_tokens(house: House) -> None:
    answer = model(house, max_tokens=4, logit_bias={house.eos: -100}).invoke(COLOURS)
    assert answer.response_metadata["finish_reason"] == "length", answer.response_metadata
    assert answer.usage_metadata is not None and answer.usage_metadata["output_tokens"] <= 4


def check_logprobs(house: House) -> None:
    with house.may_refuse("logprobs"):
        answer = model(house, logprobs=True, top_logprobs=2).invoke(COLOURS)
        assert answer.response_metadata["logprobs"]["content"][0]["logprob"] <= 0, answer.response_metadata


def check_structured_output_by_json_schema(house: House) -> None:
    with house.may_refuse("json_schema"):
        asked = model(house, max_tokens=120).with_structured_output(Paint, method="json_schema")
        said_by_pydantic = asked.invoke("Describe the paint.")
        assert isinstance(said_by_pydantic, Paint), said_by_pydantic
        chunks = list(asked.stream("Describe the paint."))
        assert isinstance(chunks[-1], Paint), chunks


def check_structured_output_by_json_mode(house: House) -> None:
    with house.may_refuse("json_schema"):
        asked = model(house, max_tokens=300).with_structured_output(method="json_mode", include_raw=True)
        answer = asked.invoke("Answer with a JSON object that has a key 'colour'.")
        # What a small model makes of it may be cut off; that it was asked and answered is the client's matter.
        assert isinstance(answer["raw"], AIMessage) and proper(answer["raw"].content).lstrip().startswith("{"), answer


def check_structured_output_by_function_calling(house: House) -> None:
    with house.may_refuse("tools", "tool_choice"):
        asked = model(house, max_tokens=120).with_structured_output(Paint, method="function_calling")
        assert isinstance(asked.invoke("Describe the paint."), Paint)


def check_bind_tools(house: House) -> None:
    with house.may_refuse("tools", "tool_choice"):
        bound = model(house, max_tokens=120).bind_tools([weather], tool_choice="any")
        answer = bound.invoke("How is the weather in Paris?")
        assert [call["name"] for call in answer.tool_calls] == ["weather"], answer
        assert set(answer.tool_calls[0]["args"]) == {"city"} and answer.tool_calls[0]["id"], answer
        assert answer.response_metadata["finish_reason"] == "tool_calls", answer.response_metadata
        assert not answer.invalid_tool_calls, answer


def check_bind_tools_streamed(house: House) -> None:
    with house.may_refuse("tools", "tool_choice"):
        bound = model(house, max_tokens=120, stream_usage=True).bind_tools([weather], tool_choice="any")
        whole = joined(list(bound.stream("How is the weather in Paris?")))
        assert [call["name"] for call in whole.tool_calls] == ["weather"], whole
        assert set(whole.tool_calls[0]["args"]) == {"city"} and whole.tool_calls[0]["id"], whole
        assert whole.response_metadata["finish_reason"] == "tool_calls", whole.response_metadata


def check_tools_of_the_models_choice_and_their_results(house: House) -> None:
    with house.may_refuse("tools"):
        bound = model(house, max_tokens=120).bind_tools([weather, time_of_day])
        answer = bound.invoke("Hello.")
        assert answer.content or answer.tool_calls, answer
        call = {"name": "weather", "args": {"city": "Paris"}, "id": "call_1", "type": "tool_call"}
        history = [
            HumanMessage("How is the weather in Paris?"),
            AIMessage("", tool_calls=[call]),
            ToolMessage(weather("Paris"), tool_call_id="call_1"),
        ]
        answer = bound.invoke(history)
        assert answer.content or answer.tool_calls, answer


def check_image(house: House) -> None:
    parts = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": PIXEL}}]
    with house.may_refuse("images"):
        proper(model(house).invoke([HumanMessage(content=parts)]).content)


def check_unknown_model(house: House) -> None:
    for ask in (lambda chat: chat.invoke(COLOURS), lambda chat: list(chat.stream(COLOURS))):
        with house.raises(ModelNotFoundError, 404, "model") as found:
            ask(model(house, model="no-such-model"))
        assert found[0].code == "model_not_found", found[0].body


def check_bad_parameter(house: House) -> None:
    for ask in (lambda chat: chat.invoke(COLOURS), lambda chat: list(chat.stream(COLOURS))):
        with house.raises(openai.BadRequestError, 400, "temperature"):
            ask(model(house, temperature=3.5))


def check_context_too_long(house: House) -> None:
    flood = "one two three four " * 10_000
    for ask in (lambda chat: chat.invoke(flood), lambda chat: list(chat.stream(flood))):
        with house.raises(ContextOverflowError, 400):
            ask(model(house))


def check_wrong_key(house: House) -> None:
    if not house.keyed:
        raise Skip("the gateway has no keys")
    with house.raises(openai.AuthenticationError, 401):
        model(house, api_key="sk-wrong").invoke(COLOURS)


def check_responses_api_is_not_served(house: House) -> None:
    with house.raises(openai.NotFoundError, 404):
        model(house, use_responses_api=True).invoke(COLOURS)


async def check_left_stream_frees_the_engine(house: House) -> None:
    chat = model(house, **house.endless)
    stream = chat.astream(COLOURS)
    async for chunk in stream:
        if chunk.content:
            break
    await stream.aclose()
    await asyncio.to_thread(house.wait_until_idle)


if __name__ == "__main__":
    sys.exit(main(__doc__, globals(), said))
