"""The whole gateway in front of a real Triton, with the official SDK."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.harness import running
from tests.real.triton import Ears, Triton

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

CHINESE = " 四月里一个晴朗而寒冷的日子，时钟敲了十三下。🦀"


def script(**lines: Any) -> Any:
    return [{"role": "user", "content": json.dumps(lines, ensure_ascii=False)}]


def test_the_sdk_streams_reads_whole_answers_and_is_refused_as_by_openai(
    tmp_path: Path, single: Triton, classic: Triton
) -> None:
    pools = [
        {"model": name, "endpoints": [{"name": f"{name}-0", "engine": "triton", "url": url, "model": model, **options}]}
        for name, url, model, options in (
            ("one", single.grpc, "ensemble", {"chat_template": "{{ messages[-1].content }}"}),
            ("chain", classic.grpc, "ensemble", {"chat_template": "{{ messages[-1].content }}"}),
            ("llmapi", single.http, "tensorrt_llm", {"chat_template": "{{ messages[-1].content }}"}),
        )
    ]
    with (
        running(tmp_path, {"pools": pools}) as gateway,
        openai.OpenAI(base_url=gateway.base_url, api_key="-") as client,
    ):
        for model in ("one", "chain", "llmapi"):
            stream = client.chat.completions.create(
                model=model, messages=script(say=CHINESE, piece=2), stream=True, stream_options={"include_usage": True}
            )
            chunks = list(stream)
            said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
            assert said == CHINESE and {chunk.model for chunk in chunks} == {model}
            whole = client.chat.completions.create(model=model, messages=script(say=CHINESE))
            assert whole.choices[0].message.content == CHINESE and whole.choices[0].finish_reason == "stop"
        assert chunks and whole.usage is None, "llmapi gives no counts, and none are invented"
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model="one", messages=script(say="x"), logprobs=True)
        assert refused.value.param == "logprobs"


async def test_b41_a_client_that_leaves_is_seen_by_the_model_within_a_second(
    tmp_path: Path, classic: Triton, ears: Ears
) -> None:
    endpoint = {"name": "c0", "engine": "triton", "url": classic.grpc, "chat_template": "{{ messages[-1].content }}"}
    with running(tmp_path, {"pools": [{"model": "chain", "endpoints": [endpoint]}]}) as gateway:
        ears.forget()
        async with openai.AsyncOpenAI(base_url=gateway.base_url, api_key="-") as client:
            stream = await client.chat.completions.create(
                model="chain", messages=script(say="a" * 900, piece=1, delay=0.02), stream=True
            )
            async for chunk in stream:
                if chunk.choices[0].delta.content:
                    break
            await stream.close()
            left = time.monotonic()
            heard = await asyncio.wait_for(ears.hear("cancelled"), 10)
    assert heard["at"] - left < 1.0 and heard["after"] < 100
