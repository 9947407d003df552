"""This is a fake: Hugging Face's text-generation-inference 3.3, which cannot run here, written from its contract.

What is true to it: `data:` without a space, comments as keep-alive, an empty `id`, the role in every chunk,
`stop_sequence` and `eos_token` where OpenAI says `stop`, and that every stream answers 200, errors included, with a
constant 422 in the error.
"""

from __future__ import annotations

from tests.fakes.engine import FakeEngine, Json, compact
from tests.fakes.server import response

__all__ = ["FakeTgi"]

_FINGERPRINT = "3.3.7-native"
_TOO_LONG = "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 1024. Given: 1030 `inputs` tokens and 8 `max_new_tokens`"  # noqa: E501 - one sentence of theirs


class FakeTgi(FakeEngine):
    """TGI's router."""

    kind = "tgi"
    done = b"data:[DONE]\n\n"
    sse_head = (
        b"HTTP/1.1 200 OK\r\nx-compute-type: cpu\r\nx-accel-buffering: no\r\nvary: origin\r\n"
        b"content-type: text/event-stream\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
    )

    def frame(self, payload: bytes) -> bytes:
        return b"data:" + payload + b"\n\n"

    def chat_events(self, body: Json) -> list[bytes]:
        refused = self._refused_inside(body)
        if refused is not None:
            return [self._error(refused), self.done]
        pieces = self.pieces
        events = [
            self._chunk(
                "chat.completion.chunk",
                {
                    "index": 0,
                    "delta": {"role": "assistant", "content": piece},
                    "logprobs": None,
                    "finish_reason": self.finish if number == len(pieces) - 1 else None,
                },
                usage=None,
            )
            for number, piece in enumerate(pieces)
        ]
        if self.asks_usage(body):
            events.append({**self._chunk("chat.completion.chunk", None), "usage": self.usage({})})
        return [*(self.frame(compact(event)) for event in events), self.done]

    def completion_events(self, body: Json) -> list[bytes]:
        refused = self._refused_inside(body)
        if refused is not None:
            return [self._error(refused), self.done]
        events = [
            self._chunk("text_completion", {"index": 0, "text": piece, "logprobs": None, "finish_reason": ""})
            for piece in self.pieces
        ]
        if events:
            events[-1]["choices"][0]["finish_reason"] = "eos_token" if self.finish == "stop" else self.finish
            events[-1]["usage"] = self.usage({})
        return [*(self.frame(compact(event)) for event in events), self.done]

    def chat_answer(self, body: Json) -> Json:
        message = {"role": "assistant", "content": self.text}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self.finish}
        return {**self._chunk("chat.completion", choice), "usage": self.usage({})}

    def completion_answer(self, body: Json) -> Json:
        choice = {"index": 0, "text": self.text, "logprobs": None, "finish_reason": self.finish}
        return {**self._chunk("text_completion", choice), "usage": self.usage({})}

    def embedding_answer(self, body: Json) -> bytes:
        return response(404, b"", "text/plain")

    def models(self) -> Json:
        card = {"id": self.model, "object": "model", "created": 0, "owned_by": self.model}
        return {"object": "list", "data": [card]}

    def refusal(self, body: Json) -> bytes | None:
        # A stream answers 200 whatever is wrong: see the events.
        refused = None if body.get("stream") else self._refused_inside(body)
        return None if refused is None else response(422, {"error": refused, "error_type": "validation"})

    def overloaded(self) -> bytes:
        """A whole response of a call that does not stream."""
        return response(429, {"error": "Model is overloaded", "error_type": "overloaded"})

    def broken(self) -> list[bytes] | None:
        return [self._error("Request failed during generation: Server error: CANCELLED"), self.done]

    def too_long(self) -> bytes:
        return response(422, {"error": _TOO_LONG, "error_type": "validation"})

    def too_long_inside(self) -> list[bytes]:
        """The payloads of a stream, status 200, that says the same."""
        return [compact({"error": {"message": _TOO_LONG, "http_status_code": 422}})]

    def overloaded_inside(self) -> list[bytes]:
        return [compact({"error": {"message": "Model is overloaded", "http_status_code": 422}})]

    def _refused_inside(self, body: Json) -> str | None:
        if isinstance(body.get("top_p"), int | float) and not 0 < body["top_p"] < 1:
            return "Input validation error: `top_p` must be > 0.0 and < 1.0"
        return None

    def _error(self, message: str) -> bytes:
        return self.frame(compact({"error": {"message": message, "http_status_code": 422}}))

    def _chunk(self, kind: str, choice: Json | None, **extra: object) -> Json:
        return {
            "object": kind,
            "id": "",
            "created": 1796065976,
            "model": self.model,
            "system_fingerprint": _FINGERPRINT,
            "choices": [] if choice is None else [choice],
            **extra,
        }
