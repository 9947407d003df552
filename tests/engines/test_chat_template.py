"""Chat templates as publishers write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jinja2", reason="jinja2 is not installed")

from engines.chat_template import ChatTemplate, load_template
from engines.errors import Refused, Unsupported

CHATML = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def messages(*said: Any) -> bytes:
    return json.dumps([{"role": "user", "content": one} if not isinstance(one, dict) else one for one in said]).encode()


def test_a_template_renders_messages_and_the_opening_of_the_answer() -> None:
    template = ChatTemplate(CHATML, {"bos_token": "<s>"}, adds_bos=False)
    assert template.render(messages(" Hé ")) == "<s><|im_start|>user\n Hé <|im_end|>\n<|im_start|>assistant\n"
    assert template.render(messages("x"), add_generation_prompt=False).endswith("<|im_end|>\n")


@pytest.mark.parametrize(
    ("adds_bos", "engine", "begins"), [(None, True, ""), (True, True, ""), (None, False, "<s>"), (False, True, "<s>")]
)
def test_a_bos_that_the_engines_tokenizer_adds_itself_does_not_stand_twice(
    adds_bos: bool | None, engine: bool, begins: str
) -> None:
    template = ChatTemplate(CHATML, {"bos_token": "<s>"}, adds_bos)
    assert template.render(messages("x"), engine_adds_bos=engine).startswith(begins + "<|im_start|>")


def test_content_parts_are_text_and_arguments_are_objects() -> None:
    template = ChatTemplate(
        "{% for m in messages %}{{ m.content }}|"
        "{% for c in m.tool_calls or [] %}{{ c.function.arguments.city }}{% endfor %}{% endfor %}"
    )
    call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"function": {"name": "w", "arguments": '{"city":"Rom"}'}}],
    }
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    assert template.render(messages(parts, call)) == "a\nb||Rom"


def test_a_picture_is_refused_and_not_left_out() -> None:
    with pytest.raises(Unsupported) as refused:
        ChatTemplate("x").render(
            messages({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]})
        )
    assert refused.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[7].content }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 // 0 }}",
        "{{ nothing.at.all }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% set f = cycler.__init__.__globals__ %}{{ f.os.system('true') }}",
    ],
)
def test_a_template_that_fails_at_messages_refuses_the_request(source: str) -> None:
    with pytest.raises(Refused) as refused:
        ChatTemplate(source).render(messages("x"))
    assert refused.value.status == 400 and refused.value.param == "messages"


def test_what_a_template_says_reaches_the_client() -> None:
    with pytest.raises(Refused, match="roles must alternate"):
        ChatTemplate("{{ raise_exception('roles must alternate') }}").render(messages("x"))


def test_helpers_of_hugging_faces_templates_are_there() -> None:
    source = (
        "{{ {'a': 'é<b>'} | tojson }}{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% break %}{% endfor %}{{ strftime_now('%Y') | length }}"
    )
    assert ChatTemplate(source).render(messages("x", "y")) == '{"a": "é<b>"}x4'


def test_variables_that_a_template_takes_are_known() -> None:
    template = ChatTemplate("{{ reasoning_effort }}{% set mine = 1 %}{{ mine }}")
    assert template.takes("reasoning_effort") and not template.takes("mine") and not template.takes("documents")
    assert template.render(b"[]", reasoning_effort="low") == "low1"


def test_a_template_that_does_not_parse_is_told_at_the_start() -> None:
    with pytest.raises(ValueError, match="`chat_template` does not parse"):
        load_template(None, "{% if %}")


def folder(path: Path, config: object, template: str | None = None) -> str:
    (path / "tokenizer_config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    if template is not None:
        (path / "chat_template.jinja").write_text(template)
    return str(path)


def test_a_tokenizers_folder_gives_template_and_tokens(tmp_path: Path) -> None:
    config = {"chat_template": CHATML, "bos_token": {"content": "<b>"}, "add_bos_token": False}
    found = load_template(folder(tmp_path, config), None)
    assert found is not None and found.render(messages("x")).startswith("<b><|im_start|>")
    found = load_template(folder(tmp_path, config, "{{ bos_token }}file"), None)
    assert found is not None and found.render(messages("x")) == "<b>file"
    found = load_template(str(tmp_path), "{{ bos_token }}inline")
    assert found is not None and found.render(messages("x")) == "<b>inline"
    named = {"chat_template": [{"name": "rag", "template": "no"}, {"name": "default", "template": "yes"}]}
    (tmp_path / "chat_template.jinja").unlink()
    found = load_template(folder(tmp_path, named), None)
    assert found is not None and found.render(messages("x")) == "yes"
    assert load_template(folder(tmp_path, {}), None) is None
    assert load_template(None, None) is None


@pytest.mark.parametrize("config", ["{", "[]", None])
def test_a_folder_that_is_none_is_told_at_the_start(tmp_path: Path, config: str | None) -> None:
    if config is not None:
        folder(tmp_path, config)
    with pytest.raises(ValueError, match="`tokenizer`"):
        load_template(str(tmp_path), None)
