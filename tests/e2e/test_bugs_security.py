"""B33 and B35 through the whole gateway: what never reaches an engine, and places that no caller can name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.fields import FORBIDDEN
from gateway.key_file import add_key
from tests.e2e.inside import FAKES, Home, chat, house, pool
from tests.e2e.scripts import answering, completion
from tests.fakes.engine import FakeEngine
from tests.fakes.llamacpp import FakeLlamaCpp
from tests.fakes.server import FakeServer, Received, response
from tests.fakes.vllm import FakeVllm

# B33: the client's credentials

CANARY = "canary-0a9c1e"
SENT: dict[str, str] = {
    "x_api_key": f"sk-{CANARY}",
    "api_key": CANARY,
    "cookie": f"session={CANARY}",
    "proxy_authorization": f"Basic {CANARY}",
    "openai_organization": CANARY,
    "x_forwarded_for": CANARY,
    "forwarded": f"for={CANARY}",
    "x_auth_token": CANARY,
    "connection": "keep-alive, x-hop",
    "x_hop": CANARY,
    "keep_alive": CANARY,
    "te": "trailers",
    "user_agent": CANARY,
    "x_enginehouse_session": CANARY,
    "baggage": CANARY,
}
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ALLOWED = {
    *("host", "accept", "accept-encoding", "connection", "content-length", "content-type"),
    *("traceparent", "user-agent", "x-request-id"),
}
CALLS: list[tuple[dict[str, Any], str]] = [
    (chat(), "/v1/chat/completions"),
    (chat(stream=True), "/v1/chat/completions"),
    ({"model": "m", "prompt": "hi"}, "/v1/completions"),
    ({"model": "m", "prompt": "hi", "stream": True}, "/v1/completions"),
    ({"model": "m", "input": "hi"}, "/v1/embeddings"),
]


def only_ours(request: Received, key: str | None) -> None:
    """The engine got the headers of the list, once each, and no word of the client's."""
    names = [name for name, _ in request.headers]
    assert len(names) == len(set(names))
    assert set(names) <= ALLOWED | ({"authorization"} if key else set()), names
    assert request.header("authorization") == (f"Bearer {key}" if key else None)
    assert CANARY not in str(request.headers) and "eh-" not in str(request.headers)
    assert CANARY.encode() not in request.body and b"eh-" not in request.body


@pytest.mark.parametrize("own", [None, "key-of-the-engine"])
@pytest.mark.parametrize("kind", FAKES)
async def test_b33_no_credential_of_the_client_reaches_an_engine_on_any_route(
    tmp_path: Path, kind: str, own: str | None
) -> None:
    key = add_key(tmp_path / "keys.yaml", "alice")
    options = {"api_key": own} if own else {}
    async with (
        FAKES[kind](api_key=own) as fake,
        house(tmp_path, pool("m", fake, options=options), auth={"keys": "keys.yaml"}) as home,
    ):
        for number, (body, path) in enumerate(CALLS):
            named = SENT | {"authorization": f"Bearer {key}", "traceparent": TRACE}
            if number % 2:
                named |= {"x_api_key": key}
                del named["authorization"]
            async with home.ask(body, path, **named) as reply:
                await reply.rest()
        await home.told(len(CALLS))
    posts = [request for request in fake.requests if request.method == "POST"]
    assert posts and len(posts) < len(fake.requests), "calls and probes"
    for request in fake.requests:
        only_ours(request, own)
    assert {request.header("traceparent") for request in posts} == {TRACE}


async def test_b33_no_credential_of_the_client_is_sent_on_the_second_try(tmp_path: Path) -> None:
    full = response(503, {"error": {"message": "queue full", "code": 503}})
    async with AsyncExitStack() as stack:
        fakes = [await stack.enter_async_context(FakeVllm()) for _ in range(3)]
        home = await stack.enter_async_context(house(tmp_path, pool("m", *fakes)))
        for fake in fakes:
            fake.script = answering(full)
        async with home.ask(chat(stream=True), authorization=f"Bearer {CANARY}", **SENT) as reply:
            await reply.rest()
        posts = [request for fake in fakes for request in fake.requests if request.method == "POST"]
        assert len(posts) == 3, "every leg was seen"
        for request in posts:
            only_ours(request, None)


# B35: where calls go


@asynccontextmanager
async def baited(folder: Path, fake: FakeEngine | None = None) -> AsyncIterator[tuple[FakeEngine, FakeServer, Home]]:
    """An engine, the gateway, and a listener that must see no connection."""
    async with FakeServer() as bait, fake or FakeVllm() as engine, house(folder, pool("m", engine)) as home:
        yield engine, bait, home
        assert bait.accepted == 0, "somebody followed the caller's address"


@pytest.mark.parametrize("name", [*sorted(FORBIDDEN), "x_target_url", "provider", "endpoint", "host", "url"])
async def test_b35_no_field_says_where_a_call_goes(tmp_path: Path, name: str) -> None:
    async with baited(tmp_path) as (fake, bait, home):
        for value in (bait.url, {"base_url": bait.url, "url": bait.url}, [bait.url]):
            async with home.ask(chat(**{name: value}), x_request_id="c1") as reply:
                answer = await reply.json()
                assert reply.status == (400 if name in FORBIDDEN else 200), answer
        posts = [request for request in fake.requests if request.method == "POST"]
        assert len(posts) == (0 if name in FORBIDDEN else 3)
        assert name not in FORBIDDEN or answer["error"]["param"] == name
        assert bait.url not in str(answer)


async def test_b35_no_header_and_no_request_target_says_where_a_call_goes(tmp_path: Path) -> None:
    async with baited(tmp_path) as (fake, bait, home):
        address = bait.url.removeprefix("http://")
        before = len(fake.requests)
        for named in (
            {"host": address},
            {"x_forwarded_host": address, "x_forwarded_proto": "http", "x_forwarded_port": str(bait.port)},
            {"forwarded": f"host={address}", "x_original_url": bait.url, "x_rewrite_url": bait.url},
            {"x_api_base": bait.url, "x_base_url": bait.url, "x_upstream": bait.url, "x_enginehouse_endpoint": address},
        ):
            async with home.ask(chat(), **named) as reply:
                assert reply.status == 200
        for path in (f"{bait.url}/v1/chat/completions", f"//{address}/v1/chat/completions"):
            async with home.ask(chat(), path) as reply:
                assert reply.status in (200, 400, 404)
        assert all(request.header("host") == f"127.0.0.1:{fake.port}" for request in fake.requests[before:])


async def test_b35_no_model_name_is_an_address(tmp_path: Path) -> None:
    async with baited(tmp_path) as (_, bait, home):
        for model in (bait.url, f"openai/{bait.url}", f"m@{bait.url}", "../m", "m/../../admin", "m?x=1", "m#"):
            async with home.ask(chat(model)) as reply:
                assert reply.status == 404
                assert (await reply.json())["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("kind", FAKES)
async def test_b35_pictures_are_not_fetched(tmp_path: Path, kind: str) -> None:
    async with baited(tmp_path, FAKES[kind]()) as (_, bait, home):
        parts = [
            {"type": "text", "text": "what is it?"},
            {"type": "image_url", "image_url": {"url": f"{bait.url}/cat.png"}},
            {"type": "input_audio", "input_audio": {"data": f"{bait.url}/cat.wav", "format": "wav"}},
            {"type": "file", "file": {"file_data": f"{bait.url}/cat.pdf"}},
        ]
        async with home.ask(chat() | {"messages": [{"role": "user", "content": parts}]}) as reply:
            await reply.rest()
        await home.told(1)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_b35_redirects_of_an_engine_are_not_followed(tmp_path: Path, status: int, stream: bool) -> None:
    async with baited(tmp_path, FakeVllm(api_key="own")) as (fake, bait, home):
        away = response(status, b"", headers=f"location: {bait.url}/v1/chat/completions\r\n")
        fake.script = answering(away)
        async with home.ask(chat(stream=stream)) as reply:
            answer = await reply.json()
        assert reply.status == 502 and answer["error"]["code"] == "engine_misconfigured"
        assert "location" not in reply.headers and bait.url not in str(answer)


async def test_b35_redirects_of_a_health_route_are_not_followed(tmp_path: Path) -> None:
    async with FakeServer() as bait, FakeLlamaCpp() as fake:
        fake.health = response(302, b"", headers=f"location: {bait.url}/health\r\n")
        async with house(tmp_path, pool("m", fake), ready=False) as home:
            await fake.arrived(2)
            status, _ = await home.get("/ready")
            assert status == 503
        assert bait.accepted == 0


CLIMBS = [
    "/passthrough/../../admin",
    "/v1/../admin",
    "/v1/%2e%2e/admin",
    "/v1/%2E%2E/%2e%2e/admin",
    "/v1/..%2f..%2fadmin",
    "/v1/..%5c..%5cadmin",
    "/v1/%252e%252e/admin",
    "/v1/chat/completions/../../../admin/decisions/x",
    "/v1/chat/completions/%2e%2e/%2e%2e/%2e%2e/metrics",
    "/v1/chat/completions/../../health",
    "/v1/models/../../metrics",
    "/v1/models/%2e%2e/%2e%2e/metrics",
    "/v1/models/..%2f..%2fmetrics",
    "/engine/a/v1/chat/completions",
    "/v1/tokenize",
    "/v1/chat/completions%2f..%2f..%2fload",
    "/v1/chat/completions;/../load",
    "/v1/./../load",
]


@pytest.mark.parametrize("keys", [False, True], ids=["open", "with keys"])
async def test_b35_no_path_climbs_out_of_what_is_served(tmp_path: Path, keys: bool) -> None:
    async with FakeServer() as engine:
        prefix = "/engine/a"
        engine.route("GET", f"{prefix}/health", answering(response(200)))
        engine.route("POST", f"{prefix}/v1/chat/completions", answering(completion({"content": "hi"})))
        served = {"name": "a", "engine": "vllm", "url": engine.url + prefix, "model": "own"}
        config: dict[str, Any] = {}
        if keys:
            add_key(tmp_path / "keys.yaml", "alice")
            config = {"auth": {"keys": "keys.yaml"}}
        async with house(tmp_path, {"model": "m", "endpoints": [served]}, **config) as home:
            if not keys:
                async with home.ask(chat()) as reply:
                    assert reply.status == 200
            for path in CLIMBS:
                for method in ("GET", "POST"):
                    async with home.ask(chat() if method == "POST" else b"", path, method) as reply:
                        assert reply.status in (400, 401, 404, 405), (method, path)
                        assert set((await reply.json())["error"]) == {"message", "type", "param", "code"}
        outside = [request.path for request in engine.requests if not request.path.startswith(f"{prefix}/")]
        assert outside == []
        assert sum(request.method == "POST" for request in engine.requests) == (0 if keys else 1)
