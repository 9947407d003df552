"""What the clients' check scripts share: who is asked, what an engine may refuse, and how checks are run and told of.

A script beside this file defines `check_NAME(house)` functions, some of them coroutines, and ends with

    sys.exit(main(__doc__, globals(), said))

where `said(error)` gives status and `param` of an error of its client. This file needs the standard library only.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import re
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

__all__ = ["LONG_ANSWER", "PAINT", "PARAMS", "PIXEL", "WEATHER", "House", "Skip", "main", "proper"]

LONG_ANSWER = 1_500
"""Tokens: many seconds of work for an engine, so that an abandoned call is seen to end early."""

PARAMS = {
    "images": "messages",
    "json_schema": "response_format",
    "logprobs": "logprobs",
    "tool_choice": "tool_choice",
    "tools": "tools",
}
"""A feature that an engine may refuse -> the `param` that the refusal names."""

PIXEL = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
"""A picture as a client sends it that was given a file."""

PAINT = {
    "type": "object",
    "properties": {
        "colour": {"type": "string", "enum": ["red", "green", "blue"]},
        "count": {"type": "integer"},
        "bright": {"type": "boolean"},
    },
    "required": ["colour", "count", "bright"],
    "additionalProperties": False,
}

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}

Said = Callable[[BaseException], tuple[int | None, str | None]]


class Skip(Exception):
    """The check does not apply here."""


@dataclass
class House:
    """Who is asked, and how.

    Attributes:
        base_url: as a client takes it, `/v1` included. model: the public name.
        key: the client's API key. keyed: the gateway knows its keys, so a wrong one is refused.
        refuses: features that the engine refuses as documented.
        eos: the token that ends the model's turn.
        told: what the running check wants to say beside "ok".
    """

    base_url: str
    model: str
    key: str
    keyed: bool
    refuses: frozenset[str]
    eos: str
    said: Said
    told: list[str] = field(default_factory=list)

    @property
    def root(self) -> str:
        return self.base_url.removesuffix("/v1")

    def chat(self, text: str = "Name three colours, please.", **changes: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": text}]
        return {"model": self.model, "messages": messages, "max_tokens": 16, "temperature": 0} | changes

    @property
    def endless(self) -> dict[str, Any]:
        """The fields of an answer that does not end for many seconds."""
        return {"max_tokens": LONG_ANSWER, "logit_bias": {self.eos: -100}}

    @contextmanager
    def may_refuse(self, *features: str) -> Iterator[None]:
        """Run a block that uses these features; where the engine refuses one, the block must end in a clear 400."""
        refused = [feature for feature in features if feature in self.refuses]
        if not refused:
            yield
            return
        try:
            yield
        except Exception as error:
            status, param = self.said(error)
            if status is None:
                raise
            params = {PARAMS[feature] for feature in refused}
            assert status == 400, f"refused with {status}, not 400: {error}"
            assert param in params, f"the refusal names {param!r} as its param, not one of {params}: {error}"
            self.told.append(f"refused as documented: {', '.join(refused)}")
            return
        raise AssertionError(f"{', '.join(refused)} should have been refused")

    @contextmanager
    def raises(self, kind: type[BaseException], status: int, param: str | None = None) -> Iterator[list[Any]]:
        """Run a block that must end with this error, status and (unless None) param; gives a list that will hold it."""
        found: list[Any] = []
        try:
            yield found
        except kind as error:
            seen = self.said(error)
            assert seen[0] == status and (param is None or seen[1] == param), f"{seen}, not {(status, param)}: {error}"
            found.append(error)
            return
        raise AssertionError(f"{kind.__name__} was not raised")

    def busy(self) -> float:
        """Calls that the engine works on, by its own word, and those that the gateway has in flight."""
        ask = urllib.request.Request(f"{self.root}/metrics", headers={"Authorization": f"Bearer {self.key}"})
        with urllib.request.urlopen(ask, timeout=30) as answer:
            text = answer.read().decode()
        names = "enginehouse_in_flight|enginehouse_engine_running|enginehouse_engine_waiting"
        figures = re.findall(rf"^(?:{names})\{{[^}}]*\}} (\S+)$", text, re.MULTILINE)
        assert figures, "/metrics shows no calls in flight"
        return sum(map(float, figures))

    def wait_until_idle(self) -> None:
        """Return when no call is worked on any more. An answer of LONG_ANSWER tokens takes longer than this waits."""
        deadline = time.monotonic() + 10
        while self.busy():
            assert time.monotonic() < deadline, "the engine still works on a call that nobody waits for"
            time.sleep(0.25)


def proper(text: object) -> str:
    """`text`, which must be a text with something in it."""
    assert isinstance(text, str) and text.strip(), f"the answer is empty: {text!r}"
    assert "\ufffd" not in text, f"the answer holds a broken character: {text!r}"
    return text


def main(doc: str | None, names: Mapping[str, Any], said: Said) -> int:
    """Run the `check_` functions among `names` against what the command line names; return how many failed."""
    parser = argparse.ArgumentParser(description=(doc or "").split("\n")[0])
    parser.add_argument("base_url")
    parser.add_argument("model")
    parser.add_argument("--key", help="the API key, where the gateway wants one")
    parser.add_argument("--refuses", default="", help=f"what the engine cannot do, of {', '.join(PARAMS)}")
    parser.add_argument("--eos", default="2", help="the token that ends the model's turn (2: SmolLM2's)")
    parser.add_argument("--only", nargs="*", default=[])
    given = parser.parse_args()
    refuses = frozenset(filter(None, given.refuses.split(",")))
    if refuses - PARAMS.keys():
        parser.error(f"unknown features: {', '.join(refuses - PARAMS.keys())}")
    house = House(given.base_url, given.model, given.key or "none", bool(given.key), refuses, given.eos, said)
    failures = 0
    # One loop for all: clients keep their connections beyond a check.
    with asyncio.Runner() as runner:
        for function_name, check in list(names.items()):
            name = function_name.removeprefix("check_")
            if name != function_name and (not given.only or name in given.only):
                failures += not _passes(name, check, house, runner)
    return failures


def _passes(name: str, check: Callable[[House], Any], house: House, runner: asyncio.Runner) -> bool:
    house.told.clear()
    try:
        outcome = check(house)
        if inspect.iscoroutine(outcome):
            runner.run(outcome)
    except Skip as why:
        print(f"skip {name}: {why}", flush=True)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if "_checks" in frame.filename]
        print(f"FAIL {name}: {type(error).__name__}: {error} ({where.name}, lines {lines})", flush=True)
        return False
    else:
        print(f"ok {name}{''.join(f' ({word})' for word in house.told)}", flush=True)
    return True
