"""The routes over a real socket: envelopes, labels, keys, models, readiness, headers of streams."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import quote

import openai
import pytest

from gateway.auth import KeyEntry, KeyRing, make_key
from gateway.contract import Client, Pool, Request
from router import Slo
from tests.gateway.door import MODELS, Still, chat, echo, open_door, pool_of, request, state

CANARY = "sk-proj-CANARYcanary0123456789abcdef"
ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")


async def test_a_call_reaches_serve_with_what_its_headers_ask() -> None:
    pool = pool_of("tiny", Still(), slo=Slo(ttft=0.4, tpot=0.04), allowed_policies=frozenset({"latency"}))
    async with open_door(pools={"tiny": pool}) as door:
        plain = (await door.ask(body=chat(temperature=None))).json
        assert (plain["ttft"], plain["tpot"], plain["policy"], plain["explain"]) == (0.4, 0.04, None, False)
        assert plain["fields"] == ["model", "messages"]
        asked = await door.ask(
            body=chat(),
            x_slo_ttft_ms="250",
            x_enginehouse_policy="latency",
            x_enginehouse_explain="1",
            traceparent="00-1-2-01",
            cookie="secret",
            x_request_id="mine",
        )
        seen = asked.json
        assert (seen["ttft"], seen["tpot"], seen["policy"], seen["explain"]) == (0.25, 0.04, "latency", True)
        assert seen["trace"] == [["traceparent", "00-1-2-01"]]
        assert seen["request_id"] == asked.headers["x-request-id"] == "mine"
        assert (await door.ask(body=chat(), x_enginehouse_policy="adaptive")).json["policy"] is None
        refused = await door.ask(body=chat(), x_enginehouse_policy="cpu")
        assert (refused.status, refused.error["param"]) == (400, "x-enginehouse-policy")
        assert "adaptive, latency" in refused.error["message"]


@pytest.mark.parametrize(
    "headers",
    [{"x_slo_ttft_ms": bad} for bad in ("0", "-1", "nan", "inf", "soon", "")]
    + [{"x_slo_tpot_ms": "x"}, {"x_enginehouse_priority": "1.5"}, {"x_enginehouse_priority": "1001"}],
)
async def test_a_header_that_means_nothing_is_400_and_named(headers: dict[str, str]) -> None:
    async with open_door() as door:
        answer = await door.ask(body=chat(), **headers)
        assert (answer.status, answer.error["param"]) == (400, next(iter(headers)).replace("_", "-"))


async def test_every_answer_has_a_request_id_and_a_bad_one_is_replaced() -> None:
    async with open_door() as door:
        for method, path in (("GET", "/health"), ("GET", "/nothing"), ("PUT", "/v1/models"), ("OPTIONS", ROUTES[0])):
            answer = await door.ask(method, path, x_request_id="label 7/u")
            assert answer.headers["x-request-id"] == "label 7/u"
        for bad in ("x" * 129, "caf\xe9", ""):
            answer = await door.ask(body=chat(), x_request_id=bad)
            assert answer.status == 200
            assert answer.headers["x-request-id"] not in (bad, "")


async def test_b07_event_streams_carry_what_keeps_proxies_from_holding_them_back() -> None:
    go_on = asyncio.Event()

    async def stream(pool: Pool, request: Request, client: Client) -> None:
        await client.start(200, [("content-type", "text/event-stream"), ("connection", "x"), ("content-length", "9")])
        await client.write(b"data: 1\n\n")
        await go_on.wait()
        await client.write(b"data: 2\n\n")
        await client.end()

    async with open_door(stream) as door, door.wire() as wire:
        await wire.send(request(body=chat(stream=True), accept_encoding="gzip, br"))
        status, headers = await wire.head()
        assert status == 200
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        assert headers["cache-control"] == "no-cache, no-transform"
        assert headers["x-accel-buffering"] == "no"
        assert "content-encoding" not in headers
        assert await wire.chunk() == b"data: 1\n\n"  # and it is here while the second is not yet made
        go_on.set()
        assert await wire.chunk() == b"data: 2\n\n"
        assert await wire.chunk() == b""


@pytest.mark.parametrize("path", ROUTES)
async def test_wrong_methods_are_405_with_allow(path: str) -> None:
    async with open_door() as door:
        for method in ("GET", "PUT", "DELETE", "PATCH"):
            answer = await door.ask(method, path)
            assert (answer.status, answer.headers["allow"]) == (405, "OPTIONS, POST")
            assert answer.error["code"] == "method_not_supported"
        head = await door.ask("HEAD", path)
        assert (head.status, head.headers["allow"], head.body) == (405, "OPTIONS, POST", b"")
        options = await door.ask("OPTIONS", path)
        assert (options.status, options.headers["allow"]) == (204, "OPTIONS, POST")


async def test_reading_routes_know_head_and_options_and_refuse_the_rest() -> None:
    async with open_door() as door:
        for path in ("/health", "/ready", "/metrics", "/v1/models", "/v1/models/tiny"):
            assert (await door.ask("GET", path)).status == 200
            head = await door.ask("HEAD", path)
            assert (head.status, head.body) == (200, b"")
            assert (await door.ask("OPTIONS", path)).headers["allow"] == "GET, HEAD, OPTIONS"
            answer = await door.ask("POST", path, b"{}")
            assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
            assert answer.error["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/chat", "/v2/models", "/v1/chat/completions/x", "/docs", "/schema"])
async def test_unknown_paths_are_404_in_the_envelope(path: str) -> None:
    async with open_door() as door:
        for method in ("GET", "POST"):
            answer = await door.ask(method, path)
            assert (answer.status, answer.error["type"]) == (404, "invalid_request_error")
            assert path in answer.error["message"]


async def test_a_query_sent_twice_and_a_strange_host_do_no_harm() -> None:
    async with open_door() as door:
        assert (await door.ask("GET", "/v1/models?a=1&a=2&b=%zz")).status == 200
        assert (await door.ask(path=ROUTES[0] + "?x=1&x=2", body=chat())).status == 200
        async with door.wire() as wire:
            await wire.send(b"GET /health HTTP/1.1\r\nhost: a b\r\n\r\n")
            assert (await wire.answer()).error


async def test_b43_every_name_is_found_by_its_own_spelling_and_by_its_encoded_one() -> None:
    async with open_door() as door:
        listed = (await door.ask("GET", "/v1/models")).json
        assert [entry["id"] for entry in listed["data"]] == list(MODELS)
        assert listed["object"] == "list"
        for entry in listed["data"]:
            assert entry == {"id": entry["id"], "object": "model", "created": 7, "owned_by": "enginehouse"}
            for safe in ("", "/:"):
                answer = await door.ask("GET", "/v1/models/" + quote(entry["id"], safe=safe))
                assert (answer.status, answer.json) == (200, entry), entry["id"]


@pytest.mark.parametrize(
    "path",
    [
        "nope",
        "org",
        "org/name/",
        "org%252Fname",
        "org/../tiny",
        "%2e%2e/models/tiny",
        "per%2Fcent",
        "%ff",
        "TINY",
        "up",
    ],
)
async def test_b43_b35_names_are_looked_up_exactly_and_never_normalised(path: str) -> None:
    async with open_door() as door:
        answer = await door.ask("GET", "/v1/models/" + path)
        assert (answer.status, answer.error["code"], answer.error["param"]) == (404, "model_not_found", "model")


async def test_an_unknown_model_is_404_names_what_there_is_and_is_observed_without_its_name() -> None:
    async with open_door() as door:
        answer = await door.ask(body=chat(model="gpt-4o-mimi"))
        assert (answer.status, answer.error["code"], answer.error["param"]) == (404, "model_not_found", "model")
        assert "tiny" in answer.error["message"]
        (seen,) = door.observed
        assert (seen.model, seen.status, seen.outcome, seen.code) == ("other", 404, "rejected", "model_not_found")
        assert seen.request_id == answer.headers["x-request-id"]


@pytest.mark.parametrize(
    "body", [b"", b"not json", b"[]", b'"x"', b"null", b"{", b"\xff{}", b'{"a":"\xff"}', b"[" * 99]
)
async def test_a_body_that_is_no_json_object_is_400(body: bytes) -> None:
    async with open_door() as door:
        for path in ROUTES:
            answer = await door.ask("POST", path, body)
            assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")


async def test_readiness_says_which_pools_are_not_and_why() -> None:
    def pool(**standing: Any) -> Pool:
        return pool_of("m", Still(**standing))

    down = pool(e0=state("loading", eligible=False), e1=state("ready", "open", eligible=False))
    async with open_door(pools={"a": down, "b": pool()}) as door:
        answer = await door.ask("GET", "/ready")
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert answer.json["pools"]["a"]["reason"] == "e0 is loading; e1 is ready with its breaker open"
        assert answer.json["pools"]["b"]["reason"] == "the pool has no endpoints"
        assert (await door.ask("GET", "/health")).status == 200
    async with open_door(pools={"a": down, "b": pool(e0=state())}) as door:
        answer = await door.ask("GET", "/ready")
        assert (answer.status, answer.json["pools"]["b"]["ready"]) == (200, True)


async def test_metrics_come_as_they_are_rendered() -> None:
    async with open_door() as door:
        answer = await door.ask("GET", "/metrics")
        assert (answer.body, answer.headers["content-type"]) == (b"up 1\n", "text/plain; version=1.0.0; charset=utf-8")


async def test_decisions_are_found_by_a_request_id_with_any_characters() -> None:
    async with open_door() as door:
        await door.ask(body=b"{}", x_request_id="a/b c")
        door.decisions.calls["a/b c"] = door.observed[0]
        found = await door.ask("GET", "/admin/decisions/" + quote("a/b c", safe=""))
        assert (found.status, found.json["request_id"], found.json["decisions"]) == (200, "a/b c", [])
        missing = await door.ask("GET", "/admin/decisions/none")
        assert (missing.status, missing.error["code"]) == (404, "decision_not_found")


async def test_keys_guard_the_api_and_the_admin_and_nothing_else() -> None:
    plain, hashed = make_key()
    ring = KeyRing([KeyEntry("alice", hashed)])
    async with open_door(keys=ring) as door:
        for method, path in (*(("POST", path) for path in ROUTES), ("GET", "/v1/models"), ("GET", "/v1/models/tiny")):
            for headers in ({}, {"authorization": "Bearer no"}, {"authorization": "Bearer "}, {"x_api_key": "no"}):
                answer = await door.ask(method, path, chat() if method == "POST" else b"", **headers)
                assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
                assert answer.headers["www-authenticate"] == "Bearer"
        assert (await door.ask("GET", "/admin/decisions/x")).status == 401
        for path in ("/health", "/ready", "/metrics"):
            assert (await door.ask("GET", path)).status == 200
        for headers in ({"authorization": f"bearer  {plain}"}, {"x_api_key": plain}):
            assert (await door.ask(body=chat(), **headers)).json["key"] == "alice"
            assert (await door.ask("GET", "/v1/models", **headers)).status == 200


async def test_the_admin_is_for_keys_that_are_marked_so() -> None:
    (client, client_hash), (operator, operator_hash) = make_key(), make_key()
    ring = KeyRing([KeyEntry("client", client_hash), KeyEntry("operator", operator_hash, admin=True)])
    async with open_door(keys=ring) as door:
        await door.ask(body=b"{}", x_api_key=client, x_request_id="r")
        door.decisions.calls["r"] = door.observed[0]
        refused = await door.ask("GET", "/admin/decisions/r", x_api_key=client)
        assert (refused.status, refused.error["code"]) == (403, "insufficient_permissions")
        assert "client" not in refused.error["message"]
        shown = await door.ask("GET", "/admin/decisions/r", x_api_key=operator)
        assert (shown.status, shown.json["key"]) == (200, "client")


async def test_a_key_is_asked_for_before_the_body_is_read() -> None:
    ring = KeyRing([KeyEntry("alice", make_key()[1])])
    async with open_door(keys=ring) as door, door.wire() as wire:
        await wire.send(request(content_length="1000", expect="100-continue"))
        assert (await wire.answer()).status == 401
        assert await wire.closed()
    assert [(seen.status, seen.key) for seen in door.observed] == [(401, None)]


async def test_b34_secrets_come_back_in_no_error_and_no_log(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(pool: Pool, request: Request, client: Client) -> None:
        raise RuntimeError(f"https://user:hunter2secret@host/?key={CANARY} Authorization: Bearer {CANARY}")

    caplog.set_level(logging.DEBUG)
    ring = KeyRing([KeyEntry("alice", (pair := make_key())[1])])
    good = {"authorization": f"Bearer {pair[0]}"}
    async with open_door(broken, keys=ring) as door:
        answers = [
            await door.ask(body=chat(), authorization=f"Bearer {CANARY}"),
            await door.ask("GET", "/v1/models", x_api_key=CANARY),
            await door.ask(body=chat(model=CANARY), **good),
            await door.ask("GET", f"/v1/models/{CANARY}", **good),
            await door.ask("GET", f"/{CANARY}"),
            await door.ask(body=chat(api_key=CANARY), **good),
            await door.ask(body=chat(temperature=CANARY), **good),
            await door.ask(body=chat(messages=CANARY), **good),
            await door.ask(body=chat(), x_slo_ttft_ms=CANARY, **good),
            await door.ask(body=chat(), x_enginehouse_policy=CANARY, **good),
            await door.ask(body=json.dumps(chat()).encode() + CANARY.encode(), **good),
            await door.ask(body=chat(), **good),
        ]
        assert [answer.status for answer in answers] == [401, 401, 404, 404, 404, *[400] * 6, 500]
        shown = "".join(answer.body.decode() + str(answer.headers) for answer in answers)
        shown += repr(door.observed) + caplog.text
        assert "RuntimeError" in caplog.text
        for secret in (CANARY, "CANARYcanary", "hunter2secret", pair[0]):
            assert secret not in shown


@pytest.mark.parametrize(
    "name", ["api_base", "base_url", "api_key", "extra_headers", "extra_body", "kv_transfer_params", "api_version"]
)
async def test_b35_a_request_cannot_say_where_calls_go(name: str) -> None:
    async with open_door() as door:
        bodies = (chat(), {"model": "tiny", "prompt": "x"}, {"model": "tiny", "input": "x"})
        for path, body in zip(ROUTES, bodies, strict=True):
            answer = await door.ask("POST", path, {**body, name: "http://169.254.169.254/latest/meta-data/"})
            assert (answer.status, answer.error["param"]) == (400, name)
            assert (await door.ask("POST", path, {**body, name: None})).status == 200


async def test_an_unexpected_fault_is_500_with_the_calls_id_and_a_begun_answer_is_broken_off() -> None:
    async def broken(pool: Pool, request: Request, client: Client) -> None:
        if request.call.stream:
            await client.start(200, [("content-type", "text/event-stream")])
            await client.write(b"data: 1\n\n")
        raise RuntimeError("the inside story")

    async with open_door(broken) as door:
        answer = await door.ask(body=chat())
        assert (answer.status, answer.error["code"], answer.error["type"]) == (500, "internal_error", "server_error")
        assert door.observed[0].call in answer.error["message"]
        assert "inside" not in answer.body.decode()
        async with door.wire() as wire:
            await wire.send(request(body=chat(stream=True)))
            assert (await wire.head())[0] == 200
            assert await wire.chunk() == b"data: 1\n\n"
            assert await wire.closed()  # no final chunk: the client sees that it is not whole
        assert [(seen.status, seen.outcome) for seen in door.observed] == [(500, "error")] * 2


async def test_calls_in_flight_may_end_when_the_server_stops() -> None:
    entered, release = asyncio.Event(), asyncio.Event()

    async def held(pool: Pool, request: Request, client: Client) -> None:
        entered.set()
        await release.wait()
        await echo(pool, request, client)

    async with AsyncExitStack() as outlives, asyncio.timeout(20):
        async with open_door(held) as door:
            wire = await outlives.enter_async_context(door.wire())
            await wire.send(request(body=chat()))
            await entered.wait()
            asyncio.get_running_loop().call_later(0.3, release.set)
        answer = await wire.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")


async def test_a_call_that_outlasts_the_shutdown_is_told_503() -> None:
    entered, never = asyncio.Event(), asyncio.Event()

    async def held(pool: Pool, request: Request, client: Client) -> None:
        entered.set()
        await never.wait()

    async with AsyncExitStack() as outlives, asyncio.timeout(20):
        async with open_door(held, shutdown_timeout=0.1) as door:
            wire = await outlives.enter_async_context(door.wire())
            await wire.send(request(body=chat()))
            await entered.wait()
        answer = await wire.answer()
        assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (503, "shutting_down", "1")


async def test_a_stream_that_outlasts_the_shutdown_ends_with_an_error_event_and_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    never = asyncio.Event()

    async def held(pool: Pool, request: Request, client: Client) -> None:
        await client.start(200, [("content-type", "text/event-stream")])
        await client.write(b"data: 1\n\n")
        await never.wait()

    async with AsyncExitStack() as outlives, asyncio.timeout(20):
        async with open_door(held, shutdown_timeout=0.1) as door:
            wire = await outlives.enter_async_context(door.wire())
            await wire.send(request(body=chat(stream=True)))
            assert (await wire.head())[0] == 200
            assert await wire.chunk() == b"data: 1\n\n"
        event = await wire.chunk()
        assert json.loads(event.removeprefix(b"data: "))["error"]["code"] == "shutting_down"
        assert await wire.chunk() == b""
    assert not [record for record in caplog.records if record.exc_info]


async def test_openais_own_client_understands_every_refusal_and_finds_a_name_with_a_slash() -> None:
    plain, hashed = make_key()
    async with open_door(keys=KeyRing([KeyEntry("k", hashed)])) as door:
        url = f"http://127.0.0.1:{door.port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key=plain, max_retries=0) as client:
            assert (await client.models.retrieve("org/name")).id == "org/name"
            assert [model.id async for model in client.models.list()] == list(MODELS)
            with pytest.raises(openai.NotFoundError) as unknown:
                await client.chat.completions.create(model="nope", messages=[{"role": "user", "content": "x"}])
            assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
            with pytest.raises(openai.BadRequestError) as bad:
                await client.chat.completions.create(
                    model="tiny", messages=[{"role": "user", "content": "x"}], temperature=3
                )
            assert bad.value.param == "temperature"
            assert isinstance(bad.value.body, dict)
        async with openai.AsyncOpenAI(base_url=url, api_key="wrong", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError):
                await client.models.list()
