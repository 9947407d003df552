"""B03 and B05 through the whole gateway: the grammar of event streams on both sides, and errors inside of a 200."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.inside import FAKES, WAIT, chat, house, pool
from tests.e2e.scripts import DONE, HEAD, ROLE, answering, finish, streaming, text_of, token
from tests.fakes.server import Peer, chunked, response
from tests.fakes.vllm import FakeVllm

PLAIN = ROLE + token("Hel") + token("lo, 안녕 🦀") + finish() + DONE


class OldDecoder:
    """Reads a stream as openai-python up to 2.36 is described to: the oldest client that there is reason to meet.

    A blank line makes an event whenever anything is known, and an `id` is never forgotten; the event's data is then
    read as JSON, whatever it is.
    """

    def __init__(self) -> None:
        self.data: list[str] = []
        self.event = self.last_id = ""
        self.retry: str | None = None

    def read(self, body: bytes) -> list[Any]:
        """The JSON of each event. Raises JSONDecodeError where that client would."""
        found = []
        for line in body.decode().split("\n")[:-1]:
            if line:
                self._field(line.removesuffix("\r"))
                continue
            if not (self.data or self.event or self.last_id or self.retry is not None):
                continue
            data = "\n".join(self.data)
            self.data, self.event, self.retry = [], "", None
            if data.startswith("[DONE]"):
                return found
            found.append(json.loads(data))
        return found

    def _field(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self.data.append(value)
        elif name == "event":
            self.event = value
        elif name == "id":
            self.last_id = value
        elif name == "retry":
            self.retry = value


@pytest.mark.parametrize("body", [b"retry: 3000\n\n" + PLAIN, b"id: 1\n" + token("a") + b": ping\n\n"])
def test_b03_the_old_client_fails_on_what_it_is_known_to_fail_on(body: bytes) -> None:
    with pytest.raises(json.JSONDecodeError):
        OldDecoder().read(body)


VARIANTS: dict[str, tuple[bytes, ...]] = {
    "a comment first": (b": OPENROUTER PROCESSING\n\n", PLAIN),
    "comments between": tuple(part for event in PLAIN.split(b"\n\n")[:-1] for part in (b": x\n\n", event + b"\n\n")),
    "a comment within": (PLAIN.replace(b"\n\n", b"\n: ping\n\n"),),
    "a block of retry": (b"retry: 3000\n\n", PLAIN),
    "ids and names": (PLAIN.replace(b"data: {", b"id: 7\nevent: message\nretry: 10\ndata: {"),),
    "a block of an id": (b"id: 1\n\n", PLAIN, b"id: 2\n\n"),
    "no space": (PLAIN.replace(b"data: ", b"data:"),),
    "no space, an event to a read": tuple(
        event.replace(b"data: ", b"data:") + b"\n\n" for event in PLAIN.split(b"\n\n")[:-1]
    ),
    "CRLF": (PLAIN.replace(b"\n", b"\r\n"),),
    "CRLF cut in two": tuple(PLAIN.replace(b"\n", b"\r\n").partition(b"\r\n\r")),
    "CR": (PLAIN.replace(b"\n", b"\r"),),
    "three events in a read": (PLAIN[: PLAIN.index(b"data: [DONE]")], DONE),
    "no blank line at the end": (PLAIN[:-1],),
    "no line end at the end": (PLAIN[:-2],),
    "no end but the connection's": (PLAIN.removesuffix(DONE)[:-2],),
    "empty data": (b"data:\n\ndata\n\n", PLAIN),
    "a byte order mark": (b"\xef\xbb\xbf" + PLAIN,),
    "a byte to a read": tuple(bytes([byte]) for byte in PLAIN),
}


async def test_b03_every_spelling_of_a_stream_comes_out_as_the_same_plain_one(tmp_path: Path) -> None:
    async with FakeVllm() as fake, house(tmp_path, pool("m", fake)) as home, home.sdk() as sdk:
        fake.script = streaming(PLAIN)
        async with home.ask(chat(stream=True)) as reply:
            plain = await reply.rest()
        assert text_of(plain) == "Hello, 안녕 🦀"
        for name, parts in VARIANTS.items():
            fake.script = streaming(*parts)
            async with home.ask(chat(stream=True)) as reply:
                out = await reply.rest()
            assert out == plain, name
            assert len(OldDecoder().read(out)) == 4, name
            stream = await sdk.chat.completions.create(**chat(stream=True))
            said = [choice.delta.content or "" async for each in stream for choice in each.choices]
            assert "".join(said) == "Hello, 안녕 🦀", name


@pytest.mark.parametrize("kind", FAKES)
async def test_b03_keep_alive_of_an_engine_is_no_event_of_ours(tmp_path: Path, kind: str) -> None:
    async with (
        FAKES[kind](comments=True) as fake,
        house(tmp_path, pool("m", fake)) as home,
        home.ask(chat(stream=True)) as reply,
    ):
        out = await reply.rest()
    for line in out.split(b"\n"):
        assert line == b"" or line.startswith((b"data: {", b"data: [DONE]")), line
    assert "".join(each["choices"][0]["delta"].get("content") or "" for each in OldDecoder().read(out)) == fake.text


async def test_b03_heartbeats_are_comments_that_the_old_client_survives(tmp_path: Path) -> None:
    settings = {"commit_after": 0.01, "heartbeat": 0.01}
    async with (
        FakeVllm(pause_at="head") as fake,
        house(tmp_path, pool("m", fake, **settings)) as home,
        home.ask(chat(stream=True)) as reply,
    ):
        beats = [await reply.event() for _ in range(3)]
        fake.gate.set()
        out = b"".join(beats) + await reply.rest()
    assert all(beat.startswith(b":") and b"data" not in beat for beat in beats)
    assert b"data: :" not in out
    assert all(line == b"" or line.startswith((b":", b"data: ")) for line in out.split(b"\n"))
    assert "".join(each["choices"][0]["delta"].get("content") or "" for each in OldDecoder().read(out)) == fake.text


QUEUE_FULL = b'data: {"error":{"message":"queue full","type":"overloaded","code":429}}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize("before", [b"", ROLE, b": hello\n\n"], ids=["nothing", "role", "comment"])
@pytest.mark.parametrize("kind", FAKES)
async def test_b05_an_error_as_the_first_event_is_a_real_status(tmp_path: Path, kind: str, before: bytes) -> None:
    async with FAKES[kind]() as fake, house(tmp_path, pool("m", fake)) as home, home.sdk() as sdk:
        fake.script = streaming(before + QUEUE_FULL)
        with pytest.raises(openai.RateLimitError) as caught:
            await sdk.chat.completions.create(**chat(stream=True))
        assert "queue full" in str(caught.value)
        assert int(caught.value.response.headers["retry-after"]) >= 1
        assert (await home.told(1)).status == 429
        assert (await home.metrics()).total("enginehouse_attempts_total", outcome="overload") == 1


async def test_b05_a_whole_answer_that_holds_an_error_is_that_error(tmp_path: Path) -> None:
    async with FakeVllm() as fake, house(tmp_path, pool("m", fake)) as home, home.sdk() as sdk:
        fake.script = answering({"error": {"message": "queue full", "type": "overloaded", "code": 429}})
        with pytest.raises(openai.RateLimitError):
            await sdk.chat.completions.create(**chat())


async def test_b05_an_error_as_the_first_event_goes_elsewhere_where_it_may(tmp_path: Path) -> None:
    async with FakeVllm() as full, FakeVllm() as good:
        async with house(tmp_path, pool("m", full, good, policy="round_robin")) as home, home.sdk() as sdk:
            full.script = streaming(ROLE + QUEUE_FULL)
            for _ in range(2):  # whichever of the two is asked first, the other answers one of these
                stream = await sdk.chat.completions.create(**chat(stream=True))
                said = [choice.delta.content or "" async for each in stream for choice in each.choices]
                assert "".join(said) == good.text
        assert full.requests


@pytest.mark.parametrize("kind", FAKES)
async def test_b05_tools_that_the_engine_refuses_are_a_400_also_for_streams(tmp_path: Path, kind: str) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    said = {"error": {"message": "tool f is not valid", "type": "BadRequestError", "param": None, "code": 400}}
    async with FAKES[kind]() as fake, house(tmp_path, pool("m", fake)) as home, home.sdk() as sdk:
        fake.script = answering(response(400, said))
        with pytest.raises(openai.BadRequestError, match="tool f is not valid"):
            await sdk.chat.completions.create(**chat(stream=True, tools=tools))
        assert (await home.told(1)).status == 400


@pytest.mark.parametrize("kind", FAKES)
async def test_b05_a_later_error_is_an_exception_and_the_end_of_the_stream(tmp_path: Path, kind: str) -> None:
    async with FAKES[kind](error_at=3) as fake, house(tmp_path, pool("m", fake)) as home, home.sdk() as sdk:
        stream = await sdk.chat.completions.create(**chat(stream=True))
        said = ""
        with pytest.raises(openai.APIError) as caught:
            async for each in stream:
                said += each.choices[0].delta.content or ""
                assert each.choices[0].finish_reason is None, "no finish is invented"
        assert said and fake.text.startswith(said)
        assert isinstance(caught.value.body, dict) and caught.value.body["message"]
        async with home.ask(chat(stream=True)) as reply:
            out = await reply.rest()
        *_, last = out.removesuffix(b"\n\n").split(b"\n\n")
        assert set(json.loads(last.removeprefix(b"data: "))["error"]) == {"message", "type", "param", "code"}
        assert b"[DONE]" not in out
        assert (await home.told(2)).outcome == "error"
        page = await home.metrics()
        assert page.total("enginehouse_attempts_total", outcome="error") == 2
        assert page.total("enginehouse_requests_total", outcome="ok") == 0


async def test_b05_no_status_is_sent_before_the_engines_first_event_is_known(tmp_path: Path) -> None:
    async with FakeVllm() as fake, house(tmp_path, pool("m", fake, commit_after=None)) as home:
        said, gate = asyncio.Event(), asyncio.Event()

        async def script(peer: Peer) -> None:
            await peer.send(HEAD + chunked(ROLE))
            said.set()
            await gate.wait()
            await peer.send(chunked(QUEUE_FULL) + chunked(b""))

        fake.script = script
        async with home.wire() as reply, asyncio.timeout(WAIT):
            await reply.send(home.request(chat(stream=True)))
            await said.wait()
            # The engine's 200 and its role chunk are at the gateway once another call made its way through it.
            assert (await home.get("/health"))[0] == 200
            gate.set()
            await reply.head()
            assert reply.status == 429
