"""The configuration: one YAML file as frozen structs, refused before any traffic with every fault and its place.

    Config
      listen    Listen      where clients connect
      auth      Auth        who may; without keys only loopback is bound
      pools     [Pool]      what clients call a model
        endpoints [Endpoint]  the engines that serve it
      limits    RequestLimits
      log       Log

All durations are seconds, except where a key's name says `_ms`. Relative file names are relative to the file's folder.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from engines.contract import Limits
from engines.paths import FileName
from gateway import config_rules
from gateway.auth import KeyFileError, KeyRing
from gateway.config_check import Checker
from gateway.config_endpoint import Endpoint, decode_endpoint
from gateway.config_text import ConfigError, KeyPath, Problem, read
from router import Slo

__all__ = [
    "Auth",
    "Config",
    "ConfigError",
    "Endpoint",
    "Limits",
    "Listen",
    "Log",
    "Pool",
    "Problem",
    "RequestLimits",
    "SloMs",
    "check",
    "load",
    "parse",
]

Positive = Annotated[float, msgspec.Meta(gt=0)]

LATER = {
    (): {"records": "keeping records", "shadow": "mirroring traffic"},
    ("pools", "*"): {"shadow": "mirroring traffic", "records": "keeping records"},
}
"""Keys of the agreed design that this version does not serve yet, by the mapping that holds them."""

SWITCH_WORDS = frozenset({"y", "n", "yes", "no", "on", "off"})


class Listen(msgspec.Struct, frozen=True):
    """Where clients connect. Port 0 takes any free port."""

    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8080


class Auth(msgspec.Struct, frozen=True):
    """`keys`: the file that `enginehouse keys add` writes."""

    keys: Annotated[FileName, msgspec.Meta(extra={"right": "make it with `enginehouse keys add NAME --file FILE`"})]


class RequestLimits(msgspec.Struct, frozen=True):
    """`body_bytes`: the largest request body that is read; larger ones get 413."""

    body_bytes: Annotated[int, msgspec.Meta(ge=1024)] = 64 * 1024 * 1024


class Log(msgspec.Struct, frozen=True):
    """`format`: "auto" is console on a terminal and json elsewhere."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "console", "json"] = "auto"


class SloMs(msgspec.Struct, frozen=True):
    """What callers of a pool want, in milliseconds, as operators state it."""

    ttft_ms: Positive | None = None
    tpot_ms: Positive | None = None

    def slo(self) -> Slo:
        """The same in seconds."""
        ttft, tpot = (None if ms is None else ms / 1000 for ms in (self.ttft_ms, self.tpot_ms))
        return Slo(ttft=ttft, tpot=tpot)


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """What clients call a model.

    Attributes:
        model: the public name.
        policy: how endpoints are chosen. policies: others that a caller may choose by `x-enginehouse-policy`.
        slo: what callers want who do not say so themselves.
        commit_after: seconds until a stream's 200 goes out with comment heartbeats; null: never.
        heartbeat: seconds between those comments.
        max_attempts: tries of one call, the first included.
        rerun: when a call that an engine had taken may be run again: "gone" (its work is surely void) or "never".
    """

    model: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    endpoints: list[Endpoint]
    policy: str = "adaptive"
    policies: list[str] = []
    slo: SloMs | None = None
    commit_after: Positive | None = 15.0
    heartbeat: Positive = 10.0
    max_attempts: Annotated[int, msgspec.Meta(ge=1, le=10)] = 3
    rerun: Literal["gone", "never"] = "gone"


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """A whole configuration, checked."""

    pools: list[Pool]
    listen: Listen = Listen()
    auth: Auth | None = None
    limits: RequestLimits = RequestLimits()
    log: Log = Log()


def load(path: str | os.PathLike[str], environ: Mapping[str, str] | None = None, *, files: bool = False) -> Config:
    """Read and check a file; variables come from `environ` (the process's environment).

    Args:
        files: look also whether what the file names is there and of use: keys, models, programs.

    Raises:
        ConfigError: with everything that is wrong.
    """
    file = Path(path)
    try:
        text = file.read_text("utf-8")
    except UnicodeDecodeError:
        raise ConfigError([Problem("", "is not UTF-8 text")], str(file)) from None
    except OSError as error:
        raise ConfigError([Problem("", f"cannot be read: {error.strerror}")], str(file)) from None
    try:
        return parse(text, file.resolve().parent, environ, files=files)
    except ConfigError as error:
        error.source = str(file)
        raise


def parse(text: str, folder: Path, environ: Mapping[str, str] | None = None, *, files: bool = False) -> Config:
    """Check the text of a file that stands in `folder`. Raises ConfigError as `load` does."""
    source = read(text, os.environ if environ is None else environ)
    checker = Checker(source.places, folder, {Endpoint: decode_endpoint, Auth: _decode_auth}, files)
    checker.problems += source.problems
    if source.value is None:
        raise ConfigError([Problem("", "the file is empty", "it needs `pools:`, a list of models and their endpoints")])
    _refuse_switch_words(checker)
    config = checker.struct(_without_later(checker, source.value, ()), Config, ())
    config_rules.apply(source.value, checker)
    if checker.problems:
        found = sorted(checker.problems, key=lambda problem: problem.line or 0)
        raise ConfigError(list(dict.fromkeys(found)))
    assert isinstance(config, Config)
    return config


def check(config: Config) -> None:
    """Apply the rules that span several keys to a configuration that was made or changed by hand.

    Raises:
        ConfigError: with everything that is wrong.
    """
    checker = Checker({}, Path())
    config_rules.apply(msgspec.to_builtins(config), checker)
    if checker.problems:
        raise ConfigError(checker.problems)


def _decode_auth(checker: Checker, value: Any, path: KeyPath) -> Any:
    """`auth:`, with a look into the key file."""
    auth = checker.struct(value, Auth, path)
    if checker.files and auth is not msgspec.UNSET:
        try:
            KeyRing.load(Path(auth.keys))
        except KeyFileError as error:
            checker.report((*path, "keys"), str(error))
    return auth


def _refuse_switch_words(checker: Checker) -> None:
    """Report models named `yes`, `on` and the like without quotes: text to us, a truth value to most other tools."""
    for path, place in checker.places.items():
        if len(path) == 3 and path[0] == "pools" and path[2] == "model" and (place.plain or "").lower() in SWITCH_WORDS:
            checker.report(path, "many tools read this as true or false", f'put it in quotes: "{place.plain}"')


def _without_later(checker: Checker, value: Any, path: KeyPath) -> Any:
    """`value` without the keys that belong to later versions, each of them refused by name."""
    if not isinstance(value, dict):
        return value
    kept = dict(value)
    for key, what in LATER[("pools", "*") if path else ()].items():
        if key in kept:
            checker.report((*path, key), f"{what} is not supported by this version", "leave the key out")
            del kept[key]
    if not path and isinstance(kept.get("pools"), list):
        kept["pools"] = [
            _without_later(checker, pool, ("pools", position)) for position, pool in enumerate(kept["pools"])
        ]
    return kept
