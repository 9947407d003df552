"""Becomes another program that dies with its parent: `python child.py PARENT_PID PROGRAM ARGUMENTS...`.

A child that is to die with its parent must ask the kernel for that itself, between fork and exec. Doing so in the
parent's own fork is unsafe once the parent has threads, so this small program stands between. Where the kernel has no
such request (it is Linux's), the program runs all the same.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Ask to be killed when the parent dies, then become the program. Returns only if it cannot be run."""
    parent, *program = arguments
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
        if os.getppid() != int(parent):  # it died before the request was made
            raise SystemExit(1)
    os.execvp(program[0], program)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OSError as error:
        sys.exit(f"cannot run {sys.argv[2]}: {error.strerror}")
