"""Whether anything can be served at all, judged by the first loads of the engines that the gateway starts."""

from __future__ import annotations

from collections.abc import Mapping

from engines.launch import Supervisor
from gateway.config import Config

__all__ = ["none_came_up"]


async def none_came_up(config: Config, supervisors: Mapping[str, Supervisor]) -> str | None:
    """Wait for the first loads; say why nothing can be served, where every one failed and there is nothing else.

    None where an engine that was started is ready, or where some endpoint runs elsewhere and may yet answer. What
    failed at its first load alone is likely to fail for ever, so that serving on would only hide it.
    """
    if any(endpoint.launch is None for pool in config.pools for endpoint in pool.endpoints):
        return None
    faults = []
    for name, supervisor in supervisors.items():
        why = await supervisor.first_load()
        if why is None:
            return None
        faults.append(f"{name} {why}")
    return "\n".join(faults)
