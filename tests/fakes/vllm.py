"""This is a fake: vLLM, from bytes captured of vLLM 0.32."""

from __future__ import annotations

import copy
import json
from typing import ClassVar

from tests.fakes.engine import FakeEngine, Json, captured, captured_events, compact
from tests.fakes.server import response

__all__ = ["FakeVllm"]


class FakeVllm(FakeEngine):
    """vLLM's server: strict about the model's name, errors inside streams followed by `[DONE]`."""

    kind = "vllm"
    comment: ClassVar[bytes] = b": keep-alive\n\n"
    sse_head = (
        b"HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 19:12:55 GMT\r\nserver: uvicorn\r\n"
        b"content-type: text/event-stream; charset=utf-8\r\nvary: Origin\r\ntransfer-encoding: chunked\r\n\r\n"
    )

    def chat_events(self, body: Json) -> list[bytes]:
        role, content, *_, finish, usage = captured_events("vllm/chat_stream_usage")
        events = [role]
        for piece in self.pieces:
            events.append(copy.deepcopy(content))
            events[-1]["choices"][0]["delta"]["content"] = piece
        finish["choices"][0]["delta"]["content"] = ""
        return self._framed([*events, finish], usage, body)

    def completion_events(self, body: Json) -> list[bytes]:
        content, *_, finish, usage = captured_events("vllm/completions_stream")
        events = []
        for piece in self.pieces:
            events.append(copy.deepcopy(content))
            events[-1]["choices"][0]["text"] = piece
        finish["choices"][0]["text"] = ""
        return self._framed([*events, finish], usage, body)

    def chat_answer(self, body: Json) -> Json:
        answer = self._whole("vllm/chat")
        answer["choices"][0]["message"]["content"] = self.text
        return answer

    def completion_answer(self, body: Json) -> Json:
        answer = self._whole("vllm/completions")
        answer["choices"][0]["text"] = self.text
        return answer

    def embedding_answer(self, body: Json) -> bytes:
        status, media, raw = captured("vllm/embeddings_err")
        return response(status, raw, media)

    def models(self) -> Json:
        card: Json = json.loads(captured("vllm/models")[2])
        card["data"][0]["id"] = self.model
        return card

    def refusal(self, body: Json) -> bytes | None:
        if body.get("model", self.model) == self.model:
            return None
        status, media, raw = captured("vllm/err_unknown_model")
        return response(status, raw.replace(b"nope", str(body["model"]).encode()), media)

    def broken(self) -> list[bytes] | None:
        error = captured_events("vllm/engine_killed_midstream")[-1]
        return [b"data: " + json.dumps(error).encode() + b"\n\n", self.done]

    def too_long(self) -> bytes:
        status, media, raw = captured("vllm/err_too_long_stream")
        return response(status, raw, media)

    def _whole(self, name: str) -> Json:
        answer: Json = json.loads(captured(name)[2])
        answer["model"] = self.model
        answer["choices"][0]["finish_reason"] = self.finish
        answer["usage"] = self.usage(answer["usage"])
        return answer

    def _framed(self, events: list[Json], usage: Json, body: Json) -> list[bytes]:
        events[-1]["choices"][0]["finish_reason"] = self.finish
        usage["usage"] = self.usage(usage["usage"])
        told = [*events, usage] if self.asks_usage(body) else events
        return [*(self.frame(compact({**event, "model": self.model})) for event in told), self.done]
