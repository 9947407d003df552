"""Answers of engines that give text, encoded to OpenAI's wire form: events of a stream, or one whole answer.

The writer is told pieces of text, parts of a tool call, and in the end why the answer ended and what it took. It says
nothing that it was not told: without token counts there is no `usage`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from engines.contract import ORDINARY, Call, Mark, Usage
from engines.counts import encode_usage
from engines.rawjson import encode

__all__ = ["AnswerWriter", "StreamWriter", "WholeWriter", "writer_of"]

_DONE = b"data: [DONE]\n\n"
_EVENT = b"data: "
_END = b"\n\n"


class AnswerWriter:
    """What both forms share. Every method returns a block for the sink and its mark, None where nothing is to be sent.

    Args:
        call: whose answer it is.
        created: Unix time in seconds, as the answer shows it.
    """

    def __init__(self, call: Call, created: int) -> None:
        self._call = call
        self._chat = call.kind == "chat"
        self._id = f"{'chatcmpl' if self._chat else 'cmpl'}-{call.id}"
        self._created = created

    def text(self, piece: str) -> tuple[bytes, Mark] | None:
        """The next piece of the answer's text."""
        raise NotImplementedError

    def tool(self, name: str) -> tuple[bytes, Mark] | None:
        """The answer's one tool call begins."""
        raise NotImplementedError

    def arguments(self, piece: str) -> tuple[bytes, Mark] | None:
        """The next piece of the tool call's arguments."""
        raise NotImplementedError

    def finish(self, reason: str, usage: Usage | None, *, derived: bool, show: bool) -> tuple[bytes, Mark]:
        """The end of the answer.

        Args:
            reason: of OpenAI's finish reasons. derived: the engine did not state it.
            usage: what the record gets. show: the client may see it, too.
        """
        raise NotImplementedError

    def _call_id(self) -> str:
        return f"call_{self._call.id}"

    def _frame(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._call.model}


class StreamWriter(AnswerWriter):
    """A stream: the role first, then deltas, the finish reason, usage where the client asked for it, `[DONE]`."""

    def __init__(self, call: Call, created: int) -> None:
        super().__init__(call, created)
        head = encode(self._frame("chat.completion.chunk" if self._chat else "text_completion"))[:-1]
        self._head = _EVENT + head + b',"choices":[{"index":0,'
        self._before = self._head + (b'"delta":{"content":' if self._chat else b'"text":')
        self._after = (b"}" if self._chat else b"") + b',"logprobs":null,"finish_reason":null}]}' + _END
        self._opened = not self._chat

    def text(self, piece: str) -> tuple[bytes, Mark] | None:
        if not piece:
            return None
        return self._opening(self._before + encode(piece) + self._after)

    def tool(self, name: str) -> tuple[bytes, Mark] | None:
        function = {"name": name, "arguments": ""}
        return self._delta({"index": 0, "id": self._call_id(), "type": "function", "function": function})

    def arguments(self, piece: str) -> tuple[bytes, Mark] | None:
        return self._delta({"index": 0, "function": {"arguments": piece}}) if piece else None

    def finish(self, reason: str, usage: Usage | None, *, derived: bool, show: bool) -> tuple[bytes, Mark]:
        empty = b'"delta":{}' if self._chat else b'"text":""'
        last = self._head + empty + b',"logprobs":null,"finish_reason":' + encode(reason) + b"}]}" + _END
        block, mark = self._opening(last)
        events = mark.events
        if usage is not None and show and self._call.include_usage:
            frame = encode(self._frame("chat.completion.chunk" if self._chat else "text_completion"))[:-1]
            block += _EVENT + frame + b',"choices":[],"usage":' + encode_usage(usage) + b"}" + _END
            events += 1
        return block + _DONE, Mark(events=events + 1, terminal=True, finish=reason, derived=derived, usage=usage)

    def _delta(self, call: dict[str, Any]) -> tuple[bytes, Mark]:
        delta = encode({"tool_calls": [call]})
        return self._opening(self._head + b'"delta":' + delta + b',"logprobs":null,"finish_reason":null}]}' + _END)

    def _opening(self, event: bytes) -> tuple[bytes, Mark]:
        """The event, with the role's own before the first one."""
        if self._opened:
            return event, ORDINARY
        self._opened = True
        role = self._head + b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}' + _END
        return role + event, Mark(events=2, token=True)


class WholeWriter(AnswerWriter):
    """One JSON answer, sent when it is complete."""

    def __init__(self, call: Call, created: int) -> None:
        super().__init__(call, created)
        self._text: list[str] = []
        self._tool: str | None = None
        self._arguments: list[str] = []

    def text(self, piece: str) -> None:
        self._text.append(piece)

    def tool(self, name: str) -> None:
        self._tool = name

    def arguments(self, piece: str) -> None:
        self._arguments.append(piece)

    def finish(self, reason: str, usage: Usage | None, *, derived: bool, show: bool) -> tuple[bytes, Mark]:
        text = "".join(self._text)
        choice: dict[str, Any] = {"index": 0}
        if self._chat:
            choice["message"] = {"role": "assistant", "content": text}
            if self._tool is not None:
                function = {"name": self._tool, "arguments": "".join(self._arguments)}
                call = {"id": self._call_id(), "type": "function", "function": function}
                choice["message"] = {"role": "assistant", "content": text or None, "tool_calls": [call]}
        else:
            choice["text"] = text
        choice |= {"logprobs": None, "finish_reason": reason}
        answer = self._frame("chat.completion" if self._chat else "text_completion")
        answer["choices"] = [choice]
        if usage is not None and show:
            answer["usage"] = msgspec.Raw(encode_usage(usage))
        token = bool(text) or self._tool is not None
        mark = Mark(token=token, terminal=True, finish=reason, derived=derived, usage=usage)
        return encode(answer), mark


def writer_of(call: Call, created: int) -> AnswerWriter:
    """The writer for the form that the call wants."""
    return StreamWriter(call, created) if call.stream else WholeWriter(call, created)
