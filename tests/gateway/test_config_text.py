"""Variables, duplicate keys and places in a YAML text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config_text import ConfigError, path_text, read


def value(text: str, **environ: str) -> Any:
    found = read(text, environ)
    assert not found.problems, found.problems
    return found.value


def test_a_variable_stands_inside_a_scalar() -> None:
    assert value('a: "http://${HOST}:${PORT}/v1"', HOST="h", PORT="1") == {"a": "http://h:1/v1"}


@pytest.mark.parametrize(("environ", "want"), [({}, "d"), ({"X": ""}, "d"), ({"X": "x"}, "x")])
def test_a_default_stands_in_for_an_unset_or_empty_variable(environ: dict[str, str], want: str) -> None:
    assert value("a: ${X:-d}", **environ) == {"a": want}


def test_a_default_may_be_empty_and_hold_anything_but_a_brace() -> None:
    assert value('a: ["${X:-}", "${X:-a:-b c}"]') == {"a": ["", "a:-b c"]}


def test_an_unset_variable_is_named_with_its_place() -> None:
    found = read("a: 1\nb: [x, '${VLLM_KEY}']", {})
    (problem,) = found.problems
    assert str(problem) == (
        "b[1]: the environment variable VLLM_KEY is not set; set it, or give a default: ${VLLM_KEY:-...} (line 2)"
    )


@pytest.mark.parametrize("text", ["a: ${X", "a: '${1X}'", "a: '${}'", "a: '${X Y}'"])
def test_what_looks_like_a_variable_and_is_none_is_refused(text: str) -> None:
    (problem,) = read(text, {"X": "x"}).problems
    assert "holds a ${...} that is no variable" in str(problem)


def test_a_doubled_dollar_is_a_literal_one_and_other_dollars_stay() -> None:
    assert value("a: ['$${X}', '$5 $X $']", X="x") == {"a": ["${X}", "$5 $X $"]}


def test_a_value_from_the_environment_is_never_parsed_as_yaml_or_replaced_again() -> None:
    assert value("a: ${X}", X="{b: 1}") == {"a": "{b: 1}"}
    assert value("a: ${X}", X="${Y}") == {"a": "${Y}"}


def test_comments_and_keys_hold_no_variables() -> None:
    assert value("# ${NO}\n'${NO}': 1") == {"${NO}": 1}


@pytest.mark.parametrize("text", ["a: 1\nb: 2\na: 3", "x: {a: 1}\ny: {b: 1, b: 2}"])
def test_a_key_that_stands_twice_is_refused_with_both_lines(text: str) -> None:
    (problem,) = read(text, {}).problems
    assert "stands twice, first on line" in str(problem)
    assert problem.line == text.count("\n") + 1


def test_aliases_and_merge_keys_work() -> None:
    assert value("a: &x {k: 1}\nb: {<<: *x, l: 2}\nc: *x") == {"a": {"k": 1}, "b": {"k": 1, "l": 2}, "c": {"k": 1}}


@pytest.mark.parametrize("text", ["a: [", "a: b: c", "\ta: 1", "a: !!python/object:os.system 1", "a: 1\n---\nb: 2"])
def test_no_yaml_is_refused_in_words(text: str) -> None:
    with pytest.raises(ConfigError, match="not valid YAML"):
        read(text, {})


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("a: {b: ${X}}", "between { } and [ ] put quotes around ${...} (line 1)"),
        ("a: [1, 2\nb: 3\n", None),
        ("c: ${X}\na: {b: 1,\n", None),
        ("a:\n\tb: 1", "indent with spaces, YAML takes no tabs there (line 2)"),
    ],
)
def test_what_would_help_is_told_only_where_it_does(text: str, hint: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text, {})
    told = str(caught.value)
    assert told.endswith(f"; {hint}") if hint else "quotes" not in told and "spaces" not in told


@pytest.mark.parametrize("text", ["&a [*a]", "x: &a {k: *a}"])
def test_what_contains_itself_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(ConfigError, match=r"(\[0\]|x\.k): contains itself; aliases must not form a loop \(line 1\)"):
        read(text, {})


def test_depth_without_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="not YAML that can be read"):
        read("a: " + "[" * 5000 + "]" * 5000, {})


def test_b43_characters_that_json_writes_in_two_halves_are_whole() -> None:
    assert value(r'{"model": "\ubaa8\ub378-\ud83e\udd80"}') == {"model": "모델-🦀"}


@pytest.mark.parametrize("half", [r"\ud83e", r"\udd80", r"\ud83e-\udd80", r"\udd80\ud83e"])
def test_b43_half_a_character_is_refused_with_its_place(half: str) -> None:
    (problem,) = read('{"a": 1,\n "model": "x' + half + '"}', {}).problems
    assert str(problem) == "model: holds half of a character; write the character itself, in UTF-8 (line 2)"


def test_yaml_1_2_words_are_words() -> None:
    assert value("[on, no, 012, 1.10]") == ["on", "no", 12, 1.1]


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        read(text, {"X": "x"})
    except ConfigError as error:
        assert str(error)


def test_paths_are_written_as_users_know_them() -> None:
    assert path_text(("pools", 0, "endpoints", 2, "url")) == "pools[0].endpoints[2].url"
