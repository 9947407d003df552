"""What the tests of the embedded engine share: the real engine and its real worker around a scripted model."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from engines import Call
from engines.embedded import Embedded, Options
from tests.engines.harness import RecordingSink, make_call

__all__ = ["House", "calling", "house", "prompt"]

MODEL = "tests.fakes.embedded_model"


class House:
    """One engine, and what its worker did."""

    def __init__(self, engine: Embedded, file: Path) -> None:
        self.engine = engine
        self.whys: list[str] = []
        engine.supervisor.on_state = lambda health: self.whys.append(health.why)
        self._journal = file.with_suffix(".journal")

    @property
    def journal(self) -> list[str]:
        return self._journal.read_text().splitlines() if self._journal.exists() else []

    async def noted(self, line: str, count: int = 1) -> None:
        """Wait until the model wrote that line so many times."""
        while self.journal.count(line) < count:  # noqa: ASYNC110 - it is another process that writes it
            await asyncio.sleep(0.005)

    async def ask(self, say: str = "hello", sink: RecordingSink | None = None, **fields: Any) -> RecordingSink:
        """One chat to its end."""
        sink = sink or RecordingSink()
        attempt = self.engine.open(calling(say, **fields), sink)
        await attempt.closed()
        return sink


def prompt(say: str, **script: Any) -> str:
    """The prompt that makes the model behave so."""
    return json.dumps({"say": say, **script}, ensure_ascii=False)


def calling(text: str = "hello", **fields: Any) -> Call:
    """A call whose prompt is `text`, on any route, with what the gateway reads from the fields."""
    names = {"chat": "messages", "completions": "prompt", "embeddings": "input"}
    name = names[fields.get("kind", "chat")]
    given: dict[str, Any] = {name: [{"role": "user", "content": text}] if name == "messages" else text}
    return msgspec.structs.replace(make_call(**given | fields), max_tokens=fields.get("max_tokens"))


@asynccontextmanager
async def house(folder: Path, name: str = "model.gguf", *, ready: bool = True, **options: Any) -> AsyncIterator[House]:
    """An engine with a scripted model; in the end nothing may be left: no process, no open file, no task."""
    file = folder / name
    file.write_bytes(b"GGUF\x03\x00\x00\x00")
    before = len(os.listdir("/proc/self/fd"))
    settings = Options(model=str(file), **{"context": 4096, "threads": 1, **options})
    engine = Embedded("emb-0", settings, model=MODEL, backoff=(0.01, 0.05))
    try:
        if ready:
            engine.supervisor.start()
            await engine.supervisor.ready()
        yield House(engine, file)
    finally:
        await engine.aclose()
    assert engine.supervisor.is_gone()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await asyncio.sleep(0)
    assert len(os.listdir("/proc/self/fd")) <= before + _LOOP_FILES


_LOOP_FILES = 4
"""Files that the loop itself opens with its first child, and keeps."""
