"""Plain values to typed structs, reporting everything that is wrong and what would be right.

msgspec stops at the first fault and names the type; this walks the struct types instead and lets msgspec judge one
field at a time, so that a file with three mistakes is mended in one go. Scalars are read by the wanted type, so a
number that came out of an environment variable is a number. Messages show a value only where the field holds a
name from a fixed list, for anything else may be a secret.
"""

from __future__ import annotations

import difflib
import os
import re
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import UNSET, inspect

from gateway.config_text import KeyPath, Place, Problem, path_text

__all__ = ["Checker", "describe", "nearest"]

_SCALARS = {bool: "true or false", int: "a number", float: "a number", type(None): "nothing"}


class Checker:
    """Decodes values and collects problems.

    Args:
        places: where each value stands in the file.
        folder: what relative file names are relative to.
        special: how to decode certain struct types, in place of field by field.
        files: look whether the files that are named are there.
    """

    def __init__(
        self,
        places: Mapping[KeyPath, Place],
        folder: Path,
        special: Mapping[type, Callable[[Checker, Any, KeyPath], Any]] = types.MappingProxyType({}),
        files: bool = False,
    ) -> None:
        self.places = places
        self.folder = folder
        self.special = special
        self.files = files
        self.problems: list[Problem] = []

    def report(self, path: KeyPath, what: str, right: str = "") -> None:
        """Note a problem at `path`, unless one is known there; its line is that of the nearest known value above."""
        if any(problem.path == path_text(path) for problem in self.problems if path):
            return
        near = next((self.places[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self.places), None)
        self.problems.append(Problem(path_text(path), what, right, near.line if near else None))

    def decode(self, value: Any, wanted: Any, path: KeyPath) -> Any:
        """`value` as `wanted`, or UNSET after reporting why not."""
        inner, optional, meta = _peel(wanted)
        if value is None and optional:
            return None
        if inner in self.special:
            return self.special[inner](self, value, path)
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            return self.struct(value, inner, path)
        origin = get_origin(inner)
        if origin in (list, tuple) and isinstance(value, list):
            item = get_args(inner)[0]
            items = [self.decode(one, item, (*path, position)) for position, one in enumerate(value)]
            return UNSET if UNSET in items else origin(items)
        if value is not None and isinstance(value, str) and meta.get("path"):
            return self._file(value, meta, path)
        return self._leaf(value, wanted, path)

    def struct(self, value: Any, wanted: type[msgspec.Struct], path: KeyPath) -> Any:
        """A mapping as the struct `wanted`."""
        if not self.mapping(value, path):
            return UNSET
        fields = {field.encode_name: field for field in msgspec.structs.fields(wanted)}
        self.unknown(value, fields, path)
        known: dict[str, Any] = {}
        for key, field in fields.items():
            if key in value:
                known[field.name] = self.decode(value[key], field.type, (*path, key))
            elif field.required:
                self.report((*path, key), "is missing", f"give {describe(field.type)}")
                known[field.name] = UNSET
        return self.make(wanted, known, path)

    def make(self, wanted: type[msgspec.Struct], known: Mapping[str, Any], path: KeyPath) -> Any:
        """`wanted(**known)`; UNSET where a part is, or where the struct's own check refuses the whole."""
        if UNSET in known.values():
            return UNSET
        try:
            return wanted(**known)
        except (ValueError, TypeError) as error:
            # By custom such a check names the field first: "`url` must ...".
            name, what = re.match(r"(?:`(\w+)` )?(.*)", str(error), re.DOTALL).groups()  # type: ignore[union-attr]
            self.report((*path, name) if name else path, what)
            return UNSET

    def mapping(self, value: Any, path: KeyPath) -> bool:
        """Report unless `value` is a mapping with text for keys."""
        if isinstance(value, dict) and all(isinstance(key, str) for key in value):
            return True
        if isinstance(value, dict):
            self.report(path, "has a key that is not text", "put it in quotes")
        elif value is None:
            self.report(path, "is empty", "give it keys and values, or leave it out")
        else:
            self.report(path, f"must be keys and values, not {_kind(value)}")
        return False

    def unknown(self, value: Mapping[str, Any], known: Iterable[str], path: KeyPath) -> None:
        """Report every key that is not among `known`."""
        names = list(known)
        for key in value:
            if key not in names:
                self.report((*path, key), "is not a known key", nearest(key, names))

    def _leaf(self, value: Any, wanted: Any, path: KeyPath) -> Any:
        place = self.places.get(path)
        inner, _, _ = _peel(wanted)
        if inner is str and value is not None and not isinstance(value, str):
            raw = place.plain if place and place.plain and path[-1] in ("model", "name") else "..."
            self.report(path, f"YAML reads this as {_kind(value)}", f'put it in quotes: "{raw}"')
            return UNSET
        if isinstance(value, bool) and inner in (int, float):
            self.report(path, "must be a number, not true or false")
            return UNSET
        try:
            return msgspec.convert(value, wanted, strict=False)
        except msgspec.ValidationError as error:
            step = re.search(r" - at `\$([^`]*)`$", str(error))
            right = describe(wanted)
            if get_origin(inner) is Literal and isinstance(value, str):
                self.report(path, f'"{value}" is not known here', nearest(value, get_args(inner)))
            elif value is None:
                self.report(path, "is empty", f"give {right}, or leave the key out")
            else:
                self.report((*path, *_steps(step[1] if step else "")), "is not valid", f"give {right}")
            return UNSET

    def _file(self, value: str, meta: Mapping[str, Any], path: KeyPath) -> Any:
        """A file name, absolute. A `command` without a slash is looked up on PATH later and stays as it is, and so does
        a `model` that is the name of one and no path."""
        rule = meta["path"]
        if (rule == "command" and "/" not in value) or (rule == "model" and not value.startswith((".", "/", "~"))):
            return value
        name = os.path.normpath(self.folder / os.path.expanduser(value))
        if self.files and value and not os.path.isfile(name):
            self.report(path, f"there is no file {name}", meta.get("right", "names are relative to this file's folder"))
            return UNSET
        return name


def nearest(word: str, known: Iterable[str]) -> str:
    """What would be right in place of `word`: the nearest known word if one is near, and all of them if few."""
    names = sorted(known)
    near = difflib.get_close_matches(word.lower(), names, n=1, cutoff=0.6)
    if near:
        return f'did you mean "{near[0]}"?'
    return f"known are: {', '.join(names)}" if names else "none is known"


def describe(wanted: Any) -> str:
    """A type in words: "a whole number from 1 to 65535"."""
    info = inspect.type_info(wanted) if not isinstance(wanted, inspect.Type) else wanted
    if isinstance(info, inspect.Metadata):
        return (info.extra_json_schema or {}).get("description") or describe(info.type)
    if isinstance(info, inspect.UnionType):
        return " or ".join("null" if isinstance(one, inspect.NoneType) else describe(one) for one in info.types)
    if isinstance(info, inspect.LiteralType):
        return "one of " + ", ".join(map(str, info.values))
    if isinstance(info, inspect.BoolType):
        return "true or false"
    if isinstance(info, inspect.IntType | inspect.FloatType):
        return ("a whole number" if isinstance(info, inspect.IntType) else "a number") + _bounds(info)
    if isinstance(info, inspect.StrType):
        return "text" + (f" of the form {info.pattern}" if info.pattern else "")
    if isinstance(info, inspect.ListType | inspect.VarTupleType | inspect.SetType | inspect.FrozenSetType):
        return f"a list whose items are {describe(info.item_type)}"
    if isinstance(info, inspect.StructType | inspect.DictType):
        return "keys and values"
    return "another value"


def _bounds(info: inspect.IntType | inspect.FloatType) -> str:
    if info.ge is not None and info.le is not None:
        return f" from {info.ge:g} to {info.le:g}"
    if info.gt is not None:
        return f" greater than {info.gt:g}"
    if info.ge is not None:
        return f", {info.ge:g} or more"
    return f", {info.le:g} or less" if info.le is not None else ""


def _peel(wanted: Any) -> tuple[Any, bool, dict[str, Any]]:
    """The type without Annotated and None, whether None is allowed, and the extra notes that it carried."""
    meta: dict[str, Any] = {}
    optional = False
    while True:
        origin = get_origin(wanted)
        if origin is Annotated:
            wanted, *notes = get_args(wanted)
            for note in notes:
                meta |= getattr(note, "extra", None) or {}
        elif origin in (Union, types.UnionType) and type(None) in get_args(wanted):
            rest = [one for one in get_args(wanted) if one is not type(None)]
            if len(rest) > 1:
                return wanted, True, meta
            wanted, optional = rest[0], True
        else:
            return wanted, optional, meta


def _steps(text: str) -> KeyPath:
    """msgspec's `[0].name` as a path."""
    return tuple(int(a) if a else b for a, b in re.findall(r"\[(\d+)\]|\.?([^.\[\]]+)", text))


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return "keys and values"
    if isinstance(value, list):
        return "a list"
    return "text" if isinstance(value, str) else _SCALARS.get(type(value), f"a {type(value).__name__}")
