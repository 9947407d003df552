"""The log: one structured line per call, and what an operator should know of the house.

A line is JSON, or coloured key=value on a terminal. It holds no prompt and no answer, and every text in it passes
`redact` on its way out, whoever logged it: calls, the house, or the libraries beneath (`capture`).

Lines are made and written by a thread, because a log whose reader is slow must not stop the loop: they wait in a
bounded queue, for a tenth of a second where the reader keeps up, and are dropped and counted when it is full.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TextIO

import structlog

from gateway.contract import Served
from gateway.log_format import call_fields, event_fields, level_of, processors

__all__ = ["Logger", "configure"]

LIBRARIES: Final = ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi", "litestar", "httpx", "aiohttp")
INTERVAL: Final = 0.1


class Logger:
    """Writes the log. Build it with `configure`; `close` it at the end (the interpreter's exit does it too).

    Attributes:
        dropped: lines that the queue had no room for, or that the stream refused.
    """

    def __init__(self, stream: TextIO, redact: Callable[[str], str], *, level: int, pretty: bool, room: int) -> None:
        self.dropped = 0
        self._room = room
        self._level = level
        self._log: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
            structlog.PrintLogger(stream),
            processors=processors(redact, pretty=pretty),
            wrapper_class=structlog.make_filtering_bound_logger(level),
        ).bind()
        self._lines: deque[tuple[float, int, str, Mapping[str, object] | Served]] = deque()
        self._ending = threading.Event()
        self._writer: threading.Thread | None = None
        self._captured: list[tuple[logging.Logger, list[logging.Handler], bool, int]] = []

    def served(self, served: Served) -> None:
        """Log one call. An `Observer`: it neither blocks nor raises."""
        self._queue(level_of(served), "call", served)

    def event(self, what: str, *, level: int = logging.INFO, **fields: object) -> None:
        """Log an operator's event, such as `endpoint_down` or `launch_ready`, with its figures. Any thread may."""
        # Libraries have levels between the five; each counts as the one below it.
        self._queue(min(50, max(10, level // 10 * 10)), what, fields)

    def capture(self, names: tuple[str, ...] = LIBRARIES) -> None:
        """Take over the standard library's loggers of these names, and the root."""
        handler = _Forward(self)
        for name in ("", *names):
            source = logging.getLogger(name)
            self._captured.append((source, source.handlers[:], source.propagate, source.level))
            source.handlers = [] if name else [handler]
            source.propagate = bool(name)
            # A library's chatter is not our operators' business below a warning, whatever our own level is.
            source.setLevel(max(self._level, logging.WARNING) if name else self._level)

    def close(self) -> None:
        """Write what waits (two seconds at most), end the thread, give the standard loggers back. Idempotent."""
        atexit.unregister(self.close)
        for source, handlers, propagate, level in reversed(self._captured):
            source.handlers, source.propagate = handlers, propagate
            source.setLevel(level)
        self._captured.clear()
        self._ending.set()
        if self._writer is not None:
            self._writer.join(timeout=2)

    def _queue(self, level: int, what: str, said: Mapping[str, object] | Served) -> None:
        if level < self._level:
            return
        if len(self._lines) >= self._room or self._ending.is_set():
            self.dropped += 1
            return
        self._lines.append((time.time(), level, what, said))
        if self._writer is None:
            self._writer = threading.Thread(target=self._write, name="enginehouse-log", daemon=True)
            self._writer.start()
            atexit.register(self.close)

    def _write(self) -> None:
        while not self._ending.wait(INTERVAL):
            self._drain()
        self._drain()

    def _drain(self) -> None:
        while self._lines:
            at, level, what, said = self._lines.popleft()
            fields = call_fields(said) if isinstance(said, Served) else event_fields(said)
            when = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
            try:
                self._log.log(level, what, **{"timestamp": when, **fields})
            except (OSError, ValueError):  # the stream is gone or closed, and there is no other place to say so
                self.dropped += 1


def configure(
    level: str | int,
    stream: TextIO,
    redact: Callable[[str], str],
    *,
    pretty: bool | None = None,
    capture: bool = True,
    room: int = 10_000,
) -> Logger:
    """Build the logger.

    Args:
        level: "debug", "info", "warning", "error", or logging's number.
        stream: where lines go.
        redact: makes any text safe to write.
        pretty: key=value with colours; None: where `stream` is a terminal, else JSON.
        capture: route uvicorn, litestar and the HTTP client into it.
        room: lines that may wait to be written.

    Raises:
        ValueError: the level is none of logging's.
    """
    number = level if isinstance(level, int) else logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ValueError(f"log level {level!r} is none of debug, info, warning, error, critical")
    logger = Logger(stream, redact, level=number, pretty=stream.isatty() if pretty is None else pretty, room=room)
    if capture:
        logger.capture()
    return logger


class _Forward(logging.Handler):
    """Hands the standard library's records to the logger."""

    def __init__(self, logger: Logger) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = {"source": record.name}
        if record.exc_info:
            fields["exc_info"] = record.exc_info
        self._logger.event(record.getMessage(), level=record.levelno, **fields)
