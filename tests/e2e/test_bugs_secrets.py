"""B34 through the whole gateway: canaries on every error path, sought in answers, log, metrics and decisions."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from gateway import openai
from gateway.key_file import add_key
from tests.e2e.inside import FAKES, Home, chat, house, pool
from tests.e2e.scripts import DONE, HEAD, ROLE, answering, events, streaming, token
from tests.fakes.server import Peer, Script, chunked, response
from tests.fakes.vllm import FakeVllm

MARK = "C4n4ry"  # in every canary, so that one search finds whatever was left of any
OWN = f"sk-proj-{MARK}OwnKeyOfTheEngine00"
SECRETS = {
    "a key": f"Incorrect API key provided: sk-proj-{MARK}aaaa1111bbbb. You can find yours on the page.",
    "part of a key": f"Incorrect API key provided: sk-proj-{MARK}***************xyz9.",
    "a bearer": f"refused Authorization: Bearer {MARK}.abcdef-123456",
    "a user in a URL": f"cannot fetch http://user:{MARK}-word@10.1.2.3:8000/v1/models",
    "a user in a URL with escaped slashes": f"cannot fetch http:\\/\\/user:{MARK}-word@10.1.2.3:8000\\/v1",
    "a key in a URL": f"POST https://engine.internal/v1/chat?key={MARK}123456&alt=sse failed",
    "a password": f'connection settings: {{"password": "{MARK}-word-1", "token": "{MARK}-token-1"}}',
    "a hub's token": f"gated repository, token hf_{MARK}abcdefghijk is not allowed",
}


def failing(message: str) -> dict[str, Script]:
    """Every way in which an engine can put these words into an answer."""
    openai_form = {"error": {"message": message, "type": "auth_error", "param": f"sk-{MARK}-99999999", "code": "x"}}
    tgi_form = {"error": message, "error_type": "validation"}
    fastapi_form = {"detail": [{"loc": ["body", "model"], "msg": message, "type": "value_error"}]}
    found = {
        f"{status} {name}": answering(response(status, form))
        for status in (400, 401, 403, 404, 422, 429, 500, 502, 503)
        for name, form in (("openai", openai_form), ("tgi", tgi_form), ("fastapi", fastapi_form))
    }
    plain = message.encode()
    return found | {
        "plain text": answering(response(422, plain, "text/plain")),
        "a page": answering(response(502, b"<html>" + plain + b"</html>", "text/html")),
        "a 200 that is a page": answering(response(200, b"<html>" + plain + b"</html>", "text/html")),
        "a 200 cut off": answering(response(200, b'{"choices":[{"message":{"content":"' + plain)),
        "a 200 with an error": answering(openai_form),
        "a list": answering(response(500, [message])),
        "a text": answering(response(500, message)),
        "no HTTP": answering(b"HTTP/1.1 oops " + plain + b"\r\n\r\n", close=True),
        "a strange finish": answering(
            {"choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": message}]}
        ),
        "an error first": streaming(events(openai_form)),
        "an error later": streaming(ROLE, token("hi"), events(openai_form), DONE),
        "TGI's error later": streaming(
            ROLE, token("hi"), events({"error": {"message": message, "http_status_code": 422}})
        ),
        "no JSON later": streaming(ROLE, token("hi"), b"data: {" + plain + b"\n\n"),
        "cut off": _cut_off,
    }


async def _cut_off(peer: Peer) -> None:
    await peer.send(HEAD + chunked(ROLE))
    peer.reset()


async def collect(home: Home, body: Any, key: str, *, path: str = "/v1/chat/completions", **headers: str) -> str:
    """All that one request brings to light: head and body, and the decision that an operator may look up."""
    named = {"authorization": f"Bearer {key}"} | headers
    async with home.ask(body, path, **named) as reply:
        found = f"{reply.status} {reply.headers} {(await reply.rest()).decode()}"
    found += str(await home.get(f"/admin/decisions/{reply.headers['x-request-id']}", authorization=f"Bearer {key}"))
    return found


def clean(where: str, text: str) -> None:
    at = text.find(MARK)
    assert at < 0, f"{where}: …{text[max(0, at - 120) : at + 40]}"


@pytest.mark.parametrize("secret", SECRETS)
async def test_b34_no_secret_in_an_engines_words_comes_out_anywhere(tmp_path: Path, secret: str) -> None:
    key = add_key(tmp_path / "keys.yaml", "alice", admin=True)
    settings: dict[str, Any] = {"auth": {"keys": "keys.yaml"}, "log": {"level": "debug"}}
    ways = [(name, script, stream) for name, script in failing(SECRETS[secret]).items() for stream in (True, False)]
    async with FakeVllm() as fake:
        # A pool for each, so that no failure keeps the next call from the engine.
        pools = [pool(f"m{place}", fake, options={"api_key": OWN, "name": f"e{place}"}) for place in range(len(ways))]
        async with house(tmp_path, *pools, **settings) as home:
            for place, (name, script, stream) in enumerate(ways):
                fake.script = script
                clean(name, await collect(home, chat(f"m{place}", stream=stream), key))
            assert sum(request.method == "POST" for request in fake.requests) == len(ways)
            clean("metrics", await home.metrics())
            text = home.log_text()
            clean("the log", text)
            assert key not in text
            assert text.count('"event":"call"') == len(ways)


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("kind", FAKES)
async def test_b34_an_engine_that_refuses_our_key_is_the_operators_matter(
    tmp_path: Path, kind: str, status: int
) -> None:
    async with FAKES[kind]() as fake, house(tmp_path, pool("m", fake, options={"api_key": OWN})) as home:
        said = {"error": {"message": f"Incorrect API key provided: {OWN}", "type": "auth", "code": status}}
        fake.script = answering(response(status, said, headers=f"www-authenticate: Bearer realm={OWN}\r\n"))
        for stream in (True, False):
            async with home.ask(chat(stream=stream)) as reply:
                error = (await reply.json())["error"]
                clean("the head", str(reply.headers))
            assert (reply.status, error["code"]) == (502, "engine_misconfigured")
            assert error["message"] == (
                "The gateway is not set up rightly for the engine behind this model; its operator has to look at it."
            )
        clean("the log", home.log_text())


async def test_b34_no_secret_that_a_client_sends_comes_back_or_is_written(tmp_path: Path) -> None:
    key = add_key(tmp_path / "keys.yaml", "alice", admin=True)
    wrong = f"sk-{MARK}-wrong-key-000000"
    async with FakeVllm() as fake, house(tmp_path, pool("m", fake), auth={"keys": "keys.yaml"}) as home:
        for named in (
            {"authorization": f"Bearer {wrong}"},
            {"authorization": f"bearer  {wrong} "},
            {"authorization": f"Basic {MARK}dXNlcjpwYXNz"},
            {"x_api_key": wrong},
            {"authorization": f"Bearer {wrong}", "x_request_id": "label"},
        ):
            async with home.ask(chat(), **named) as reply:
                body = await reply.json()
                clean("the head", str(reply.headers))
            assert reply.status == 401 and body["error"]["code"] == "invalid_api_key"
            assert body["error"]["param"] is None
            clean("the body", str(body))
        for body in (
            chat(f"sk-{MARK}-as-a-model"),
            chat(api_key=wrong),
            chat(extra_headers={"authorization": f"Bearer {wrong}"}),
            chat(temperature=wrong),
            chat(tool_choice=wrong),
            chat() | {"messages": [{"role": wrong, "content": wrong}]},
            b'{"model": "m", "api_key": "' + wrong.encode(),
        ):
            clean("a bad body", await collect(home, body, key))
        for name in ("x_slo_ttft_ms", "x_enginehouse_priority", "x_enginehouse_policy"):
            clean(name, await collect(home, chat(), key, **{name: wrong}))
        clean("a path", await collect(home, chat(), key, path=f"/v1/chat?api_key={wrong}"))
        clean("a path", await collect(home, chat(), key, path=f"/v1/keys/{wrong}"))
        clean("a model", str(await home.get(f"/v1/models/{wrong}", authorization=f"Bearer {key}")))
        clean("metrics", await home.metrics())
        text = home.log_text()
        clean("the log", text)
        assert key not in text
        assert '"invalid_api_key"' in text, "the refusals were logged"


async def test_b34_a_fault_of_our_own_shows_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError(f"cannot reach http://user:{MARK}-word@host/?key={MARK}123456 with Bearer {MARK}.abcdef")

    async with FakeVllm() as fake, house(tmp_path, pool("m", fake)) as home:
        monkeypatch.setattr(openai, "read", broken)
        async with home.ask(chat()) as reply:
            body = await reply.json()
        assert reply.status == 500 and body["error"]["code"] == "internal_error"
        clean("the body", str(body))
        clean("metrics", await home.metrics())
        text = home.log_text()
        assert "RuntimeError" in text, "the operator sees what went wrong"
        clean("the log", text)


async def test_b34_what_the_libraries_log_is_redacted_as_well(tmp_path: Path) -> None:
    async with FakeVllm() as fake, house(tmp_path, pool("m", fake)) as home:
        for name in ("uvicorn.error", "httpx", "aiohttp", "a.library.of.yours"):
            logging.getLogger(name).error("%s: GET http://user:%s-word@host/", name, MARK, extra={"token": MARK})
        text = home.log_text()
        assert text.count("http://[redacted]@host/") == 4, text
        clean("the log", text)
