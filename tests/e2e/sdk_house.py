"""What the SDK's checks share: who is asked, and what must hold of any answer. Imported by `sdk_checks.py` alone."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import openai
from openai import AsyncOpenAI, OpenAI

__all__ = ["ENGLISH", "House", "Skip", "proper", "raised", "text_of"]

ENGLISH = [{"role": "user", "content": "Name three colours, please."}]


class Skip(Exception):
    """The check does not apply here."""


@dataclass
class House:
    """Who is asked, and how."""

    base_url: str
    model: str
    engine_only: bool
    eos: str

    def client(self, **options: Any) -> OpenAI:
        return OpenAI(base_url=self.base_url, api_key="none", max_retries=0, **{"timeout": 120.0} | options)

    def async_client(self, **options: Any) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=self.base_url, api_key="none", max_retries=0, **{"timeout": 120.0} | options)

    def chat(self, **changes: Any) -> dict[str, Any]:
        return {"model": self.model, "messages": ENGLISH, "max_tokens": 16, "temperature": 0} | changes

    def endless(self, **changes: Any) -> dict[str, Any]:
        """A chat that does not end before its cap: its end-of-turn token is forbidden."""
        return self.chat(logit_bias={self.eos: -100}) | changes

    def gateway_only(self) -> None:
        if self.engine_only:
            raise Skip("only a gateway promises this")

    def get(self, url: str) -> str:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return str(answer.read().decode())

    def busy(self) -> float:
        """Calls that the engine works on, by the engine's own word, and those that the gateway has in flight."""
        root = self.base_url.removesuffix("/v1")
        if self.engine_only:
            return sum(slot["is_processing"] for slot in json.loads(self.get(f"{root}/slots")))
        names = "enginehouse_in_flight|enginehouse_engine_running|enginehouse_engine_waiting"
        figures = re.findall(rf"^(?:{names})\{{[^}}]*\}} (\S+)$", self.get(f"{root}/metrics"), re.MULTILINE)
        assert figures, "/metrics shows no calls in flight"
        return sum(map(float, figures))

    def wait_until_idle(self) -> None:
        """Return when no call is worked on any more. An answer of LONG_ANSWER tokens takes longer than this waits.

        llama.cpp looks whether the client of a call without a stream is still there only after a second in which no
        task of any kind ended, and answering /slots is a task: asked more often, it never looks.
        """
        deadline = time.monotonic() + 10
        while self.busy():
            assert time.monotonic() < deadline, "the engine still works on a call that nobody waits for"
            time.sleep(1.5)


def raised(kind: type[openai.APIError], call: Callable[[], Any]) -> Any:
    """The error that `call` raises, which must be of this class and carry OpenAI's envelope."""
    try:
        call()
    except kind as error:
        if isinstance(error, openai.APIStatusError):
            assert isinstance(error.body, dict), f"the error's body is {error.body!r}"
            assert isinstance(error.body.get("message"), str) and error.body["message"], error.body
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def text_of(chunks: Iterable[Any]) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def proper(text: str | None) -> str:
    assert text and text.strip(), "the answer is empty"
    assert "\ufffd" not in text, f"the answer holds a broken character: {text!r}"
    return text
