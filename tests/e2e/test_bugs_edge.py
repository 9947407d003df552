"""B43 and B45 through the whole gateway: models of any name, and bodies of any size and framing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from urllib.parse import quote

import openai
import psutil
import pytest

from tests.e2e.inside import WAIT, Home, Reply, chat, house, pool, settled
from tests.fakes.llamacpp import FakeLlamaCpp
from tests.fakes.server import Peer, response
from tests.fakes.vllm import FakeVllm

# B43: model names

NAMES = [
    "mistralai/mistral-7b-instruct",
    "a/b/c",
    "llama3:8b",
    "with blank",
    "모델-🦀",
    "..",
    "../up",
    "a/../b",
    "./here",
    "tail/",
    "/head",
    "a//b",
    "per%2Fcent",
    "q?uery",
    "fra#gment",
    "plus+and&",
    "c:\\d",
]
UNKNOWN = [
    *("mistralai", "mistral-7b-instruct", "mistralai/mistral-7b-instruct/", "MISTRALAI/mistral-7b-instruct"),
    *("up", "b", "here", "tail", "head", "a/b", "per/cent", "q", "%ff", "mistralai%252Fmistral-7b-instruct"),
]


async def test_b43_a_model_of_any_name_is_found_by_both_spellings_and_answers(tmp_path: Path) -> None:
    async with FakeVllm() as fake:
        pools = [pool(name, fake, options={"name": f"e{place}"}) for place, name in enumerate(NAMES)]
        async with house(tmp_path, *pools) as home, home.sdk() as sdk:
            listed = [model.id async for model in sdk.models.list()]
            assert listed == NAMES
            for name in listed:
                for spelling in (quote(name, safe=""), quote(name, safe="/:")):
                    status, body = await home.get(f"/v1/models/{spelling}")
                    found = json.loads(body)
                    assert (status, found.get("id"), found.get("object")) == (200, name, "model"), spelling
                assert (await sdk.chat.completions.create(**chat(name))).model == name
            assert (await sdk.models.retrieve("mistralai/mistral-7b-instruct")).id == "mistralai/mistral-7b-instruct"


async def test_b43_an_unknown_name_is_404_in_openais_shape(tmp_path: Path) -> None:
    async with FakeVllm() as fake:
        pools = [pool(name, fake, options={"name": f"e{place}"}) for place, name in enumerate(NAMES)]
        async with house(tmp_path, *pools) as home, home.sdk() as sdk:
            for name in UNKNOWN:
                status, body = await home.get(f"/v1/models/{name}")
                error = json.loads(body)["error"]
                assert status == 404, name
                assert set(error) == {"message", "type", "param", "code"}
                assert error["code"] == "model_not_found", name
            with pytest.raises(openai.NotFoundError) as caught:
                await sdk.models.retrieve("mistralai/other")
            assert caught.value.code == "model_not_found"


# B45: body limits

LIMIT = 13_000_000
SIZES = {"32 769 bytes": 32_769, "1 MB": 1_000_000, "2.5 MB": 2_500_000, "12 MB": 12_000_000, "the limit": LIMIT}


def sized(size: int, **fields: object) -> bytes:
    """A chat with a picture, of exactly so many bytes."""
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
    body = json.dumps(chat(**fields) | {"messages": [{"role": "user", "content": [part]}]}).encode()
    return body.replace(b"base64,", b"base64," + b"A" * (size - len(body)))


def framed(home: Home, body: bytes, framing: str, announced: int | None = None) -> bytes:
    """A request's head, and its body unless the client waits for leave to send it."""
    if framing == "chunked":
        head = home.request(b"", transfer_encoding="chunked", content_type="application/json")
        pieces = [body[start : start + 65_536] for start in range(0, len(body), 65_536)]
        return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    length = {"content_length": str(len(body) if announced is None else announced)}
    if framing == "expect":
        return home.request(b"", expect="100-continue", **length)
    return home.request(b"", **length) + body


@pytest.mark.parametrize("framing", ["length", "chunked", "expect"])
@pytest.mark.parametrize("size", SIZES)
async def test_b45_a_body_within_the_limit_reaches_the_engine_whole(tmp_path: Path, size: str, framing: str) -> None:
    body = sized(SIZES[size])
    assert len(body) == SIZES[size]
    async with FakeVllm() as fake, house(tmp_path, pool("m", fake), limits={"body_bytes": LIMIT}) as home:
        async with home.wire() as reply:
            await reply.send(framed(home, body, framing))
            if framing == "expect":
                await reply.head()
                assert reply.status == 100
                await reply.send(body)
            await reply.head()
            assert reply.status == 200, await reply.rest()
            await reply.rest()
        assert fake.requests[-1].json["messages"] == json.loads(body)["messages"]


async def test_b45_twelve_megabytes_pass_by_default(tmp_path: Path) -> None:
    async with (
        FakeVllm() as fake,
        house(tmp_path, pool("m", fake)) as home,
        home.ask(sized(12 * 2**20)) as reply,
    ):
        assert reply.status == 200


async def refused(reply: Reply) -> None:
    """A 413 that names the limit; then the connection ends, or the next request on it is read aright."""
    await reply.head()
    assert reply.status == 413
    assert reply.headers["content-type"] == "application/json"
    error = (await reply.json())["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("invalid_request_error", "request_too_large")
    assert f"{LIMIT:,}" in error["message"]
    if reply.headers.get("connection") == "close":
        assert await reply.closed()
    else:  # the body had come to its end
        reply.again()
        await reply.send(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        await reply.head()
        assert (reply.status, await reply.json()) == (200, {"status": "ok"})


@pytest.mark.parametrize("framing", ["length", "chunked", "expect"])
@pytest.mark.parametrize("stream", [False, True])
async def test_b45_one_byte_over_the_limit_is_413_in_every_framing(tmp_path: Path, framing: str, stream: bool) -> None:
    body = sized(LIMIT + 1, stream=stream)
    async with FakeVllm() as fake, house(tmp_path, pool("m", fake), limits={"body_bytes": LIMIT}) as home:
        async with home.wire() as reply:
            sending = asyncio.ensure_future(reply.send(framed(home, body, framing)))
            await refused(reply)
            sending.cancel()
        assert not [request for request in fake.requests if request.method == "POST"]
        async with home.ask(chat()) as reply:
            assert reply.status == 200, "the gateway stands"


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_b45_what_is_over_the_limit_is_not_read(tmp_path: Path, framing: str) -> None:
    """The client goes on and on; what it can get rid of is bounded by the limit and what lies in buffers."""
    async with FakeVllm() as fake, house(tmp_path, pool("m", fake), limits={"body_bytes": 100_000}) as home:
        before = psutil.Process().memory_info().rss
        async with home.wire() as reply:
            named = {"content_length": str(2**34)} if framing == "length" else {"transfer_encoding": "chunked"}
            await reply.send(home.request(b"", **named))
            piece = b"A" * 65_536 if framing == "length" else b"10000\r\n" + b"A" * 65_536 + b"\r\n"
            sent = 0
            try:
                async with asyncio.timeout(WAIT):
                    while sent < 2**28:
                        await reply.send(piece)
                        sent += len(piece)
            except (ConnectionError, TimeoutError):
                pass  # it is closed, or takes no more
            assert sent < 2**27
        await settled("the call is over", lambda: len(home.served) == 1)
        assert home.served[0].status == 413
        assert psutil.Process().memory_info().rss - before < 2**26


async def test_b45_a_large_answer_passes_whole(tmp_path: Path) -> None:
    vectors = [[float(place)] * 4096 for place in range(200)]
    data = [{"object": "embedding", "index": place, "embedding": vector} for place, vector in enumerate(vectors)]
    answer = {"object": "list", "data": data, "model": "x", "usage": {"prompt_tokens": 1, "total_tokens": 1}}
    size = len(json.dumps(answer))
    assert size > 2_500_000

    async def script(peer: Peer) -> None:
        await peer.send(response(200, answer), 65_536)

    async with FakeLlamaCpp() as fake, house(tmp_path, pool("m", fake)) as home:
        fake.script = script
        async with home.ask({"model": "m", "input": ["hi"] * 200}, "/v1/embeddings") as reply:
            assert reply.status == 200
            assert (await reply.json())["data"] == data
