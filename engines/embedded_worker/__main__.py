"""The worker's start: `python -P -m engines.embedded_worker DESCRIPTOR MODEL_MODULE SETTINGS`."""

from __future__ import annotations

import importlib
import socket
import sys

import msgspec

from engines.embedded_pipe import Ready
from engines.embedded_worker.desk import Desk
from engines.embedded_worker.mailbox import Mailbox
from engines.embedded_worker.model import LoadError, Model, Settings

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Load the model and serve until the gateway hangs up. Exit code 1 where the model cannot be loaded."""
    descriptor, module, settings_text = arguments
    settings = msgspec.json.decode(settings_text, type=Settings)
    mailbox = Mailbox(socket.socket(fileno=int(descriptor)))
    mailbox.listen()
    try:
        model: Model = importlib.import_module(module).load(settings)
    except LoadError as error:
        print(f"the model was not loaded: {error}", file=sys.stderr, flush=True)
        return 1
    mailbox.send(Ready(model.context))
    Desk(model, mailbox, settings.slots).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
