"""A client that reads nothing of its answer is let go, so that the engine's slot does not wait with it for ever."""

from __future__ import annotations

import asyncio

from gateway.api.protocol import EdgeProtocol
from gateway.contract import Client, ClientGone, Pool, Request
from tests.gateway.door import chat, on_both_loops, open_door, request


@on_both_loops
async def test_a_client_that_reads_nothing_of_its_answer_is_let_go() -> None:
    class Brisk(EdgeProtocol):
        unread = 0.2

    over: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def endless(pool: Pool, request: Request, client: Client) -> None:
        await client.start(200, [("content-type", "text/event-stream")])
        try:
            while True:
                await client.write(b"data: " + b"x" * 65536 + b"\n\n")
        except ClientGone:
            over.set_result("gone")

    async with open_door(endless, protocol=Brisk) as door, door.wire() as wire:
        await wire.send(request(body=chat(stream=True)))

        async with asyncio.timeout(20):
            assert await over == "gone"


@on_both_loops
async def test_a_client_that_reads_slowly_keeps_its_answer() -> None:
    class Brisk(EdgeProtocol):
        unread = 1.0

    blocks = 400

    async def long(pool: Pool, request: Request, client: Client) -> None:
        await client.start(200, [("content-type", "text/event-stream")])
        for _ in range(blocks):
            await client.write(b"data: " + b"x" * 65536 + b"\n\n")
        await client.end()

    async with open_door(long, protocol=Brisk) as door, door.wire() as wire:
        await wire.send(request(body=chat(stream=True)))

        assert len((await wire.answer()).body) == blocks * 65544
