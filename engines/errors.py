"""What can go wrong with an engine, classified by cause.

    EngineError
      Unreached           the call surely never reached the engine: refused, unresolvable, TLS, connect timeout
      Overloaded          the engine said that it is full, before it did any work
        Loading           ... because its model is still loading
      Refused             the engine judged the request itself bad; another engine may not help
        ContextTooLong    ... because prompt and output do not fit its context
        Unsupported       ... because it cannot honour a parameter (raised by adapters before sending, too)
      Misconfigured       the engine refused the gateway's own credentials, model name or path
      Faulted             the engine took the call and then said that it failed
      Lost                the connection broke after the call was sent; the engine may still be working on it
        Gone              ... and the engine itself is gone: its port refuses, its process ended
        TimedOut          the engine stayed silent for too long
      Malformed           what came is no answer: HTML, broken JSON, an event over the cap
      Aborted             the gateway itself ended the attempt

Each class states, as data, what follows from it:

    retry      "free": no work was done, try elsewhere; "once": its work is void, a call may be run again once;
               "never": the engine may have done, or may still be doing, the work
    breaker    whether it counts against the endpoint's health
    failure    the router's word for it (`Router.retry`), None where the router need not hear of it

`message` is safe to show to a client. `detail` is what the engine said, for the operator's log; it may hold
anything and is redacted before it is written.
"""

from __future__ import annotations

from typing import ClassVar, Literal

__all__ = [
    "Aborted",
    "ContextTooLong",
    "EngineError",
    "Faulted",
    "Gone",
    "Loading",
    "Lost",
    "Malformed",
    "Misconfigured",
    "Overloaded",
    "Refused",
    "TimedOut",
    "Unreached",
    "Unsupported",
]

_HIDDEN = "[redacted]"

Retry = Literal["free", "once", "never"]
Failure = Literal["connect", "overload", "timeout", "error", "bad_output"]


class EngineError(Exception):
    """Base of the tree.

    Args:
        message: one sentence, safe for the client, naming what is wrong and, where known, what would be right.
        status: the HTTP status that the engine gave, where it gave one that the client should see.
        param: the request field that is at fault, as OpenAI's envelope names it.
        code: OpenAI's error code where a more exact one than the class's is known.
        retry_after: seconds that the engine asked to be left alone.
        detail: what the engine said, unredacted, for the operator.
    """

    retry: ClassVar[Retry] = "never"
    breaker: ClassVar[bool] = True
    failure: ClassVar[Failure | None] = "error"

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        detail: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param
        self.code = code
        self.retry_after = retry_after
        self.detail = detail

    def hide(self, secret: str | None) -> None:
        """Take `secret` out of everything that this says. Less than six characters are too common to be told apart."""
        if secret is None or len(secret) < 6:
            return
        self.message, self.detail = (text.replace(secret, _HIDDEN) for text in (self.message, self.detail))
        self.args = (self.message,)
        self.param, self.code = (text and text.replace(secret, _HIDDEN) for text in (self.param, self.code))


class Unreached(EngineError):
    retry = "free"
    failure = "connect"


class Overloaded(EngineError):
    retry = "free"
    breaker = False
    failure = "overload"


class Loading(Overloaded):
    pass


class Refused(EngineError):
    breaker = False
    failure = None


class ContextTooLong(Refused):
    pass


class Unsupported(Refused):
    pass


class Misconfigured(EngineError):
    retry = "free"


class Faulted(EngineError):
    retry = "once"


class Lost(EngineError):
    pass


class Gone(Lost):
    retry = "once"


class TimedOut(Lost):
    failure = "timeout"


class Malformed(EngineError):
    failure = "bad_output"


class Aborted(EngineError):
    breaker = False
    failure = None
