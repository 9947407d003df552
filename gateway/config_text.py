"""YAML text to plain values: where each value stands, duplicate keys, and `${VARIABLES}`.

Nothing here knows what the keys mean. Messages never show a value: it may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

__all__ = ["ConfigError", "KeyPath", "Place", "Problem", "Text", "path_text", "read"]

KeyPath = tuple[str | int, ...]
"""The way to a value: keys of mappings and positions in lists."""

_VARIABLE = re.compile(r"\$(?:(\$\{)|\{([^}]*)(\})?)")
_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(:-(.*))?", re.DOTALL)


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong with a configuration.

    Attributes:
        path: where, in the form `pools[0].endpoints[2].url`; empty for the file as a whole.
        what: what is wrong. right: what would be right; may be empty.
        line: the line in the file, counted from 1, where it is known.
    """

    path: str
    what: str
    right: str = ""
    line: int | None = None

    def __str__(self) -> str:
        text = "; ".join(part for part in (self.what, self.right) if part)
        if self.path:
            text = f"{self.path}: {text}"
        return f"{text} (line {self.line})" if self.line else text


class ConfigError(Exception):
    """A configuration was refused. `problems` holds everything that was found, in the order of the file."""

    def __init__(self, problems: list[Problem], source: str = "") -> None:
        self.problems = problems
        self.source = source
        super().__init__("\n".join(map(str, problems)))


class Place(msgspec.Struct, frozen=True):
    """Where a value stands: its line from 1, and the scalar's text where it was written without quotes."""

    line: int
    plain: str | None = None


class Text(msgspec.Struct, frozen=True):
    """A parsed file: its values with variables replaced, and where each of them stands."""

    value: Any
    places: dict[KeyPath, Place]
    problems: list[Problem]


def path_text(path: KeyPath) -> str:
    """`("pools", 0, "model")` as `pools[0].model`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text


def read(text: str, environ: Mapping[str, str]) -> Text:
    """Parse `text` and replace its variables.

    Problems that leave a value to go on with (duplicate keys, unset variables) are collected in the answer.

    Raises:
        ConfigError: the text is no YAML.
    """
    yaml = YAML(typ="safe", pure=True)  # YAML 1.2: `on` and `no` are words, `012` is twelve
    yaml.allow_duplicate_keys = True  # reported below, with both lines and without the values
    try:
        value = yaml.load(text)
        places: dict[KeyPath, Place] = {}
        problems: list[Problem] = []
        _survey(yaml.compose(text), (), places, problems, frozenset())
        return Text(_replace(value, (), environ, places, problems), places, problems)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ConfigError([Problem("", _syntax(error, text), line=mark.line + 1 if mark else None)]) from None
    except (YAMLError, ValueError, RecursionError) as error:
        raise ConfigError([Problem("", f"this is not YAML that can be read ({type(error).__name__})")]) from None


def _syntax(error: MarkedYAMLError, text: str) -> str:
    what = " ".join(str(part) for part in (error.context, error.problem) if part)
    marks = [mark.line for mark in (error.context_mark, error.problem_mark) if mark]
    about = text.splitlines()[min(marks, default=0) : max(marks, default=-1) + 1]
    hint = ""
    if "'\\t'" in what:
        hint = "; indent with spaces, YAML takes no tabs there"
    elif "while parsing a flow" in what and any(_VARIABLE.search(line) for line in about):
        hint = "; between { } and [ ] put quotes around ${...}"
    return f"this is not valid YAML: {what or 'cannot be parsed'}{hint}"


def _survey(
    node: Node | None, path: KeyPath, places: dict[KeyPath, Place], problems: list[Problem], above: frozenset[int]
) -> None:
    """Note every node's place and report keys that stand twice. `above` holds the nodes on the way, against loops."""
    if node is None:
        return
    if id(node) in above:
        line = node.start_mark.line + 1
        raise ConfigError([Problem(path_text(path), "contains itself", "aliases must not form a loop", line)])
    plain = node.value if isinstance(node, ScalarNode) and node.style is None else None
    places[path] = Place(node.start_mark.line + 1, plain)
    above |= {id(node)}
    if isinstance(node, SequenceNode):
        for position, item in enumerate(node.value):
            _survey(item, (*path, position), places, problems, above)
    elif isinstance(node, MappingNode):
        first: dict[str, int] = {}
        for key, item in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in first:
                problems.append(
                    Problem(
                        path_text((*path, name)),
                        f"stands twice, first on line {first[name]}",
                        "keep one of the two",
                        line,
                    )
                )
            first.setdefault(name, line)
            _survey(item, (*path, name), places, problems, above)


def _replace(
    value: Any, path: KeyPath, environ: Mapping[str, str], places: Mapping[KeyPath, Place], problems: list[Problem]
) -> Any:
    if isinstance(value, dict):
        return {key: _replace(item, (*path, str(key)), environ, places, problems) for key, item in value.items()}
    if isinstance(value, list):
        return [_replace(item, (*path, position), environ, places, problems) for position, item in enumerate(value)]
    if not isinstance(value, str):
        return value
    place = places.get(path)
    line = place.line if place else None

    def one(match: re.Match[str]) -> str:
        if match[1]:  # "$${" stands for a literal "${"
            return "${"
        name = _NAME.fullmatch(match[2])
        if match[3] is None or name is None:
            right = "write ${NAME} or ${NAME:-default}; $${ stands for a literal ${"
            problems.append(Problem(path_text(path), "holds a ${...} that is no variable", right, line))
            return ""
        found = environ.get(name[1], "")
        if found:
            return found
        if name[2] is not None:
            return name[3]
        if name[1] not in environ:
            right = f"set it, or give a default: ${{{name[1]}:-...}}"
            problems.append(Problem(path_text(path), f"the environment variable {name[1]} is not set", right, line))
        return found

    text = _VARIABLE.sub(one, value)
    try:
        # JSON writes characters beyond U+FFFF as two halves, which YAML leaves apart.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        right = "write the character itself, in UTF-8"
        problems.append(Problem(path_text(path), "holds half of a character", right, line))
        return ""
