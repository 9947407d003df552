"""API keys: random, hashed at rest, compared by digest.

A key has 256 random bits, so a plain SHA-256 of it cannot be searched; the presented key is hashed and its digest
looked up, which takes the same time whatever the key's content is.

A ring that was loaded from a file follows the file: a key that is added or taken out counts within a second.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from gateway.contract import Keys
from gateway.errors import Forbidden, Unauthorized

__all__ = ["KeyEntry", "KeyFileError", "KeyRing", "authorize", "authorize_admin", "hash_key", "make_key"]

logger = logging.getLogger(__name__)

_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_LOOK_EVERY = 1.0  # seconds
_HINT = "write `sha256:` and the key's SHA-256 in hex, or let `enginehouse keys add NAME` make a key and its entry"


class KeyFileError(ValueError):
    """A key file that cannot be used. The message names the entry and never holds a key."""


class KeyEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a key file. `hash` is `sha256:` and 64 hex digits. `admin`: the key opens `/admin`, too."""

    name: str
    hash: str
    admin: bool = False


class KeyRing:
    """The keys that may enter.

    Args:
        entries: names and hashes, both unique.
        clock: monotonic seconds.

    Raises:
        KeyFileError: an entry is not usable.
    """

    def __init__(self, entries: list[KeyEntry], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._file: Path | None = None
        self._seen: tuple[int, ...] | None = None
        self._looked = 0.0
        self._names: dict[bytes, str] = {}
        self._admins = frozenset(entry.name for entry in entries if entry.admin)
        for index, entry in enumerate(entries):
            where = f"keys[{index}]"
            if not entry.name.strip():
                raise KeyFileError(f"{where}.name: is empty; give the key a name that the log may show")
            if not _HASH.fullmatch(entry.hash):
                raise KeyFileError(f"{where}.hash: is not a hash; {_HINT}")
            if entry.name in self._names.values():
                raise KeyFileError(f"{where}.name: another key has this name already; names must be unique")
            digest = bytes.fromhex(entry.hash.removeprefix("sha256:"))
            if digest in self._names:
                raise KeyFileError(f"{where}.hash: this key is in the file already, as {self._names[digest]!r}")
            self._names[digest] = entry.name

    @classmethod
    def load(cls, path: Path, clock: Callable[[], float] = time.monotonic) -> KeyRing:
        """Read a YAML file `keys: [{name, hash, admin?}, ...]`, and follow its changes from then on.

        Raises:
            KeyFileError: it is not there, not YAML, or not a key file.
        """
        seen = _stamp(path)  # before it is read: a change meanwhile is then seen later
        try:
            data = YAML(typ="safe", pure=True).load(path.read_text("utf-8"))
        except OSError as error:
            raise KeyFileError(f"{path}: cannot be read: {error.strerror}") from error
        except (YAMLError, UnicodeDecodeError):
            # Without its cause, which quotes the file.
            raise KeyFileError(f"{path}: is not YAML; it must hold `keys:`, a list of {{name, hash}}") from None
        if not isinstance(data, dict) or set(data) != {"keys"} or not isinstance(data["keys"], list):
            raise KeyFileError(f"{path}: must hold `keys:`, a list of {{name, hash}}, and nothing else")
        entries = []
        for index, item in enumerate(data["keys"]):
            if isinstance(item, dict) and "key" in item:
                raise KeyFileError(f"{path}: keys[{index}]: holds a raw key, which is not kept on disk; {_HINT}")
            try:
                entries.append(msgspec.convert(item, KeyEntry))
            except msgspec.ValidationError:
                raise KeyFileError(
                    f"{path}: keys[{index}]: must be {{name: text, hash: text}} and may say admin: true; {_HINT}"
                ) from None
        try:
            ring = cls(entries, clock)
        except KeyFileError as error:
            raise KeyFileError(f"{path}: {error}") from None
        ring._file, ring._seen, ring._looked = path, seen, clock()
        return ring

    def name(self, presented: str) -> str | None:
        """The name of the key that `presented` is, None where it is none of ours."""
        self._follow()
        return self._names.get(_digest(presented))

    def is_admin(self, name: str) -> bool:
        """Whether the key of this name opens `/admin`."""
        return name in self._admins

    def _follow(self) -> None:
        """Look at most once a second whether the file has changed. One that is of no use changes nothing.

        Reading takes about half a millisecond a key, on the loop, once for each change.
        """
        if self._file is None or (now := self._clock()) - self._looked < _LOOK_EVERY:
            return
        self._looked = now
        seen = _stamp(self._file)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            new = KeyRing.load(self._file, self._clock)
        except KeyFileError as error:
            logger.warning("the key file has changed and is of no use; the keys read before stay: %s", error)
            return
        self._names, self._admins = new._names, new._admins
        logger.info("the key file has changed; %d keys are known now", len(self._names))


def make_key() -> tuple[str, str]:
    """Make a new key: (the key itself, to be shown once; its hash, to be kept)."""
    plain = "eh-" + secrets.token_urlsafe(32)
    return plain, hash_key(plain)


def hash_key(plain: str) -> str:
    """The hash of a key as a key file holds it."""
    return "sha256:" + _digest(plain).hex()


def authorize(keys: Keys | None, headers: Mapping[str, str]) -> str | None:
    """Give the name of the key that the request carries, None where no keys are configured.

    `Authorization: Bearer KEY` comes before `x-api-key: KEY`.

    Raises:
        Unauthorized: there is no key, or none of ours. The message never holds what was presented.
    """
    if keys is None:
        return None
    scheme, _, presented = headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() != "bearer" or not presented.strip():
        presented = headers.get("x-api-key", "")
    presented = presented.strip()
    if not presented:
        raise Unauthorized("No API key was sent. Send it as `Authorization: Bearer KEY`.", code="invalid_api_key")
    name = keys.name(presented)
    if name is None:
        raise Unauthorized("The API key is not known here. Ask this gateway's operator for one.")
    return name


def authorize_admin(keys: Keys | None, headers: Mapping[str, str]) -> str | None:
    """As `authorize`, for what only operators may see.

    Raises:
        Unauthorized: as there.
        Forbidden: the key is one of ours and not marked `admin: true`.
    """
    name = authorize(keys, headers)
    if keys is not None and name is not None and not keys.is_admin(name):
        raise Forbidden("This needs a key that the gateway's operator marked `admin: true`.")
    return name


def _stamp(path: Path) -> tuple[int, ...] | None:
    """What changes with a file's content, None where it cannot be looked at."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _digest(plain: str) -> bytes:
    return hashlib.sha256(plain.encode("utf-8", "surrogatepass")).digest()
