"""The worker's end of the line. A thread reads at all times, so that a cancel is heard while the model computes."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable

from engines.embedded_pipe import Cancel, Credit, Deframer, FrameError, Report, Start, encode_frame, read_order

__all__ = ["Mailbox"]

_READ = 1 << 16


class Mailbox:
    """Orders of the gateway, and reports to it.

    Args:
        interrupt: called in the reading thread when a call that may be interrupted was cancelled.
    """

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._news = threading.Condition()
        self._starts: list[Start] = []
        self._credit: dict[int, int] = {}  # of every call that is not over
        self._cancelled: set[int] = set()
        self._interruptible: frozenset[int] = frozenset()
        self._interrupt: Callable[[], None] = lambda: None
        self._changed = False

    def listen(self) -> None:
        """Begin to read. The process ends when the gateway hangs up."""
        threading.Thread(target=self._read, name="mailbox", daemon=True).start()

    def on_cancel(self, interrupt: Callable[[], None]) -> None:
        """Call `interrupt`, in the reading thread, when a call is cancelled that `interruptible` named."""
        self._interrupt = interrupt

    def interruptible(self, calls: frozenset[int]) -> bool:
        """Name the calls for whose cancel the running batch may be broken off. False: one is cancelled already."""
        with self._news:
            self._interruptible = calls
            return not calls & self._cancelled

    def take(self, *, wait: bool) -> list[Start]:
        """The calls that are to begin. `wait`: until anything new was heard since the last time."""
        with self._news:
            while wait and not self._changed:
                self._news.wait()
            self._changed = False
            starts, self._starts = self._starts, []
            return starts

    def is_cancelled(self, call: int) -> bool:
        with self._news:
            return call in self._cancelled

    def credit(self, call: int) -> int:
        """Events of the call that may be sent."""
        with self._news:
            return self._credit.get(call, 0)

    def spend(self, call: int) -> None:
        """One event of the call is sent. Below nought it may go, for the few events that an answer's end takes."""
        with self._news:
            self._credit[call] = self._credit.get(call, 0) - 1

    def forget(self, call: int) -> None:
        """The call is over."""
        with self._news:
            self._credit.pop(call, None)
            self._cancelled.discard(call)

    def send(self, *reports: Report) -> None:
        """Tell the gateway. Blocks while it does not read. One thread only."""
        self._line.sendall(b"".join(encode_frame(report) for report in reports))

    def _read(self) -> None:
        deframer = Deframer()
        try:
            while data := self._line.recv(_READ):
                for frame in deframer.feed(data):
                    self._hear(frame)
        except (OSError, FrameError) as error:
            os.write(2, f"the line to the gateway is broken: {error}\n".encode())
        os._exit(0)  # nobody is there any more whom an orderly end would serve

    def _hear(self, frame: bytes) -> None:
        order = read_order(frame)
        interrupt = False
        with self._news:
            if isinstance(order, Start):
                self._starts.append(order)
                self._credit[order.id] = order.credit
            elif order.id in self._credit:
                if isinstance(order, Credit):
                    self._credit[order.id] += order.events
                elif isinstance(order, Cancel):
                    self._cancelled.add(order.id)
                    interrupt = order.id in self._interruptible
            self._changed = True
            self._news.notify()
        if interrupt:
            self._interrupt()
