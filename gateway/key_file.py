"""Adds API keys to a key file: `keys: [{name, hash, admin?}, ...]`. Keys themselves are never written."""

from __future__ import annotations

import os
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from gateway.auth import make_key

__all__ = ["KeyFileProblem", "add_key"]


class KeyFileProblem(Exception):
    """The key file cannot be added to. The message says why."""


def add_key(file: Path, name: str, admin: bool = False) -> str:
    """Make a key for `name`, add its hash to `file`, and return the key, which cannot be had again.

    With `admin` it opens `/admin`, too. Comments and order of the file are kept. It is replaced in one step and
    readable by its owner only.

    Raises:
        KeyFileProblem: the file is no key file, the name is taken or empty, or it cannot be written.
    """
    if not name.strip():
        raise KeyFileProblem("the name is empty; give the key a name that the log may show")
    yaml = YAML()  # round trip: keeps comments
    data = {"keys": []} if not file.exists() else _read(yaml, file)
    if any(isinstance(entry, dict) and entry.get("name") == name for entry in data["keys"]):
        raise KeyFileProblem(f"{file} has a key with the name {name} already; choose another, or remove that one")
    key, digest = make_key()
    data["keys"].append({"name": name, "hash": digest} | ({"admin": True} if admin else {}))
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
            yaml.dump(data, stream)
        draft.replace(file)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise KeyFileProblem(f"{file} cannot be written: {error.strerror}") from None
    return key


def _read(yaml: YAML, file: Path) -> dict[str, list[object]]:
    try:
        data = yaml.load(file.read_text("utf-8"))
    except OSError as error:
        raise KeyFileProblem(f"{file} cannot be read: {error.strerror}") from None
    except (YAMLError, UnicodeDecodeError):
        raise KeyFileProblem(f"{file} is not YAML") from None
    if data is None:
        return {"keys": []}
    if not isinstance(data, dict) or set(data) != {"keys"} or not isinstance(data["keys"], list | None):
        raise KeyFileProblem(f"{file} is no key file: it must hold `keys:`, a list of {{name, hash}}, and nothing else")
    if data["keys"] is None:
        data["keys"] = []
    return data
