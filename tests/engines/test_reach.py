"""Whether anybody listens on a port, over real sockets."""

from __future__ import annotations

import asyncio
import socket
import ssl

import pytest

from engines.reach import refuses, why_unreached
from tests.fakes.server import FakeServer


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_port_refuses_when_nobody_listens_on_any_address(host: str) -> None:
    async with FakeServer() as fake:
        assert not await refuses(host, fake.port)
    assert await refuses(host, fake.port)


async def test_of_several_addresses_one_that_accepts_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeServer() as fake:
        loop = asyncio.get_running_loop()

        async def two(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
            return [(socket.AF_INET, 1, 6, "", (address, port)) for address in ("127.0.0.2", "127.0.0.1")]

        monkeypatch.setattr(loop, "getaddrinfo", two)
        assert not await refuses("both.example", fake.port)
        await fake.refuse()
        assert await refuses("both.example", fake.port)


async def test_a_name_that_does_not_resolve_says_nothing_of_the_process() -> None:
    assert not await refuses("no-such-host.invalid", 1)


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (ConnectionRefusedError(), "connection refused"),
        (ssl.SSLError(), "TLS failed"),
        (socket.gaierror(), "its name does not resolve"),
        (TimeoutError(), "no connection in time"),
        (OSError("http://user:canary@host"), "no connection"),
    ],
)
def test_the_words_come_from_the_innermost_known_cause(cause: Exception, words: str) -> None:
    outer = RuntimeError("http://user:canary@host")
    outer.__cause__ = cause
    assert why_unreached(outer) == words
