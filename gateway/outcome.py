"""What an error means for a call: the word that it is counted under, and whether the call may go on elsewhere."""

from __future__ import annotations

from engines import EngineError
from engines.errors import Overloaded
from gateway.contract import Pool

__all__ = ["call_outcome", "may_go_on", "outcome_of"]


def outcome_of(error: EngineError | None) -> str:
    """An attempt's: ok, overload or error."""
    if error is None:
        return "ok"
    return "overload" if isinstance(error, Overloaded) else "error"


def call_outcome(error: Exception) -> str:
    """A call's that ended with this error: overload or error; rejected where the gateway itself said no."""
    return outcome_of(error) if isinstance(error, EngineError) else "rejected"


def may_go_on(error: EngineError, pool: Pool, tries: int, reran: bool) -> bool:
    """Whether the call may be sent again without the risk that its work is paid for twice.

    "free": the engine did no work. "once": its work is surely void, yet a call that brings engines down must not
    go through all of them, so it is run again a single time.
    """
    if tries >= pool.max_attempts:
        return False
    return error.retry == "free" or (error.retry == "once" and pool.rerun == "gone" and not reran)
