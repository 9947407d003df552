"""One line per call, no secrets in any, and no reader slow enough to stop the house."""

from __future__ import annotations

import io
import json
import logging
import threading
from typing import Any

import pytest

from engines import Health
from gateway.log import Logger, configure
from gateway.log_format import level_of_health
from gateway.redact import redact
from tests.gateway.served import observation, served

CANARY = "sk-proj-canary-0123456789abcdef"


def lines(write: Any, level: str = "debug", **options: Any) -> list[dict[str, Any]]:
    stream = io.StringIO()
    logger = configure(level, stream, redact, capture=False, **options)
    write(logger)
    logger.close()
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_call_is_one_line_with_its_figures() -> None:
    (line,) = lines(lambda log: log.served(served(key="team-a")))
    assert line["event"] == "call"
    assert line["level"] == "info"
    assert line["timestamp"].endswith("+00:00")
    expected = {
        "call": "c1",
        "request_id": "r1",
        "model": "m",
        "endpoint": "vllm-0",
        "status": 200,
        "outcome": "ok",
        "key": "team-a",
        "total_ms": 1600.0,
        "overhead_ms": 0.4,
        "attempts": 1,
        "ttft_ms": 52.0,
        "tpot_ms": 20.0,
        "prompt_tokens": 12,
        "output_tokens": 70,
        "finish": "stop",
    }
    assert line | expected == line
    assert "code" not in line
    assert "failed" not in line


def test_what_failed_on_the_way_is_named() -> None:
    failed = observation(endpoint="tgi-0", outcome="error", error="Unreached")
    (line,) = lines(lambda log: log.served(served(observations=(failed, observation()))))
    assert line["failed"] == ["tgi-0: Unreached"]
    assert line["attempts"] == 2


@pytest.mark.parametrize(
    ("outcome", "status", "level"),
    [
        ("ok", 200, "info"),
        ("cancelled", 499, "info"),
        ("rejected", 401, "warning"),
        ("overload", 429, "warning"),
        ("error", 400, "warning"),
        ("error", 502, "error"),
        ("error", 200, "error"),
    ],
)
def test_the_level_follows_the_outcome(outcome: str, status: int, level: str) -> None:
    (line,) = lines(lambda log: log.served(served(outcome=outcome, status=status)))
    assert line["level"] == level


def test_an_events_numbers_are_rounded_and_what_is_empty_is_left_out() -> None:
    fields: dict[str, Any] = {"seconds": 0.649062812000011, "pid": None, "why": "", "restarts": 0, "fast": False}
    (line,) = lines(lambda log: log.event("launch_ready", **fields))
    assert {name: line[name] for name in line if name in fields} == {"seconds": 0.649, "restarts": 0, "fast": False}


@pytest.mark.parametrize(
    ("health", "level"),
    [
        (Health("down", "connection refused"), logging.WARNING),
        (Health("degraded"), logging.WARNING),
        (Health("down", "stopped"), logging.INFO),
        (Health("ready"), logging.INFO),
        (Health("loading", "starting"), logging.INFO),
    ],
)
def test_an_endpoint_that_fails_is_a_warning_and_its_recovery_is_not(health: Health, level: int) -> None:
    assert level_of_health(health) == level


def test_the_name_of_an_unknown_model_has_a_field_of_its_own() -> None:
    (line,) = lines(lambda log: log.served(served(model="other", asked_model="gpt-4o-mimi", status=404)))
    assert (line["model"], line["asked_model"]) == ("other", "gpt-4o-mimi")
    (line,) = lines(lambda log: log.served(served()))
    assert "asked_model" not in line


def test_lines_below_the_level_are_not_written() -> None:
    def write(log: Logger) -> None:
        log.served(served())
        log.event("endpoint_down", level=logging.WARNING, endpoint="vllm-0")

    assert [line["event"] for line in lines(write, level="warning")] == ["endpoint_down"]


def test_b34_no_canary_comes_out_wherever_it_went_in() -> None:
    stream = io.StringIO()
    logger = configure("debug", stream, redact)
    try:
        logger.served(
            served(
                model=CANARY,
                request_id=f"r {CANARY}",
                code=CANARY,
                detail=f"401 from the engine: Bearer {CANARY}",
                observations=(observation(error=CANARY, finish=CANARY),),
            )
        )
        logger.event(
            "probe_failed", url=f"http://user:{CANARY}@host/", nested={CANARY: [f"x {CANARY}"]}, why=OSError(CANARY)
        )
        for name in ("uvicorn.error", "litestar", "httpx", "some.library"):
            try:
                raise RuntimeError(f"connect to http://h/?key={CANARY}")
            except RuntimeError:
                logging.getLogger(name).exception("failed with %s", CANARY)
    finally:
        logger.close()
    text = stream.getvalue()
    assert CANARY not in text
    assert text.count("[redacted]") >= 12
    assert "RuntimeError" in text  # the traceback is there, cleaned


def test_b34_the_pretty_form_is_as_clean_and_no_client_can_forge_a_line() -> None:
    stream = io.StringIO()
    logger = configure("info", stream, redact, pretty=True, capture=False)
    logger.served(served(model=f"m\n2026-01-01 [info] forged\x1b[2J {CANARY}", detail="a\rb"))
    logger.close()
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert CANARY not in text
    assert "\x1b[2J" not in text
    assert "\r" not in text
    assert "\\x0aforged" not in text
    assert "forged" in text


def test_libraries_write_into_our_log_and_get_their_loggers_back() -> None:
    stream = io.StringIO()
    source = logging.getLogger("uvicorn.error")
    before = (source.handlers[:], source.propagate, source.level, logging.getLogger().handlers[:])
    logger = configure("info", stream, redact)
    source.info("Started server process")
    source.log(35, "an odd level")
    logging.getLogger("httpx").warning("slow %s", "pool")
    logger.close()
    said = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["event"], line["level"]) for line in said] == [("an odd level", "warning"), ("slow pool", "warning")]
    assert said[1]["source"] == "httpx"
    assert (source.handlers, source.propagate, source.level, logging.getLogger().handlers) == before


class Stuck(io.StringIO):
    """A stream whose reader has gone to lunch."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.released = threading.Event()

    def write(self, text: str) -> int:
        self.entered.set()
        assert self.released.wait(30)
        return super().write(text)


def test_a_reader_that_stands_still_costs_lines_and_not_calls() -> None:
    stream = Stuck()
    logger = configure("info", stream, redact, capture=False, room=5)
    logger.served(served())
    assert stream.entered.wait(30)
    for _ in range(20):
        logger.served(served())  # returns although nothing can be written
    assert logger.dropped == 15
    stream.released.set()
    logger.close()
    assert len(stream.getvalue().splitlines()) == 6


def test_a_closed_stream_is_counted_and_ends_nothing() -> None:
    stream = io.StringIO()
    logger = configure("info", stream, redact, capture=False)
    stream.close()
    logger.served(served())
    logger.close()
    assert logger.dropped == 1
    logger.close()
    logger.event("late")
    assert logger.dropped == 2


def test_an_unknown_level_is_refused_and_named() -> None:
    with pytest.raises(ValueError, match="'loud' is none of debug"):
        configure("loud", io.StringIO(), redact)
