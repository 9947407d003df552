"""Answers of engines on their way to the client: what has to be otherwise is edited, the rest stays byte for byte.

`StreamEditor` takes the events of a stream, `edit_answer` a whole JSON answer. Both say in a `Mark` what the bytes
mean. Edited are: `model` (the public name), `id` (one per stream), finish reasons and tool-call indexes, where they
are not OpenAI's, and the usage chunk (the gateway always asks for it, the client sees it only where it asked).

Most chunks of a stream differ from the one before in their text alone. So the bytes around the text of a chunk that
was read are learnt, and a chunk with the same bytes around another text is known to mean the same: it is neither
parsed nor searched. Anything else is taken apart.
"""

from __future__ import annotations

import re

import msgspec

from engines.choices import Choices, index_of
from engines.classify import classify_event
from engines.contract import ORDINARY, Call, Mark, Timings, Usage
from engines.counts import add_usages, encode_usage, read_timings, read_usage
from engines.dialect import Dialect
from engines.errors import EngineError, Faulted, Lost, Malformed, Refused
from engines.rawjson import Fields, encode, is_null, join_array, join_object, read_array, read_object

__all__ = ["StreamEditor", "edit_answer", "error_event"]

_DONE = b"data: [DONE]\n\n"
# The members that hold generated text. A quote inside a JSON string is always escaped, so `"content":"` is a member.
_TEXTS = re.compile(
    rb'"(?:content|text|reasoning|reasoning_content|refusal|arguments)"\s*:\s*"([^"\\]*+(?:\\.[^"\\]*+)*+)"'
)
_INSIDE_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+').fullmatch

_Template = tuple[bytes, bytes, int, bytes, bytes]
"""Bytes before and after the text as the engine writes them, their length together, and as the client gets them."""


class StreamEditor:
    """Edits one stream, event by event.

    After `[DONE]` or an error event the stream is over, and what still comes is ignored.
    """

    def __init__(self, call: Call, dialect: Dialect) -> None:
        self._call = call
        self._choices = Choices(call, "delta" if call.kind == "chat" else None)
        self._model = encode(call.model)
        self._id: bytes | None = None
        self._per_prompt = _integer_field(call, "n", 1)
        self._continuous = call.include_usage and _wants_continuous(call)
        self._usage: tuple[Usage, bytes] | None = None  # of the usage-only chunk: what counts
        self._usages: dict[int, tuple[Usage, bytes]] = {}  # by choice, from chunks with choices
        self._usage_chunk: bytes | None = None
        self._frame: Fields = {}  # id, object, created and model of the last chunk
        self._over = False
        self._templates: list[_Template] = []
        self._most_templates = 0 if "logprobs" in call.fields else min(2 * call.sequences, 16)

    def feed(self, payload: bytes) -> tuple[bytes, Mark] | None:
        """Take one event's payload; returns the block to send on and what it means, None where it means nothing.

        A block may be empty where only its mark matters (a usage chunk that the client did not ask for). Usage in
        marks is a running total: the last one counts.

        Raises Malformed where the event is no JSON object, or where `[DONE]` comes before the finish.
        """
        if b"\n" in payload:
            payload = payload.replace(b"\n", b" ")  # between members only: inside a string it would be escaped
        for head, tail, around, new_head, new_tail in self._templates:
            if payload.startswith(head) and payload.endswith(tail) and len(payload) > around:
                text = payload[len(head) : len(payload) - len(tail)]
                if (b"\\" in text or b'"' in text) and _INSIDE_STRING(text) is None:
                    break
                return new_head + text + new_tail, ORDINARY
        return None if self._over else self._read(payload)

    def close(self) -> tuple[bytes, Mark] | None:
        """The connection ended in order. Returns the end that the engine left out, None where there is nothing to add.

        Raises Lost where some choice has no finish reason: none is invented.
        """
        if self._over:
            return None
        if not self._choices.finished(self._call.sequences):
            raise Lost("The engine's stream ended without a finish reason.")
        return self._done()

    def _read(self, payload: bytes) -> tuple[bytes, Mark] | None:
        if payload.strip() == b"[DONE]":
            if not self._choices.finished(1):
                raise Malformed("The engine ended its stream without a finish reason.")
            return self._done()
        fields = read_object(payload)
        if _says_error(fields):
            return self._fail(classify_event(payload))
        edited = self._edit_names(fields)
        timings = read_timings(fields.get("timings"))
        choices = [] if is_null(fields.get("choices")) else read_array(fields["choices"])
        if not choices:
            return self._without_choices(fields, timings)
        try:
            changed, token, finish = self._edit_choices(choices)
        except Faulted as error:
            return self._fail(error)
        usage, removed = self._take_usage(fields, choices)
        if changed:
            fields["choices"] = join_array(join_object(choice) for choice in choices)
        out = join_object(fields) if edited or removed or changed else payload
        self._frame = fields
        block = b"data: " + out + b"\n\n"
        if token and finish is None and usage is None and timings is None:
            if not self._choices.moved:  # a delta that opens a tool call says more than those that go on with it
                self._learn(payload, block)
            return block, ORDINARY
        end = finish is not None and self._choices.finished(self._call.sequences)
        return block, Mark(token=token, terminal=end, finish=finish, usage=usage, timings=timings)

    def _edit_names(self, fields: Fields) -> bool:
        """Set the model's name and the stream's one id."""
        given = bytes(fields.get("id", b"null"))
        if self._id is None:
            named = len(given) > 2 and given.startswith(b'"')
            self._id = given if named else encode(_own_id(self._call))
        edited = given != self._id or bytes(fields.get("model", b"null")) != self._model
        fields["id"] = self._id
        fields["model"] = self._model
        return edited

    def _edit_choices(self, choices: list[Fields]) -> tuple[bool, bool, str | None]:
        changed = token = False
        finish: str | None = None
        self._choices.moved = False
        for choice in choices:
            one_changed, one_token, one_finish = self._choices.edit(choice)
            changed |= one_changed
            token |= one_token
            finish = finish or one_finish
        if self._choices.moved:
            self._templates.clear()
        return changed, token, finish

    def _take_usage(self, fields: Fields, choices: list[Fields]) -> tuple[Usage | None, bool]:
        """Usage on a chunk with choices: kept for the usage chunk, and taken out unless the client wants it there."""
        raw = fields.get("usage")
        usage = None if is_null(raw) else read_usage(raw)
        if raw is None or usage is None:
            return None, False
        self._usages[index_of(choices[0])] = usage, bytes(raw)
        if not self._continuous:
            del fields["usage"]
        return self._total(), not self._continuous

    def _without_choices(self, fields: Fields, timings: Timings | None) -> tuple[bytes, Mark] | None:
        raw = fields.get("usage")
        usage = None if is_null(raw) else read_usage(raw)
        if raw is not None and usage is not None:
            self._usage = usage, bytes(raw)
            if is_null(fields.get("choices")):
                fields["choices"] = b"[]"
            self._usage_chunk = join_object(fields)
        if usage is None and timings is None:
            return None
        return b"", Mark(events=0, usage=usage, timings=timings)

    def _total(self) -> Usage | None:
        if self._usage is not None:
            return self._usage[0]
        if not self._usages:
            return None
        prompts: set[int] = set()
        counted = []
        for index, (usage, _) in sorted(self._usages.items()):
            prompt = index // self._per_prompt
            counted.append((usage, prompt not in prompts))
            prompts.add(prompt)
        return add_usages(counted)

    def _done(self) -> tuple[bytes, Mark]:
        self._over = True
        self._templates.clear()
        usage = self._total()
        if usage is None or not self._call.include_usage:
            return _DONE, Mark(terminal=True, usage=usage)
        chunk = self._usage_chunk
        if chunk is None:
            raws = [raw for _, raw in self._usages.values()]
            frame: Fields = {}
            for name in ("id", "object", "created", "model"):
                if name in self._frame:
                    frame[name] = self._frame[name]
            frame["choices"] = b"[]"
            frame["usage"] = raws[0] if len(raws) == 1 else encode_usage(usage)
            chunk = join_object(frame)
        return b"data: " + chunk + b"\n\n" + _DONE, Mark(events=2, terminal=True, usage=usage)

    def _fail(self, error: EngineError) -> tuple[bytes, Mark]:
        self._over = True
        self._templates.clear()
        return error_event(error), Mark(terminal=True, usage=self._total(), error=error)

    def _learn(self, payload: bytes, block: bytes) -> None:
        if not self._most_templates:
            return
        before = [match.span(1) for match in _TEXTS.finditer(payload) if match.end(1) > match.start(1)]
        after = [match.span(1) for match in _TEXTS.finditer(block) if match.end(1) > match.start(1)]
        if len(before) != 1 or len(after) != 1:
            return
        (start, end), (new_start, new_end) = before[0], after[0]
        around = len(payload) - (end - start)
        self._templates.insert(0, (payload[:start], payload[end:], around, block[:new_start], block[new_end:]))
        del self._templates[self._most_templates :]


def edit_answer(call: Call, body: bytes, dialect: Dialect) -> tuple[bytes, Mark]:
    """A whole JSON answer in OpenAI's form, with the public model name, and what it means.

    Only the level that is edited is taken apart, so an answer of several MB of embeddings is not decoded.

    Raises Malformed where `body` is no such answer (HTML, empty, no choices), and the engine's error where it holds
    one in spite of its 200.
    """
    fields = read_object(body)
    if _says_error(fields):
        raise classify_event(body)
    edited = bytes(fields.get("model", b"null")) != encode(call.model)
    fields["model"] = encode(call.model)
    usage, timings = read_usage(fields.get("usage")), read_timings(fields.get("timings"))
    if call.kind == "embeddings":
        if "data" not in fields or not bytes(memoryview(fields["data"])[:1]) == b"[":
            raise Malformed("The engine's answer holds no embeddings.", detail=_excerpt(body))
        return (join_object(fields) if edited else body), Mark(terminal=True, usage=usage, timings=timings)
    if len(bytes(fields.get("id", b'""'))) <= 2 or is_null(fields["id"]):
        fields["id"] = encode(_own_id(call))
        edited = True
    choices = [] if is_null(fields.get("choices")) else read_array(fields["choices"])
    if not choices:
        raise Malformed("The engine's answer holds no choices.", detail=_excerpt(body))
    state = Choices(call, "message" if call.kind == "chat" else None)
    changed = token = False
    finish: str | None = None
    for choice in choices:
        one_changed, one_token, one_finish = state.edit(choice)
        changed |= one_changed
        token |= one_token
        finish = finish or one_finish
    if changed:
        fields["choices"] = join_array(join_object(choice) for choice in choices)
    out = join_object(fields) if edited or changed else body
    return out, Mark(token=token, terminal=True, finish=finish, usage=usage, timings=timings)


def error_event(error: EngineError) -> bytes:
    """The event that tells an error to a client whose stream has begun, in OpenAI's shape."""
    kind = "invalid_request_error" if isinstance(error, Refused) else "server_error"
    code = error.code or (str(error.status) if error.status is not None else None)
    said = {"message": error.message, "type": kind, "param": error.param, "code": code}
    return b"data: " + encode({"error": said}) + b"\n\n"


def _says_error(fields: Fields) -> bool:
    if not is_null(fields.get("error")):
        return True
    return "choices" not in fields and bytes(fields.get("object", b"")) == b'"error"'


def _own_id(call: Call) -> str:
    return f"{'chatcmpl' if call.kind == 'chat' else 'cmpl'}-{call.id}"


def _wants_continuous(call: Call) -> bool:
    options = call.fields.get("stream_options")
    return options is not None and bytes(read_object(options).get("continuous_usage_stats", b"")) == b"true"


def _integer_field(call: Call, name: str, otherwise: int) -> int:
    try:
        value = msgspec.json.decode(call.fields.get(name, b""), type=int)
    except msgspec.DecodeError:
        return otherwise
    return max(value, 1)


def _excerpt(body: bytes) -> str:
    return body[:400].decode("utf-8", "replace")
