"""Chat templates as model publishers write them (Jinja, in Hugging Face's form), for engines that take text.

Templates run in a sandbox in which nothing can be changed. What a template refuses, or fails at, is the request's
fault: such messages are not what the model was made for.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import msgspec
from jinja2 import meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engines.errors import Refused, Unsupported
from engines.said import safe

__all__ = ["ChatTemplate", "load_template"]


class _Generation(Extension):
    """`{% generation %}` marks what the assistant wrote, for training; here it means its content."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own form

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """One template, ready to render.

    Args:
        source: the template. tokens: `bos_token`, `eos_token` and further special tokens by name.
        adds_bos: the tokenizer itself puts `bos_token` before a text (None: not known).

    Raises:
        ValueError: the template does not parse.
    """

    def __init__(self, source: str, tokens: dict[str, str] | None = None, adds_bos: bool | None = None) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        environment.globals |= {"raise_exception": _raise, "strftime_now": _strftime_now}
        try:
            self._names = meta.find_undeclared_variables(environment.parse(source))
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ValueError(f"`chat_template` does not parse: {error}") from error
        self._tokens = tokens or {}
        self._adds_bos = adds_bos

    def takes(self, name: str) -> bool:
        """The template reads a variable of this name."""
        return name in self._names

    def render(self, messages: bytes, *, engine_adds_bos: bool = True, **variables: Any) -> str:
        """The prompt of these messages.

        Args:
            messages: the request's `messages`, as JSON.
            engine_adds_bos: the engine's tokenizer puts special tokens before the prompt, so that a `bos_token` that
                the template writes would stand twice.
            variables: for the template: `tools`, `add_generation_prompt` and whatever else it takes.

        Raises Refused where the template fails at the messages, Unsupported where they hold more than text.
        """
        values = {"add_generation_prompt": True, "tools": None, "documents": None, **variables, **self._tokens}
        try:
            prompt = self._template.render(messages=_plain(messages), **values)
        except Refused:
            raise
        except Exception as error:
            # A template is a program: at odd messages it fails with whatever error its expressions have.
            said = safe(str(error)) if isinstance(error, jinja2.TemplateError) else ""
            message = f"The model's chat template does not take these messages{': ' + said if said else '.'}"
            raise Refused(message, status=400, param="messages", detail=repr(error)) from error
        bos = self._tokens.get("bos_token")
        if bos and engine_adds_bos and self._adds_bos is not False:
            prompt = prompt.removeprefix(bos)
        return prompt


def load_template(folder: str | None, inline: str | None) -> ChatTemplate | None:
    """The template given inline, else that of a tokenizer's directory; None where there is neither.

    Raises:
        ValueError: naming the option at fault, where a file is missing, is not JSON, or does not parse.
    """
    if folder is None:
        return ChatTemplate(inline) if inline is not None else None
    config = _read_config(Path(folder))
    source = inline if inline is not None else _source(Path(folder), config)
    if source is None:
        return None
    names = ("bos_token", "eos_token", "pad_token", "unk_token")
    tokens = {name: text for name in names if (text := _token(config.get(name))) is not None}
    adds = config.get("add_bos_token")
    return ChatTemplate(source, tokens, adds if isinstance(adds, bool) else None)


def _read_config(folder: Path) -> dict[str, Any]:
    file = folder / "tokenizer_config.json"
    try:
        config = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        raise ValueError("`tokenizer` must be a folder that holds a tokenizer_config.json") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"`tokenizer` holds a tokenizer_config.json that cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ValueError("`tokenizer` holds a tokenizer_config.json that is no object")
    return config


def _source(folder: Path, config: dict[str, Any]) -> str | None:
    """The file `chat_template.jinja`, which newer models have, else the member of the configuration."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text("utf-8")
    given = config.get("chat_template")
    if isinstance(given, list):  # several by name
        by_name = {item.get("name"): item.get("template") for item in given if isinstance(item, dict)}
        given = by_name.get("default")
    return given if isinstance(given, str) else None


def _token(value: Any) -> str | None:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _plain(raw: bytes) -> list[dict[str, Any]]:
    """The messages as templates want them: content as text, arguments of tool calls as objects."""
    try:
        messages = msgspec.json.decode(raw, type=list[dict[str, Any]])
    except msgspec.DecodeError as error:
        raise Refused("`messages` must be an array of objects.", status=400, param="messages") from error
    for message in messages:
        if isinstance(message.get("content"), list):
            message["content"] = "\n".join(_text_part(part) for part in message["content"])
        elif message.get("content") is None:
            message["content"] = ""
        for call in message.get("tool_calls") or ():
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict) and isinstance(function.get("arguments"), str):
                function["arguments"] = _object_or_text(function["arguments"])
    return messages


def _text_part(part: Any) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("text", "refusal", "input_text") and isinstance(text := part.get("text", part.get("refusal")), str):
        return text
    raise Unsupported(
        f"This endpoint takes text only, and a message holds a part of the type {str(kind)[:40]!r}.",
        status=400,
        param="messages",
        code="unsupported_parameter",
    )


def _object_or_text(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, dict) else text


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As Hugging Face's: characters as they are, and nothing escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
