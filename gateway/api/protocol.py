"""The HTTP/1.1 server's edge: uvicorn's protocol, made safe against what is sent to it and plain in what it refuses.

What uvicorn 0.54 leaves open and this closes:

- malformed HTTP, over-long URLs and header sections, heads that dribble: OpenAI's envelope, then the connection ends;
- a request refused before its body's end: `Connection: close`, and the rest is not read (uvicorn swallows it);
- a lost connection is told to the call being served, also where a later pipelined request was read already;
- header and trailer bytes are bounded while they arrive (the parser keeps them all until a header is complete);
- a client that reads nothing of its answer is let go after a while;
- `Transfer-Encoding` other than `chunked`; streams to HTTP/1.0 clients, which know no chunks;
- offers to upgrade are passed over. (The parser takes such a request for one without a body; Java's own client makes
  the offer with every request, so that its bodies are lost.)

A connection that ends early *lingers*: its answer is sent and its sending half closed, then up to a bound is read and
thrown away. Closing at once would make the kernel send a reset, which can take the answer from the client's hands.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gateway.api.client import new_id
from gateway.errors import BrokenHttp, GatewayError, HeadTooLarge, TooSlow, UrlTooLong, render

__all__ = ["EdgeProtocol"]

Message = dict[str, Any]
App = Callable[..., Awaitable[None]]


class EdgeProtocol(HttpToolsProtocol):
    """One connection. The limits are class attributes, so that a subclass can set its own.

    Attributes:
        head_limit: bytes of a request line with its headers (and of trailers).
        url_limit: bytes of a request's target.
        head_timeout: seconds from a head's first byte, or from connecting, to its last byte.
        linger: seconds that an ended connection is kept for the client to read its answer.
        linger_bytes: what is read and thrown away meanwhile.
        unread: seconds that an answer may wait for a client that reads none of it; its engine's slot waits with it.
        pipelined: requests that may be read ahead of their turn; then reading stops.
    """

    head_limit = 65_536
    url_limit = 8_192
    head_timeout = 30.0
    linger = 2.0
    linger_bytes = 1_048_576
    unread = 60.0
    pipelined = 4

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._serving: RequestResponseCycle | None = None
        self._in_head = False
        self._resuming = False  # a new parser is being led into the body of a request that offered to upgrade
        self._framing = b""  # the header that says that the message has a body
        self._head_bytes = 0
        self._barren = 0  # bytes since the parser last came forward
        self._moved = False
        self._discarded = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._leaving: asyncio.TimerHandle | None = None
        self._blocked: asyncio.TimerHandle | None = None

    # --- the connection -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head_timer = self.loop.call_later(self.head_timeout, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._head_timer, self._leaving, self._blocked):
            if timer is not None:
                timer.cancel()
        serving = self._open_cycle()
        if serving is not None:
            # uvicorn tells only the request that was read last.
            serving.disconnected = True
            serving.message_event.set()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._blocked = self.loop.call_later(self.unread, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._blocked is not None:
            self._blocked.cancel()
            self._blocked = None

    def data_received(self, data: bytes) -> None:
        if self._leaving is not None:
            self._discard(data)
            return
        self._unset_keepalive_if_required()
        self._moved = False
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(cause if isinstance(cause, GatewayError) else BrokenHttp("This is not valid HTTP/1.1."))
            return
        self._barren = 0 if self._moved else self._barren + len(data)
        if self._barren > self.head_limit:
            self._refuse(self._head_too_large())
        elif self._head_timer is None and (self._in_head or self._open_cycle() is None):
            self._head_timer = self.loop.call_later(self.head_timeout, self._head_is_late)

    def _feed(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                self.parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as offer:
                rest = rest[offer.args[0] :]
            if self._framing and self.cycle.more_body:
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
                self._resuming = True
                self.parser.feed_data(b"POST / HTTP/1.1\r\n" + self._framing + b"\r\n\r\n")
                self._resuming = False

    # --- the parser's callbacks -----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._resuming:
            return
        super().on_message_begin()
        self._in_head = self._moved = True
        self._framing = b""
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        if self._resuming:
            return
        super().on_url(url)
        self._head_bytes += len(url)
        if len(self.url) > self.url_limit:
            raise UrlTooLong(f"The request's target is over this gateway's limit of {self.url_limit:,} bytes.")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > self.head_limit:
            raise self._head_too_large()
        if not self._in_head:
            return  # a trailer: nothing here has a use for one, and it must not pass for a header
        super().on_header(name, value)
        lower = name.lower()
        if lower == b"transfer-encoding":
            if value.strip().lower() != b"chunked":
                raise BrokenHttp("`Transfer-Encoding` must be `chunked` and nothing else.")
            self._framing = b"transfer-encoding: chunked"
        elif lower == b"content-length" and value.strip(b"0 "):
            self._framing = b"content-length: " + value

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._moved = True
        if self._resuming:
            return
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        super().on_headers_complete()
        if 0 < len(self.pipeline) < self.pipelined:
            # uvicorn stops reading at the first; a loss of the connection would then go unseen.
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        self._moved = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._moved = True
        if self._framing and self.parser.should_upgrade():
            return  # only the parser thinks so
        super().on_message_complete()

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing to warn of: uvicorn would tell of missing websocket libraries at every offer."""

    # --- serving --------------------------------------------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._serving = cycle
        if cycle.more_body and self._framing:
            app = self._guard(cycle, app)
        super()._start_asgi_task(cycle, app)

    def _guard(self, cycle: RequestResponseCycle, app: App) -> App:
        """Wrap the app for a request with a body, to end the connection where the answer comes before the body does."""

        async def guarded(scope: Message, receive: Any, send: Any) -> None:
            early = unframed = False

            async def pass_on(message: Message) -> None:
                nonlocal early, unframed
                if message["type"] == "http.response.start":
                    headers = list(message.get("headers", ()))
                    if scope["http_version"] == "1.0" and all(name != b"content-length" for name, _ in headers):
                        # The end of the connection is the end of the answer.
                        unframed = True
                        cycle.chunked_encoding = False
                    early = cycle.more_body
                    if early:
                        headers.append((b"connection", b"close"))
                    await send({**message, "headers": headers})
                    if early:
                        cycle.keep_alive = True  # else uvicorn closes the transport itself, without lingering
                    return
                if unframed:
                    cycle.expected_content_length = len(message.get("body", b""))
                await send(message)
                if early and not message.get("more_body", False):
                    self._leave()

            await app(scope, receive, pass_on)

        return guarded

    def _open_cycle(self) -> RequestResponseCycle | None:
        """The request that is being answered now."""
        serving = self._serving
        return serving if serving is not None and not serving.response_complete else None

    # --- refusing and ending --------------------------------------------------------------------------------------

    def _refuse(self, exc: GatewayError) -> None:
        """Answer below ASGI, where that cannot be taken for the answer to another request, and end the connection."""
        if self.transport.is_closing() or self._leaving is not None:
            return
        cycle = self._open_cycle()
        if cycle is not None:
            own = cycle is self.cycle and cycle.more_body and not self._in_head
            if not own or cycle.response_started:
                self.transport.close()
                return
            cycle.disconnected = True
            cycle.message_event.set()
        status, headers, body = render(exc)
        lines = [STATUS_LINE[status]]
        for name, value in self.server_state.default_headers:
            lines.append(name + b": " + value + b"\r\n")
        for key, text in (*headers, ("x-request-id", new_id()), ("connection", "close")):
            lines.append(f"{key}: {text}\r\n".encode("latin-1"))
        self.transport.write(b"".join((*lines, b"\r\n", body)))
        self._leave()

    def _head_too_large(self) -> HeadTooLarge:
        return HeadTooLarge(f"The header section is over this gateway's limit of {self.head_limit:,} bytes.")

    def _head_is_late(self) -> None:
        self._head_timer = None
        cycle = self._open_cycle()
        if cycle is not None:
            cycle.keep_alive = False
        elif self._in_head:
            self._refuse(TooSlow(f"The request's head did not arrive within {self.head_timeout:g} seconds."))
        elif not self.transport.is_closing():
            self.transport.close()

    def _leave(self) -> None:
        if self.transport.is_closing() or self._leaving is not None:
            return
        self._unset_keepalive_if_required()
        self._leaving = self.loop.call_later(self.linger, self.transport.abort)
        if self.transport.can_write_eof():
            with contextlib.suppress(OSError):  # the client has closed already
                self.transport.write_eof()
        self.flow.resume_reading()

    def _discard(self, data: bytes) -> None:
        self._discarded += len(data)
        if self._discarded > self.linger_bytes:
            self.flow.pause_reading()
