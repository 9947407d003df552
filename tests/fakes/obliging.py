"""This is a fake: a vLLM that does what a client asks of it, for clients that check what they get.

Beside what `FakeVllm` does: tools that must be called are called, one call each, in the bytes of a recorded call; a
JSON schema gets an instance; logprobs and both caps on tokens are kept; an answer of a thousand tokens and more comes
slowly, and ends when its client leaves.
"""

from __future__ import annotations

import copy
import json
from typing import Any

from tests.fakes.engine import Json, captured, captured_events, compact
from tests.fakes.server import Peer, chunked
from tests.fakes.vllm import FakeVllm

__all__ = ["ObligingVllm"]

_LONG = 1_000  # tokens
_CONTEXT = 4_096  # tokens, by four bytes each


class ObligingVllm(FakeVllm):
    """Answers with text, tool calls or JSON, as it is asked."""

    def chat_events(self, body: Json) -> list[bytes]:
        tools = _called(body)
        if not tools:
            events = self._said(body, super().chat_events)
            if not body.get("logprobs"):
                return events
            return [self._with_logprobs(event) if b'"content":"' in event else event for event in events]
        role, *_ = captured_events("vllm/tools_required_stream")
        name, brace, *_, last = [each for each in captured_events("vllm/tools_required_stream") if each["choices"]][1:]
        told = [role]
        for index, tool in enumerate(tools):
            head = copy.deepcopy(name)
            (call,) = head["choices"][0]["delta"]["tool_calls"]
            call |= {"id": f"{call['id']}-{index}", "index": index, "function": {"name": tool["function"]["name"]}}
            told.append(head)
            text = json.dumps(_instance(tool["function"].get("parameters", {})))
            for start in range(0, len(text), self.piece):
                part = copy.deepcopy(brace)
                piece = {"index": index, "function": {"arguments": text[start : start + self.piece]}}
                part["choices"][0]["delta"]["tool_calls"] = [piece]
                told.append(part)
        told.append(last)
        usage = captured_events("vllm/chat_stream_usage")[-1]
        if self.asks_usage(body):
            told.append({**usage, "usage": self.usage(usage["usage"])})
        return [*(self.frame(compact({**event, "model": self.model})) for event in told), self.done]

    def chat_answer(self, body: Json) -> Json:
        tools = _called(body)
        if not tools:
            answer = self._said(body, super().chat_answer)
            if body.get("logprobs"):
                tokens = [self._logprob(piece) for piece in self.pieces]
                answer["choices"][0]["logprobs"] = {"content": tokens}
            return answer
        answer = json.loads(captured("vllm/tools_required")[2])
        answer["model"] = self.model
        message = answer["choices"][0]["message"]
        (call,) = message["tool_calls"]
        message["tool_calls"] = [
            {
                **call,
                "id": f"{call['id']}-{index}",
                "function": {
                    "name": tool["function"]["name"],
                    "arguments": json.dumps(_instance(tool["function"].get("parameters", {}))),
                },
            }
            for index, tool in enumerate(tools)
        ]
        if isinstance(body["tool_choice"], dict):
            answer["choices"][0]["finish_reason"] = "stop"  # as vLLM says it of a named function
        return answer

    def completion_events(self, body: Json) -> list[bytes]:
        return self._said(body, super().completion_events)

    def completion_answer(self, body: Json) -> Json:
        return self._said(body, super().completion_answer)

    def refusal(self, body: Json) -> bytes | None:
        if len(json.dumps(body)) > 4 * _CONTEXT:
            return self.too_long()
        return super().refusal(body)

    async def _generate(self, peer: Peer) -> None:
        body = peer.request.json
        if not body.get("stream") and _cap(body) >= _LONG:
            await peer.hang()
        else:
            await super()._generate(peer)

    async def _stream(self, peer: Peer, body: Json) -> None:
        if _cap(body) < _LONG:
            await super()._stream(peer, body)
            return
        head, content, *_ = self.chat_events(body)
        await peer.send(self.sse_head)
        await peer.send(chunked(head))
        await peer.send(chunked(content))
        await peer.hang()

    def _said(self, body: Json, make: Any) -> Any:
        """What `make(body)` gives with this body's text in place of the usual one."""
        usual = self.text, self.finish
        wanted = body.get("response_format") or {}
        if wanted.get("type") == "json_schema":
            self.text = json.dumps(_instance(wanted["json_schema"]["schema"]))
        elif wanted.get("type") == "json_object":
            self.text = '{"colour": "red"}'
        if len(self.pieces) > _cap(body):
            self.text, self.finish = "".join(self.pieces[: _cap(body)]), "length"
        try:
            return make(body)
        finally:
            self.text, self.finish = usual

    def _with_logprobs(self, event: bytes) -> bytes:
        chunk = json.loads(event.removeprefix(b"data: "))
        chunk["choices"][0]["logprobs"] = {"content": [self._logprob(chunk["choices"][0]["delta"]["content"])]}
        return self.frame(compact(chunk))

    def _logprob(self, piece: str) -> Json:
        token: Json = {"token": piece, "logprob": -0.5, "bytes": list(piece.encode())}
        return {**token, "top_logprobs": [token, {**token, "logprob": -1.5}]}


def _cap(body: Json) -> int:
    return int(body.get("max_completion_tokens") or body.get("max_tokens") or _LONG - 1)


def _called(body: Json) -> list[Json]:
    """The tools that this request makes the model call."""
    choice = body.get("tool_choice", "auto")
    tools: list[Json] = body.get("tools") or []
    if isinstance(choice, dict):
        return [tool for tool in tools if tool["function"]["name"] == choice["function"]["name"]]
    return tools if choice == "required" else []


def _instance(schema: Json) -> Any:
    """Something that the schema allows."""
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type", "object")
    if kind == "object":
        return {name: _instance(each) for name, each in schema.get("properties", {}).items()}
    return {"string": "Paris", "integer": 3, "number": 0.5, "boolean": True, "array": []}.get(str(kind))
