"""How much prompt a body holds, without a tokenizer: shape, count, estimated tokens, pictures and sound.

The estimate counts four bytes of ASCII, or three of any other script, as one token, and an escape like `\\uc548` as the
character that it stands for. A picture or a sound counts a fixed number, whatever its bytes.
"""

from __future__ import annotations

import msgspec

from gateway.errors import BadRequest
from gateway.fields import describe

__all__ = ["Prompt", "measure_messages", "measure_prompt", "tokens_in"]

Raw = msgspec.Raw

MEDIA_TOKENS = 600  # of one picture or sound: between a small tile (85) and a large picture (2,000 and more)
SAMPLE = 1024  # bytes of one sample where a long text is not counted whole
SAMPLES = 16


class Prompt(msgspec.Struct, frozen=True):
    """What was found.

    Attributes:
        tokens: the estimate; exact for prompts of token ids.
        count: prompts in the body, 1 on the chat route.
        features: of `Call.features`: "images", "audio", "token_prompt".
    """

    tokens: int
    count: int = 1
    features: frozenset[str] = frozenset()

    def plus(self, tokens: int) -> Prompt:
        """The same prompt with more tokens in it."""
        return msgspec.structs.replace(self, tokens=self.tokens + tokens)


class _Message(msgspec.Struct):
    role: str
    content: Raw = Raw(b"null")


class _Part(msgspec.Struct):
    type: str
    text: Raw = Raw(b'""')


_messages_decoder = msgspec.json.Decoder(list[_Message])
_parts_decoder = msgspec.json.Decoder(list[_Part])
_prompt_decoder = msgspec.json.Decoder(str | list[str | int | list[int]])


def measure_messages(raw: Raw) -> Prompt:
    """Measure a chat's `messages`.

    Raises:
        BadRequest: not a non-empty array of objects with a `role`, or content parts without a `type`.
    """
    try:
        messages = _messages_decoder.decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _bad_messages(raw, error) from None
    if not messages:
        raise BadRequest("`messages` must not be empty.", param="messages", code="empty_array")
    data = media = 0
    features = set()
    for index, message in enumerate(messages):
        content = memoryview(message.content)
        if content[0] != ord("["):
            continue
        try:
            parts = _parts_decoder.decode(content)
        except (msgspec.MsgspecError, RecursionError) as error:
            where = f"messages[{index}].content"
            raise BadRequest(f"`{where}` must be a string or an array of objects: {error}.", param=where) from None
        for part in parts:
            if part.type == "image_url":
                features.add("images")
            elif part.type in ("input_audio", "audio_url"):
                features.add("audio")
            elif part.type == "text":
                continue
            media += 1
        if any(part.type != "text" for part in parts):
            # The parts' own texts count, the media bytes around them do not.
            data += len(content) - sum(len(memoryview(part.text)) for part in parts)
    share = max(0, len(memoryview(raw)) - data) / len(memoryview(raw))
    return Prompt(round(tokens_in(raw) * share) + media * MEDIA_TOKENS, features=frozenset(features))


def measure_prompt(name: str, raw: Raw) -> Prompt:
    """Measure a `prompt` or an `input`: a string, strings, token ids, or lists of token ids.

    Raises:
        BadRequest: it is none of these, or empty.
    """
    try:
        value = _prompt_decoder.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        words = "a string, an array of strings, an array of token ids, or an array of such arrays"
        raise BadRequest(f"`{name}` must be {words}, not {describe(raw)}.", param=name) from None
    empty = not value if name == "input" else value == []
    if empty or (isinstance(value, list) and [] in value):
        raise BadRequest(f"`{name}` must not be empty.", param=name, code="empty_array")
    if isinstance(value, str):
        return Prompt(tokens_in(raw))
    kinds = {type(item) for item in value}
    if len(kinds) > 1:
        raise BadRequest(f"`{name}` must not mix strings and token ids.", param=name)
    if kinds == {str}:
        return Prompt(tokens_in(raw), len(value))
    token_prompt = frozenset({"token_prompt"})
    if kinds == {int}:
        return Prompt(len(value), 1, token_prompt)
    return Prompt(sum(len(item) for item in value if isinstance(item, list)), len(value), token_prompt)


def tokens_in(raw: Raw) -> int:
    """Estimate the tokens of raw JSON. Long texts are sampled, so that the cost stays flat."""
    view = memoryview(raw)
    size = len(view)
    if size <= SAMPLE * SAMPLES:
        return round(_tokens(bytes(view)))
    step = (size - SAMPLE) // (SAMPLES - 1)
    sample = b"".join(view[start : start + SAMPLE] for start in range(0, step * SAMPLES, step))
    return round(_tokens(sample) * size / len(sample))


def _tokens(text: bytes) -> float:
    escapes = text.count(b"\\u")
    # `decode` saves two of the three bytes of most characters outside ASCII, so half as much again is their share.
    other = 0.0 if text.isascii() else 1.5 * (len(text) - len(text.decode(errors="replace")))
    ascii_bytes = max(0.0, len(text) - other - 6 * escapes)
    # Below U+1000 (Cyrillic, Greek, Arabic, ...) characters have two bytes and share tokens more often.
    return ascii_bytes / 4 + other / 3 + escapes - text.count(b"\\u0") / 2


def _bad_messages(raw: Raw, error: Exception) -> BadRequest:
    if bytes(memoryview(raw)[:1]) != b"[":
        return BadRequest(f"`messages` must be an array, not {describe(raw)}.", param="messages")
    return BadRequest(f"`messages` must be an array of objects with a `role`: {error}.", param="messages")
