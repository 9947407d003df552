"""One endpoint of the configuration: the keys that all share, and the engine's own, which its Options check."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET

import engines
from engines import launch
from engines.contract import Limits
from gateway.config_check import Checker, nearest
from gateway.config_text import KeyPath

__all__ = ["Endpoint", "common_fields", "decode_endpoint"]

Name = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        max_length=64,
        extra_json_schema={"description": "letters, digits and . _ - (64 at most)"},
    ),
]
_PLACEHOLDER = "http://127.0.0.1:1"  # stands in for the address of an endpoint that is yet to be launched


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One running instance of an engine, or one to be launched.

    Attributes:
        name: unique over all pools; a label in metrics.
        engine: the engine's kind.
        url: where it runs; None where `launch` says how to start it, or the engine runs in the gateway's own process
            or a worker of it, and so has no address.
        launch: how to start it, as that engine's own launch struct.
        tags: free words; "gpu" and "cpu" mean something to policies. `source: hf` adds "hf".
        cost_per_hour: in any one currency.
        options: the engine's own keys, checked; `engines.build` takes them (see `raw`).
    """

    name: Name
    engine: str
    url: str | None = None
    launch: msgspec.Struct | None = None
    tags: frozenset[str] = frozenset()
    source: Literal["hf"] | None = None
    limits: Limits = Limits()
    cost_per_hour: Annotated[float, msgspec.Meta(ge=0)] | None = None
    options: dict[str, Any] = {}

    def raw(self, url: str | None = None) -> dict[str, Any]:
        """The options for `engines.build`, with the address: the configured one, or that of the launched engine."""
        address = url or self.url
        return {**self.options, "url": address} if address else dict(self.options)


def common_fields() -> dict[str, Any]:
    """The keys that every endpoint has, with their types; `engine`, `launch` and the options depend on the engine."""
    fields = {field.name: field.type for field in msgspec.structs.fields(Endpoint)}
    return {name: kind for name, kind in fields.items() if name not in ("engine", "launch", "options")}


def decode_endpoint(checker: Checker, value: Any, path: KeyPath) -> Any:
    """A mapping as an Endpoint; UNSET after reporting why not."""
    if not checker.mapping(value, path):
        return UNSET
    kind = value.get("engine", UNSET)
    kinds = engines.available()
    if kind not in kinds:
        what = "is missing" if kind is UNSET else f'"{kind}" is not an engine of this version'
        checker.report((*path, "engine"), what, nearest(str(kind), kinds) if kind is not UNSET else _known(kinds))
        return UNSET
    options_type = engines.options_type(kind)
    options = {field.encode_name: field for field in msgspec.structs.fields(options_type)}
    common = common_fields()
    checker.unknown(value, {*common, *options, "engine", "launch"}, path)
    known: dict[str, Any] = {"engine": kind}
    for key, wanted in common.items():
        if key in value:
            known[key] = checker.decode(value[key], wanted, (*path, key))
    if "name" not in value:
        checker.report((*path, "name"), "is missing", "give a word that is unique over all pools")
        known["name"] = UNSET
    known |= _where(checker, value, kind, path) if "url" in options else _nowhere(checker, value, kind, path)
    _check_base(checker, value.get("url"), path)
    known["options"] = _options(checker, value, options_type, path)
    return checker.make(Endpoint, known, path)


def _known(kinds: tuple[str, ...]) -> str:
    return "one of " + ", ".join(sorted(kinds))


def _where(checker: Checker, value: dict[str, Any], kind: str, path: KeyPath) -> dict[str, Any]:
    """Check that exactly one of `url` and `launch` says where the engine is."""
    has_url, has_launch = value.get("url") is not None, value.get("launch") is not None
    launch_type = launch.launch_type(kind)
    if has_url and has_launch:
        checker.report((*path, "launch"), "stands beside `url`", "give one: where the engine runs, or how to start it")
    elif not has_url and not has_launch:
        right = "give `url: http://HOST:PORT`" + (", or `launch:` to start the engine here" if launch_type else "")
        checker.report((*path, "url"), "is missing", right)
    if not has_launch:
        return {}
    if launch_type is None:
        checker.report((*path, "launch"), f"{kind} cannot be started by this version", "start it yourself, give `url`")
        return {"launch": UNSET}
    made = checker.struct(value["launch"], launch_type, (*path, "launch"))
    if checker.files and made is not UNSET:
        try:
            launch.command(kind, made, 1, "")  # says now what would fail later
        except launch.LaunchError as error:
            checker.report((*path, "launch"), str(error))
    return {"launch": made}


def _check_base(checker: Checker, url: Any, path: KeyPath) -> None:
    """Refuse the address of an engine's API in place of its own: `/v1` would be asked for twice, in vain."""
    try:
        steps = urlsplit(url).path.split("/") if isinstance(url, str) else []
    except ValueError:  # its own check says so
        return
    if "v1" in steps:
        checker.report((*path, "url"), "holds /v1, which the gateway adds itself", "give it without: http://HOST:PORT")


def _nowhere(checker: Checker, value: dict[str, Any], kind: str, path: KeyPath) -> dict[str, Any]:
    """Check that nothing says where the engine is: it has no address."""
    for key in ("url", "launch"):
        if value.get(key) is not None:
            checker.report(
                (*path, key), f"means nothing for {kind}, which the gateway runs itself", "leave the key out"
            )
    return {"url": None}


def _options(checker: Checker, value: dict[str, Any], options_type: type[msgspec.Struct], path: KeyPath) -> Any:
    """The engine's own keys as plain values of the right types; the address and common keys are left to Endpoint."""
    fields = {field.encode_name: field for field in msgspec.structs.fields(options_type)}
    known: dict[str, Any] = {}
    for key, field in fields.items():
        if value.get(key) is not None or (key in value and key != "url"):
            known[field.name] = checker.decode(value[key], field.type, (*path, key))
        elif key == "url":
            known["url"] = _PLACEHOLDER
        elif field.required:
            checker.report((*path, key), "is missing", "this engine needs it")
            known[field.name] = UNSET
    made = checker.make(options_type, known, path)
    if made is UNSET:
        return UNSET
    return {
        key: msgspec.to_builtins(getattr(made, field.name))
        for key, field in fields.items()
        if key in value and key != "url"
    }
