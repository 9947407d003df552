"""The rules that span several keys of a configuration."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from gateway.config_check import Checker, nearest
from gateway.known import policy_names

if TYPE_CHECKING:
    from gateway.config import Config

__all__ = ["apply", "is_loopback"]


def apply(config: Config, checker: Checker) -> None:
    """Report every broken rule to `checker`."""
    if not config.listen.host:
        checker.report(("listen", "host"), "is empty", "127.0.0.1 is this machine, 0.0.0.0 every network")
    elif config.auth is None and not is_loopback(config.listen.host):
        checker.report(
            ("listen", "host"),
            "would let everyone on the network in, for no API keys are configured",
            "give `auth: {keys: FILE}` (see `enginehouse keys add`), or listen on 127.0.0.1",
        )
    if not config.pools:
        checker.report(("pools",), "is empty", "give at least one model with an endpoint")
    models: dict[str, int] = {}
    names: dict[str, str] = {}
    known = policy_names()
    for p, pool in enumerate(config.pools):
        if pool.model in models:
            checker.report(
                ("pools", p, "model"), f"is the same as pools[{models[pool.model]}].model", "put its endpoints there"
            )
        models.setdefault(pool.model, p)
        if pool.model != pool.model.strip():
            checker.report(("pools", p, "model"), "begins or ends with a space", "leave it out")
        for path, policy in [(("policy",), pool.policy), *((("policies", n), q) for n, q in enumerate(pool.policies))]:
            if policy not in known:
                checker.report(("pools", p, *path), f'"{policy}" is not a policy', nearest(policy, known))
        if not pool.endpoints:
            checker.report(("pools", p, "endpoints"), "is empty", "give at least one endpoint")
        for e, endpoint in enumerate(pool.endpoints):
            here = f"pools[{p}].endpoints[{e}]"
            if endpoint.name in names:
                right = "names are unique over all pools"
                checker.report(("pools", p, "endpoints", e, "name"), f"is that of {names[endpoint.name]} too", right)
            names.setdefault(endpoint.name, here)
    if config.auth is not None and not config.auth.keys:
        checker.report(("auth", "keys"), "is empty", "give the file that `enginehouse keys add` wrote")


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
