"""This is a fake: TensorRT-LLM's `trtllm-serve`, which cannot run here, written from its contract (1.0 to 1.2).

What is true to it: unknown fields are refused with 400 and a string for an error, the first chat event has a blank
before its line end, every chunk has an id of its own (older builds), the usage chunk carries nulls, and a failure
within a stream breaks the connection off without a word.
"""

from __future__ import annotations

from itertools import count

from tests.fakes.engine import FakeEngine, Json, compact
from tests.fakes.server import response

__all__ = ["FakeTensorRtLlm"]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SAMPLING = _words(
    "model frequency_penalty logit_bias logprobs n presence_penalty seed stop stream stream_options temperature top_p "
    "user best_of use_beam_search top_k min_p repetition_penalty length_penalty early_stopping stop_token_ids "
    "include_stop_str_in_output ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens "
    "truncate_prompt_tokens prompt_ignore_length lora_request add_special_tokens response_format max_tokens "
    "disaggregated_params"
)
_ACCEPTED = {
    "/v1/chat/completions": _SAMPLING
    | _words(
        "messages max_completion_tokens top_logprobs tools tool_choice reasoning_effort echo add_generation_prompt "
        "documents chat_template chat_template_kwargs mm_processor_kwargs top_p_min cache_salt"
    ),
    "/v1/completions": _SAMPLING | _words("prompt echo suffix detokenize return_context_logits"),
}


class FakeTensorRtLlm(FakeEngine):
    """trtllm-serve."""

    kind = "tensorrt_llm"
    sse_head = (
        b"HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 19:12:55 GMT\r\nserver: uvicorn\r\n"
        b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
    )

    def chat_events(self, body: Json) -> list[bytes]:
        ids = count(7)
        first = self._chunk(f"chatcmpl-{next(ids)}", "chat.completion.chunk", body)
        first["choices"] = [{"index": 0, "delta": {"role": "assistant"}}]
        framed = [b"data: " + compact(first) + b" \n\n"]  # the blank is theirs
        for piece in [*self.pieces, None]:
            chunk = self._chunk(f"chatcmpl-{next(ids)}", "chat.completion.chunk", body)
            delta = {"content": piece or "", "reasoning_content": ""}
            choice: Json = {"index": 0, "delta": delta, "avg_decoded_tokens_per_iter": 1.0}
            if piece is None:
                choice["finish_reason"] = self.finish
            framed.append(self.frame(compact({**chunk, "choices": [choice]})))
        return [*framed, *self._tail(f"chatcmpl-{next(ids)}", "chat.completion.chunk", body)]

    def completion_events(self, body: Json) -> list[bytes]:
        ids = count(7)
        framed = []
        for piece in [*self.pieces, None]:
            chunk = self._chunk(f"cmpl-{next(ids)}", "text_completion", body)
            choice = {
                "index": 0,
                "text": piece or "",
                "token_ids": None,
                "logprobs": None,
                "context_logits": None,
                "finish_reason": self.finish if piece is None else None,
                "stop_reason": None,
                "disaggregated_params": None,
                "avg_decoded_tokens_per_iter": 1.0,
            }
            framed.append(self.frame(compact({**chunk, "choices": [choice], "usage": None})))
        return [*framed, *self._tail(f"cmpl-{next(ids)}", "text_completion", body)]

    def chat_answer(self, body: Json) -> Json:
        message: Json = {"role": "assistant", "content": self.text, "reasoning_content": None, "tool_calls": []}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self.finish, "stop_reason": None}
        answer = self._chunk("chatcmpl-7", "chat.completion", body)
        return {**answer, "choices": [choice], "usage": self._usage(), "prompt_token_ids": None}

    def completion_answer(self, body: Json) -> Json:
        choice = {"index": 0, "text": self.text, "logprobs": None, "finish_reason": self.finish, "stop_reason": None}
        return {**self._chunk("cmpl-7", "text_completion", body), "choices": [choice], "usage": self._usage()}

    def embedding_answer(self, body: Json) -> bytes:
        return response(404, {"detail": "Not Found"})

    def models(self) -> Json:
        card = {"id": self.model, "object": "model", "created": 1796065976, "owned_by": "tensorrt_llm"}
        return {"object": "list", "data": [card]}

    def refusal(self, body: Json) -> bytes | None:
        route = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        unknown = sorted(set(body) - _ACCEPTED[route])
        if unknown:
            text = f"1 validation error:\n  {{'type': 'extra_forbidden', 'loc': ('body', '{unknown[0]}'), 'msg': 'Extra inputs are not permitted'}}"  # noqa: E501
            return response(400, {"error": text})
        if "max_tokens" in body and "max_completion_tokens" in body:
            return response(400, {"error": "1 validation error: both max_tokens and max_completion_tokens"})
        if "stream_options" in body and not body.get("stream"):
            return self._flat("stream_options can only be set if stream is true")
        return None

    def broken(self) -> list[bytes] | None:
        return None

    def too_long(self) -> bytes:
        return self._flat("The sum of prompt length (9000.0), query length (0) should not exceed max_num_tokens (8192)")

    def asks_usage(self, body: Json) -> bool:
        options = body.get("stream_options")
        return options is not None and bool(options.get("include_usage", True))

    def _flat(self, message: str) -> bytes:
        return response(
            400, {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400}
        )

    def _usage(self) -> Json:
        return self.usage({"prompt_tokens_details": {"cached_tokens": 0}})

    def _chunk(self, name: str, kind: str, body: Json) -> Json:
        # The model's name is not looked at, and given back.
        return {"id": name, "object": kind, "created": 1796065976, "model": body.get("model", self.model)}

    def _tail(self, name: str, kind: str, body: Json) -> list[bytes]:
        if not self.asks_usage(body):
            return [self.done]
        chunk = {**self._chunk(name, kind, body), "choices": [], "usage": self._usage(), "prompt_token_ids": None}
        return [self.frame(compact(chunk)), self.done]
