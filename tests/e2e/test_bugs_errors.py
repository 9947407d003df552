"""B42 through the whole gateway: whatever an engine answers, the OpenAI SDK raises the class of its status."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any, NamedTuple

import openai
import pytest

from tests.e2e.inside import FAKES, chat, house, pool
from tests.e2e.scripts import DONE, HEAD, answering
from tests.fakes.server import Peer, Script, chunked, response

HTML = b"<html><head><title>502 Bad Gateway</title></head><body>nginx/1.25 at 10.0.0.3</body></html>"
JSON_GZIP = gzip.compress(json.dumps({"choices": []}).encode())


class Answer(NamedTuple):
    """What an engine says, and what the client is to see."""

    script: Script
    error: type[openai.APIStatusError]
    status: int


def says(
    raised: type[openai.APIStatusError], status: int, answer: bytes | dict[str, Any], *, close: bool = False
) -> Answer:
    return Answer(answering(answer, close=close), raised, status)


Server, Bad = openai.InternalServerError, openai.BadRequestError
FASTAPI = {"detail": [{"type": "missing", "loc": ["body", "messages"], "msg": "Field required", "input": {}}]}
ANSWERS: dict[str, Answer] = {
    "a 502 page": says(Server, 502, response(502, HTML, "text/html")),
    "a 503 page": says(Server, 503, response(503, HTML, "text/html; charset=utf-8")),
    "a 504 page": says(Server, 504, response(504, HTML, "text/html")),
    "a 500 of plain text": says(Server, 500, response(500, b"Internal Server Error", "text/plain")),
    "a 500 without a body": says(Server, 500, response(500, b"", "text/plain")),
    "a 500 without a type": says(Server, 500, b"HTTP/1.1 500 X\r\ncontent-length: 2\r\n\r\n{}"),
    "a 429 page": says(openai.RateLimitError, 429, response(429, HTML, "text/html")),
    "a 413 page": says(openai.APIStatusError, 413, response(413, HTML, "text/html")),
    "200 without a body": says(Server, 502, response(200, b"", "application/json")),
    "200 without body or type": says(Server, 502, b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
    "a 200 page": says(Server, 502, response(200, HTML, "text/html")),
    "a 200 page that says it is JSON": says(Server, 502, response(200, HTML)),
    "200 with a list": says(Server, 502, response(200, [1, 2])),
    "200 with a text": says(Server, 502, response(200, b'"hello"')),
    "200 with null": says(Server, 502, response(200, b"null")),
    "200 without choices": says(Server, 502, response(200, {"object": "chat.completion"})),
    "200 with choices of none": says(Server, 502, response(200, {"choices": []})),
    "200 cut off": says(Server, 502, response(200, b'{"choices":[{"index":0,"mess')),
    "200 that is no UTF-8": says(Server, 502, response(200, b'{"choices":"\xff\xfe"}')),
    "a 204": says(Server, 502, b"HTTP/1.1 204 No Content\r\n\r\n"),
    "503 with a list": says(Server, 503, response(503, ["no", "capacity"])),
    "503 with a text": says(Server, 503, response(503, b'"no capacity"')),
    "500 with a number": says(Server, 500, response(500, b"17")),
    "500 with an error of null": says(Server, 500, response(500, {"error": None})),
    "500 with an error that is a list": says(Server, 500, response(500, {"error": ["x"]})),
    "500 with a message that is an object": says(Server, 500, response(500, {"error": {"message": {"a": 1}}})),
    "FastAPI's 422": says(Bad, 400, response(422, FASTAPI)),
    "FastAPI's 422 with a text": says(Bad, 400, response(422, {"detail": "unprocessable"})),
    "TGI's 422": says(Bad, 400, response(422, {"error": "bad `top_p`", "error_type": "validation"})),
    "TGI's 429": says(openai.RateLimitError, 429, response(429, {"error": "full", "error_type": "overloaded"})),
    "TGI's 424": says(Server, 500, response(424, {"error": "broke", "error_type": "generation"})),
    "TGI's plain 422": says(Bad, 400, response(422, b"Failed to deserialize the JSON body", "text/plain")),
    "vLLM's old 400": says(Bad, 400, response(400, {"object": "error", "message": "bad", "type": "x", "code": 400})),
    "a gzip cut off": says(Server, 502, response(200, JSON_GZIP[:12], headers="content-encoding: gzip\r\n")),
    "a gzip that is none": says(Server, 502, response(200, b"hello", headers="content-encoding: gzip\r\n")),
    "a 500 in a gzip cut off": says(Server, 500, response(500, JSON_GZIP[:12], headers="content-encoding: gzip\r\n")),
    "no HTTP at all": says(Server, 502, b"SSH-2.0-OpenSSH_9.6\r\n\r\n", close=True),
    "hung up": says(Server, 502, b"", close=True),
}


def check(error: openai.APIStatusError, name: str, wanted: Answer) -> None:
    """The error is of its class, in OpenAI's shape, and shows nothing of a page."""
    response_ = error.response
    assert type(error) is wanted.error, (name, type(error))
    assert response_.status_code == wanted.status, name
    assert response_.headers["content-type"].startswith("application/json"), name
    assert isinstance(error.body, dict), name
    assert set(error.body) == {"message", "type", "param", "code"}, name
    assert isinstance(error.body["message"], str) and error.body["message"], name
    assert isinstance(error.body["type"], str) and error.body["type"] not in ("", "None", "null"), name
    assert error.body["param"] is None or isinstance(error.body["param"], str), name
    assert error.body["code"] is None or isinstance(error.body["code"], str), name
    assert "<" not in error.body["message"] and "nginx" not in error.body["message"], name
    assert response_.headers["x-request-id"] == "the-clients-label", name
    if wanted.status in (429, 503):
        assert int(response_.headers["retry-after"]) >= 1, name


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("kind", FAKES)
async def test_b42_every_answer_that_is_none_raises_the_class_of_its_status(
    tmp_path: Path, kind: str, stream: bool
) -> None:
    async with FAKES[kind]() as fake:
        # A pool for each, so that no failure keeps the next call from the engine.
        pools = [pool(f"m{place}", fake, options={"name": f"e{place}"}) for place in range(len(ANSWERS))]
        async with house(tmp_path, *pools) as home, home.sdk() as sdk, asyncio.timeout(60):
            for place, (name, wanted) in enumerate(ANSWERS.items()):
                fake.script = wanted.script
                with pytest.raises(openai.APIStatusError) as caught:
                    await sdk.chat.completions.create(
                        **chat(f"m{place}", stream=stream), extra_headers={"x-request-id": "the-clients-label"}
                    )
                check(caught.value, name, wanted)
            assert sum(request.method == "POST" for request in fake.requests) == len(ANSWERS)


STREAMS: dict[str, bytes] = {
    "nothing": b"",
    "[DONE] alone": DONE,
    "a page": HTML,
    "an event that is no JSON": b"data: <html>\n\n",
    "an event cut off": b'data: {"choices":[{"ind\n\n',
    "an event that is a list": b"data: [1]\n\n",
    "a text": b'data: "hello"\n\n',
}


@pytest.mark.parametrize("said", STREAMS)
async def test_b42_a_stream_that_is_none_raises_the_class_of_its_status(tmp_path: Path, said: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.send(HEAD + (chunked(STREAMS[said]) if STREAMS[said] else b"") + chunked(b""))

    async with FAKES["vllm"]() as fake, house(tmp_path, pool("m", fake)) as home, home.sdk() as sdk:
        fake.script = script
        with pytest.raises(openai.InternalServerError) as caught:
            await sdk.chat.completions.create(**chat(stream=True), extra_headers={"x-request-id": "the-clients-label"})
        check(caught.value, said, Answer(script, Server, 502))


@pytest.mark.parametrize(("status", "given", "told"), [(429, "17", "17"), (503, "2", "2"), (503, "99999999", "3600")])
async def test_b42_the_time_to_wait_is_kept(tmp_path: Path, status: int, given: str, told: str) -> None:
    async with FAKES["vllm"]() as fake, house(tmp_path, pool("m", fake)) as home:
        fake.script = answering(response(status, HTML, "text/html", headers=f"retry-after: {given}\r\n"))
        async with home.ask(chat()) as reply:
            assert (reply.status, reply.headers["retry-after"]) == (status, told)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings"])
async def test_b42_the_other_routes_do_as_chat_does(tmp_path: Path, path: str) -> None:
    body = {"model": "m", "prompt": "hi"} if path == "/v1/completions" else {"model": "m", "input": "hi"}
    async with FAKES["llamacpp"]() as fake, house(tmp_path, pool("m", fake)) as home:
        for answer, status in ((response(502, HTML, "text/html"), 502), (response(200, HTML, "text/html"), 502)):
            fake.script = answering(answer)
            async with home.ask(body, path) as reply:
                assert reply.status == status
                assert set((await reply.json())["error"]) == {"message", "type", "param", "code"}
