"""This is a fake: llama.cpp's `llama-server`, from bytes captured of it."""

from __future__ import annotations

import copy
import json

from tests.fakes.engine import FakeEngine, Json, captured, captured_events, compact
from tests.fakes.server import response

__all__ = ["FakeLlamaCpp"]

_JSON = "application/json; charset=utf-8"


class FakeLlamaCpp(FakeEngine):
    """llama-server: ignores the model's name, states timings, ends a failed stream without `[DONE]`.

    It closes the connection after every stream, although it promises otherwise.
    """

    kind = "llamacpp"
    closes_after_stream = True  # seen of it, in spite of its Keep-Alive header
    sse_head = (
        b"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nAccess-Control-Allow-Origin: \r\nX-Accel-Buffering: no\r\n"
        b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nKeep-Alive: timeout=5, max=100\r\n\r\n"
    )

    def chat_events(self, body: Json) -> list[bytes]:
        asked = self.asks_usage(body)
        role, content, *rest = captured_events("llamacpp/chat_stream_usage" if asked else "llamacpp/chat_stream")
        events = [role]
        for piece in self.pieces:
            events.append(copy.deepcopy(content))
            events[-1]["choices"][0]["delta"]["content"] = piece
        return self._framed([*events, *(rest[-2:] if asked else rest[-1:])])

    def completion_events(self, body: Json) -> list[bytes]:
        content, *_, last = captured_events("llamacpp/completions_stream")
        events = []
        for piece in self.pieces:
            events.append(copy.deepcopy(content))
            events[-1]["choices"][0]["text"] = piece
        return self._framed([*events, last])

    def chat_answer(self, body: Json) -> Json:
        answer = self._whole("llamacpp/chat_nonstream")
        answer["choices"][0]["message"]["content"] = self.text
        return answer

    def completion_answer(self, body: Json) -> Json:
        answer = self._whole("llamacpp/completions_nonstream")
        answer["choices"][0].update(text=self.text, logprobs=None)
        return answer

    def embedding_answer(self, body: Json) -> bytes:
        return response(200, captured("llamacpp/embeddings")[2], _JSON)

    def models(self) -> Json:
        card: Json = json.loads(captured("llamacpp/v1_models")[2])
        card["data"][0]["id"] = self.model
        return card

    def healthy(self) -> bytes:
        return response(200, b'{"status":"ok"}', _JSON)

    def loading(self) -> bytes:
        """A whole response of any route while the model is loading."""
        status, media, raw = captured("llamacpp/health_loading")
        return response(status, raw, media, headers="Connection: close\r\n")

    def broken(self) -> list[bytes] | None:
        return [self.frame(b'{"error":{"code":500,"message":"Context size has been exceeded.","type":"server_error"}}')]

    def too_long(self) -> bytes:
        status, media, raw = captured("llamacpp/err_too_long_stream")
        return response(status, raw, media, headers="Connection: close\r\n")

    def _whole(self, name: str) -> Json:
        answer: Json = json.loads(captured(name)[2])
        answer["model"] = self.model
        answer["choices"][0]["finish_reason"] = self.finish
        answer["usage"] = self.usage(answer["usage"])
        return answer

    def _framed(self, events: list[Json]) -> list[bytes]:
        for event in events:
            event["model"] = self.model
            if event["choices"] and event["choices"][0]["finish_reason"]:
                event["choices"][0]["finish_reason"] = self.finish
            if "usage" in event:
                event["usage"] = self.usage(event["usage"])
        return [*(self.frame(compact(event)) for event in events), self.done]
