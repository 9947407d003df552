"""llama.cpp in a process of the gateway's own, through llama-cpp-python: no server, no port, no HTTP.

The model lives in a worker process (`engines/embedded_worker`), started by exec and never forked from the gateway, so
that a crash of the C++ code ends the worker alone: its calls fail, and it is started again. The gateway holds the line
of calls, so that one whose client left while it waited never starts.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import socket
import sys
from pathlib import Path
from typing import Annotated, Final

import msgspec

from engines.contract import Attempt, Call, Health, Sink
from engines.dialect import Dialect
from engines.embedded_attempt import EmbeddedAttempt
from engines.embedded_link import Link, Places
from engines.embedded_worker.model import Settings
from engines.errors import EngineError, Loading, Unreached, Unsupported
from engines.launch import Command, LaunchError, Supervisor
from engines.llamacpp_launch import check_gguf, default_threads
from engines.paths import FileName

__all__ = ["DIALECT", "INSTALL", "Embedded", "Options", "build"]

INSTALL: Final = "pip install 'enginehouse[llama-cpp-python]'"
WORKER: Final = "engines.embedded_worker"
MODEL: Final = "engines.embedded_worker.llama"

_ROOT = Path(__file__).parents[1]

_SAMPLING = frozenset(
    {
        "frequency_penalty",
        "ignore_eos",
        "logit_bias",
        "logprobs",
        "max_tokens",
        "min_p",
        "model",
        "presence_penalty",
        "repetition_penalty",
        "seed",
        "stop",
        "stream",
        "stream_options",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
    }
)
_NO_TOOLS = "it does not make tool calls"

DIALECT: Final = Dialect(
    engine="the embedded engine",
    accepts={
        "chat": _SAMPLING | {"messages", "response_format", "top_logprobs"},
        "completions": _SAMPLING | {"prompt", "response_format"},
        "embeddings": frozenset({"encoding_format", "input", "model"}),
    },
    renames={"repeat_penalty": "repetition_penalty"},
    # Tools themselves are refused; without them these say nothing.
    drops=Dialect().drops | {"parallel_tool_calls", "tool_choice", "function_call"},
    refuses={
        "tools": _NO_TOOLS,
        "functions": _NO_TOOLS,
        "n": "it makes one choice per request",
        "best_of": "it makes one choice per request",
        "suffix": "it does not fill in the middle",
        "echo": "it does not return the prompt",
        "dimensions": "it gives embeddings at their full length only",
    },
    assistant_content="empty",
    max_top_logprobs=20,
)

_Count = Annotated[int, msgspec.Meta(ge=1, le=1024)]


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to load and how to run it.

    Attributes:
        model: the GGUF file.
        slots: calls that run at once, their tokens computed together. queue: calls that may wait for a slot.
        context: tokens of one call, prompt and answer together.
        threads: for generation; by default one less than the physical cores that this process may use, 16 at most.
        batch_threads: for prompts, by default as many.
        batch: tokens of prompts that are computed at once; a client that leaves is noticed within a batch, too.
        gpu_layers: layers that go to the GPU, where llama-cpp-python was built for one; -1 is all.
        embeddings: the model makes embeddings, and nothing else.
        chat_template: a Jinja file in place of the model's own template.
        stall_timeout: seconds without a sign of life in a call after which the worker is ended and started again; a
            batch of a prompt must take less.
    """

    model: FileName
    slots: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    queue: Annotated[int, msgspec.Meta(ge=0, le=4096)] = 64
    context: Annotated[int, msgspec.Meta(ge=64)] = 4096
    threads: _Count | None = None
    batch_threads: _Count | None = None
    batch: Annotated[int, msgspec.Meta(ge=32, le=8192)] = 512
    gpu_layers: Annotated[int, msgspec.Meta(ge=-1)] = 0
    embeddings: bool = False
    chat_template: FileName | None = None
    stall_timeout: Annotated[float, msgspec.Meta(ge=5)] = 120.0


class Embedded:
    """An `Engine`: one model in a worker process, which starts with the first call or probe.

    Args:
        name: the endpoint's name.
        model: the worker's module for the model; tests put a scripted one in place of llama.cpp.
        backoff, grace: see `Supervisor`.

    Attributes:
        slots: calls that run at once. places: who holds them, and who waits. link: the line to the worker, if any.
        supervisor: watches the worker; says how long it took to load, and how often it was started again.
    """

    kind = "embedded"

    def __init__(
        self,
        name: str,
        options: Options,
        *,
        model: str = MODEL,
        backoff: tuple[float, float] = (0.5, 30.0),
        grace: float = 2.0,
    ) -> None:
        self.name = name
        self.slots = options.slots
        self._options = options
        self._model = model
        self.places = Places(options.slots, options.queue)
        self._attempts: set[EmbeddedAttempt] = set()
        self.link: Link | None = None
        self._end: socket.socket | None = None  # our end of the line to a worker that just started
        self._closed = False
        self.supervisor = Supervisor(
            name, self._command, self._worker_health, port=0, poll=0.05, backoff=backoff, grace=grace
        )

    def open(self, call: Call, sink: Sink) -> Attempt:
        """See `Engine.open`. Needs a running event loop."""
        if not self._closed:
            self.supervisor.start()
        attempt = EmbeddedAttempt(
            self._usable_link, self.places, DIALECT, self._options.stall_timeout, call=call, sink=sink
        )
        self._attempts.add(attempt)
        attempt.task.add_done_callback(lambda _: self._attempts.discard(attempt))
        return attempt

    async def probe(self) -> Health:
        """The worker's state; costs nothing, and a busy worker answers it as well. Never raises."""
        if self._closed:
            return Health("down", "the endpoint is closed")
        self.supervisor.start()
        health = self.supervisor.state
        if health.state == "ready" and (self.link is None or not self.link.is_open):
            return Health("down", "the worker has hung up")
        return Health("loading", "starting") if health.state == "unknown" else health

    async def aclose(self) -> None:
        """End every attempt and the worker."""
        self._closed = True
        attempts = list(self._attempts)
        for attempt in attempts:
            attempt.abort("the endpoint is closed")
        self.places.clear(Unreached("The endpoint is closed."))
        await self.supervisor.stop()
        self._hang_up()
        for attempt in attempts:
            await attempt.closed()

    def _usable_link(self, call: Call) -> Link:
        """The line to a worker that can take the call. Raises why there is none."""
        if (call.kind == "embeddings") != self._options.embeddings:
            raise Unsupported(
                "This endpoint's model makes embeddings only."
                if self._options.embeddings
                else "This endpoint's model does not make embeddings.",
                status=400,
                param="model",
            )
        if self.link is not None and self.link.is_open and not self._closed:
            return self.link
        health = self.supervisor.state
        if health.state in ("loading", "unknown") and not self._closed:
            raise Loading("The engine is loading its model.", status=503)
        raise Unreached("The engine's process is not running.", detail=health.why)

    def _command(self, port: int) -> Command:
        """How to start the next worker; makes the line to it. `port` means nothing here."""
        options = self._options
        check_gguf(options.model)
        if options.chat_template and not os.path.isfile(options.chat_template):
            raise LaunchError(f"there is no chat template {options.chat_template}")
        if self._model == MODEL and importlib.util.find_spec("llama_cpp") is None:
            raise LaunchError(f"the package llama-cpp-python is not installed: {INSTALL}")
        threads = options.threads or default_threads()
        settings = Settings(
            model=options.model,
            slots=options.slots,
            context=options.context,
            threads=threads,
            batch_threads=options.batch_threads or threads,
            batch=options.batch,
            gpu_layers=options.gpu_layers,
            embeddings=options.embeddings,
            chat_template=options.chat_template,
        )
        self._hang_up()
        self._end, theirs = socket.socketpair()
        descriptor = theirs.detach()
        program = (sys.executable, "-P", "-m", WORKER, str(descriptor), self._model)
        # So that it finds this package first, and not one of the same name elsewhere.
        env = {"PYTHONPATH": os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}
        return Command((*program, msgspec.json.encode(settings).decode()), env, (descriptor,))

    async def _worker_health(self) -> Health:
        """Asked while the worker loads."""
        if self._end is not None:
            end, self._end = self._end, None
            end.setblocking(False)
            self.link = link = Link(self.places.leave, self._broken, self.supervisor.kill)
            try:
                await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=end)
            except BaseException:
                end.close()
                raise
        return Health("ready" if self.link is not None and self.link.is_open else "loading")

    def _broken(self, link: Link, error: EngineError) -> None:
        if link is self.link:  # a worker that hung up and did not end is of no use to anybody
            self.supervisor.kill()
            self.places.clear(error)

    def _hang_up(self) -> None:
        if self._end is not None:
            self._end.close()
            self._end = None
        link, self.link = self.link, None
        if link is not None:
            link.close()


def build(name: str, options: Options) -> Embedded:
    """The engine of the endpoint `name`."""
    return Embedded(name, options)
