"""The embedded engine with the real llama-cpp-python and real models."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest

from engines.embedded import Embedded, Options
from engines.errors import ContextTooLong, Gone, Refused
from engines.launch import LaunchError
from tests.engines.embedded_house import calling
from tests.engines.harness import RecordingSink
from tests.real.house import gguf_of, need_smollm2

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


@asynccontextmanager
async def serving(model: Path, **options: Any) -> AsyncIterator[Embedded]:
    """An engine, loaded. One thread: on a busy machine llama.cpp's spinning threads slow each other down."""
    engine = Embedded("emb-0", Options(model=str(model), **{"threads": 1, "context": 1024, **options}))
    engine.supervisor.start()
    try:
        await engine.supervisor.ready()
        yield engine
    finally:
        await engine.aclose()
    assert engine.supervisor.is_gone()


async def ask(engine: Embedded, text: str = "tell me more", **fields: Any) -> RecordingSink:
    sink = RecordingSink()
    defaults = {} if fields.get("kind") == "embeddings" else {"max_tokens": 16, "temperature": 0}
    await engine.open(calling(text, **{**defaults, **fields}), sink).closed()
    return sink


async def answer(engine: Embedded, text: str = "tell me more", **fields: Any) -> Any:
    """A whole answer, decoded."""
    sink = await ask(engine, text, stream=False, **fields)
    assert sink.error is None, (sink.error, sink.error.detail)
    return json.loads(sink.body)


async def test_a_chat_by_the_models_own_template(tmp_path: Path) -> None:
    async with serving(need_smollm2(), slots=2) as engine:
        said = [{"role": "system", "content": "Answer in one word."}, {"role": "user", "content": "What is 1 + 1?"}]
        sink = await ask(engine, messages=said, include_usage=True)
        whole = await answer(engine, messages=said)
        assert sink.error is None and sink.text == whole["choices"][0]["message"]["content"]
        assert "<|im_" not in sink.text
        assert sink.chunks[-1]["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]
        assert sink.chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
        assert whole["usage"]["prompt_tokens_details"]["cached_tokens"] == whole["usage"]["prompt_tokens"] - 1


@pytest.mark.parametrize(
    "schema",
    [
        {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
            "required": ["name", "age"],
            "additionalProperties": False,
        },
        {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 2, "maxItems": 2},
    ],
)
async def test_a_json_schema_is_kept_to(schema: dict[str, Any]) -> None:
    async with serving(need_smollm2()) as engine:
        wanted = {"type": "json_schema", "json_schema": {"name": "made", "schema": schema}}
        for fields in ({"temperature": 0}, {"temperature": 1.5, "seed": 3}):
            made = await answer(engine, "Make something up.", response_format=wanted, max_tokens=200, **fields)
            assert made["choices"][0]["finish_reason"] == "stop"
            jsonschema.validate(json.loads(made["choices"][0]["message"]["content"]), schema)


async def test_a_model_of_random_weights_keeps_to_a_schema_too(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "made", "schema": schema}}
    async with serving(gguf_of(tmp_path), slots=2) as engine:
        made = await asyncio.gather(
            *(answer(engine, f"{n}", response_format=wanted, max_tokens=300, temperature=1, seed=n) for n in range(6))
        )
    for one in made:
        jsonschema.validate(json.loads(one["choices"][0]["message"]["content"]), schema)


async def test_a_schema_that_cannot_be_kept_to_is_refused(tmp_path: Path) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "https://x.invalid/a.json"}}}
    async with serving(gguf_of(tmp_path)) as engine:
        sink = await ask(engine, response_format=wanted)
        assert isinstance(sink.error, Refused) and sink.error.param == "response_format"
        assert (await ask(engine)).error is None


async def test_logprobs_are_those_of_the_tokens_that_came(tmp_path: Path) -> None:
    async with serving(gguf_of(tmp_path)) as engine:
        made = await answer(engine, logprobs=True, top_logprobs=5)
        entries = made["choices"][0]["logprobs"]["content"]
        text = b"".join(bytes(entry["bytes"]) for entry in entries).decode()
        assert text == made["choices"][0]["message"]["content"]
        for entry in entries:
            chances = [other["logprob"] for other in entry["top_logprobs"]]
            assert len(chances) == 5 and chances == sorted(chances, reverse=True)
            assert entry["logprob"] == chances[0] <= 0, "at temperature 0 the likeliest token comes"


async def test_a_bias_bans_a_token_or_makes_it_come(tmp_path: Path) -> None:
    async with serving(gguf_of(tmp_path)) as engine:
        forced = [
            (await answer(engine, max_tokens=1, logit_bias={token: 100}))["choices"][0]["message"]["content"]
            for token in ("300", "301")
        ]
        assert forced[0] != forced[1]
        # With every other token banned, one is left of this model's 761.
        for token, text in zip(("300", "301"), forced, strict=True):
            banned = {str(number): -100 for number in range(761) if str(number) != token}
            left = await answer(engine, max_tokens=1, temperature=1, logit_bias=banned)
            assert left["choices"][0]["message"]["content"] == text


async def test_a_seed_makes_an_answer_come_again_in_any_company(tmp_path: Path) -> None:
    fields = {"temperature": 1, "seed": 11, "max_tokens": 40}
    async with serving(gguf_of(tmp_path), slots=1) as engine:
        alone = await answer(engine, **fields)
        other = await answer(engine, **{**fields, "seed": 12})
    async with serving(gguf_of(tmp_path), slots=3) as engine:
        again = await asyncio.gather(*(answer(engine, **fields) for _ in range(3)))
    assert [one["choices"] for one in again] == [alone["choices"]] * 3
    assert other["choices"] != alone["choices"]


async def test_penalties_end_a_loop(tmp_path: Path) -> None:
    async with serving(gguf_of(tmp_path)) as engine:
        fields = {"max_tokens": 200, "ignore_eos": True}
        loop = await answer(engine, **fields)
        free = await answer(engine, repetition_penalty=1.5, frequency_penalty=1, presence_penalty=1, **fields)
    assert loop["usage"]["completion_tokens"] == free["usage"]["completion_tokens"] == 200
    words = [set(made["choices"][0]["message"]["content"].split()) for made in (loop, free)]
    assert len(words[1]) > len(words[0])


async def test_a_prompt_over_the_context_is_refused_with_both_counts(tmp_path: Path) -> None:
    async with serving(gguf_of(tmp_path), slots=2, context=256) as engine:
        sink = await ask(engine, "word " * 2000)
    assert isinstance(sink.error, ContextTooLong) and "256 tokens" in sink.error.message


async def test_b09_a_client_that_leaves_stops_the_computing_within_its_prompt() -> None:
    """By the worker's CPU time, which a busy machine does not stretch."""
    async with serving(need_smollm2(), context=2048, batch=2048) as engine:
        worker = psutil.Process(engine.supervisor.pid)
        assert (await ask(engine, max_tokens=1)).error is None

        def spent() -> float:
            times = worker.cpu_times()
            return float(times.user + times.system)

        before = spent()
        assert (await ask(engine, "whole " * 1500, max_tokens=1)).error is None
        whole = spent() - before
        before = spent()
        sink = RecordingSink()
        attempt = engine.open(calling("other " * 1500, max_tokens=1), sink)
        while spent() - before < whole / 10:  # noqa: ASYNC110 - it is another process that computes
            await asyncio.sleep(0.005)
        sink.silent = True
        attempt.abort("the client left")
        await attempt.closed()
        broken = spent() - before
        print(f"\nCPU seconds for 1500 tokens of prompt: {whole:.2f}; broken off after a tenth: {broken:.2f}")
        assert broken < whole / 2
        assert (await ask(engine, max_tokens=1)).error is None


async def test_embeddings_have_length_one_and_the_same_text_gives_the_same(tmp_path: Path) -> None:
    async with serving(gguf_of(tmp_path), embeddings=True) as engine:
        made = await answer(engine, kind="embeddings", input=["one text", "another", "one text"])
        coded = await answer(engine, kind="embeddings", input="one text", encoding_format="base64")
    first, second, third = (one["embedding"] for one in made["data"])
    assert len(first) == 64 and first == third != second
    assert sum(x * x for x in first) == pytest.approx(1, abs=1e-5)
    assert list(struct.unpack("<64f", base64.b64decode(coded["data"][0]["embedding"]))) == pytest.approx(first)


async def test_a_template_of_the_operators_goes_before_the_models(tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("{{ raise_exception('no chats on Mondays') }}")
    async with serving(gguf_of(tmp_path), chat_template=str(template)) as engine:
        sink = await ask(engine)
    assert isinstance(sink.error, Refused) and "no chats on Mondays" in sink.error.message


async def test_a_crash_of_llama_cpp_is_told_and_the_model_is_loaded_again(tmp_path: Path) -> None:
    async with serving(gguf_of(tmp_path)) as engine:
        sink = RecordingSink(room=1)
        attempt = engine.open(calling(ignore_eos=True), sink)
        await sink.full.wait()
        assert engine.supervisor.pid is not None
        os.kill(engine.supervisor.pid, signal.SIGSEGV)
        sink.reopen()
        await attempt.closed()
        assert isinstance(sink.error, Gone)
        while engine.supervisor.state.state != "ready" or not engine.supervisor.restarts:
            await engine.supervisor.changed()
        assert (await ask(engine)).error is None


async def test_a_file_that_only_begins_like_a_model_says_why_it_is_none(tmp_path: Path) -> None:
    gguf_of(tmp_path)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes((tmp_path / "tiny.gguf").read_bytes()[:2000])
    engine = Embedded("emb-0", Options(model=str(broken), threads=1))
    await engine.probe()
    with pytest.raises(LaunchError, match=r"the model was not loaded: llama\.cpp cannot load"):
        await engine.supervisor.ready()
    await engine.aclose()
