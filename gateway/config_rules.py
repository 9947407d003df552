"""The rules that span several keys of a configuration."""

from __future__ import annotations

import ipaddress
from typing import Any

from gateway.config_check import Checker, nearest
from router import policies

__all__ = ["apply", "is_loopback"]


def apply(value: Any, checker: Checker) -> None:
    """Report every broken rule to `checker`.

    `value` is the configuration as plain data. It may be faulty in other ways, which are reported elsewhere: what is
    not of the type that a rule is about is passed over, so that one fault hides no other.
    """
    top = _mapping(value)
    listen, auth = _mapping(top.get("listen")), top.get("auth")
    host = listen.get("host", "127.0.0.1")
    if host == "":
        checker.report(("listen", "host"), "is empty", "127.0.0.1 is this machine, 0.0.0.0 every network")
    elif isinstance(host, str) and auth is None and not is_loopback(host):
        checker.report(
            ("listen", "host"),
            "would let everyone on the network in, for no API keys are configured",
            "give `auth: {keys: FILE}` (see `enginehouse keys add`), or listen on 127.0.0.1",
        )
    if top.get("pools") == []:
        checker.report(("pools",), "is empty", "give at least one model with an endpoint")
    models: dict[str, int] = {}
    names: dict[str, str] = {}
    for p, pool in enumerate(map(_mapping, _list(top.get("pools")))):
        _pool(pool, p, models, checker)
        for e, endpoint in enumerate(map(_mapping, _list(pool.get("endpoints")))):
            name = endpoint.get("name")
            if not isinstance(name, str):
                continue
            if name in names:
                right = "names are unique over all pools"
                checker.report(("pools", p, "endpoints", e, "name"), f"is that of {names[name]} too", right)
            names.setdefault(name, f"pools[{p}].endpoints[{e}]")
    if _mapping(auth).get("keys") == "":
        checker.report(("auth", "keys"), "is empty", "give the file that `enginehouse keys add` wrote")


def _pool(pool: dict[str, Any], p: int, models: dict[str, int], checker: Checker) -> None:
    model = pool.get("model")
    if isinstance(model, str):
        if model in models:
            checker.report(
                ("pools", p, "model"), f"is the same as pools[{models[model]}].model", "put its endpoints there"
            )
        models.setdefault(model, p)
        if model != model.strip():
            checker.report(("pools", p, "model"), "begins or ends with a space", "leave it out")
    known = policies.names()
    named = [
        (("policy",), pool.get("policy")),
        *((("policies", n), q) for n, q in enumerate(_list(pool.get("policies")))),
    ]
    for path, policy in named:
        if isinstance(policy, str) and policy not in known:
            checker.report(("pools", p, *path), f'"{policy}" is not a policy', nearest(policy, known))
    if pool.get("endpoints") == []:
        checker.report(("pools", p, "endpoints"), "is empty", "give at least one endpoint")


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _mapping(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
