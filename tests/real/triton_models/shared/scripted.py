"""What the test models share: a generator that follows a script in its prompt, and tells a test what it saw.

A prompt that is a JSON object is a script:

    say      the text of the answer; else it is the prompt itself
    piece    bytes of one response; 0: a character
    delay    seconds before each response
    fail_at  the response in whose place an error comes; `error` and `code` are its words
    tail     "empty": the final flag comes alone (the default); "text": on the last piece
    finish   what a model that states finish reasons states

Each piece counts as one token, so `max_tokens` cuts the answer after so many pieces.
"""

import json
import os
import socket
import time

import numpy as np
import triton_python_backend_utils as pb

FINAL = pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def value(request, name, otherwise=None):
    """The first element of an input tensor."""
    tensor = pb.get_input_tensor_by_name(request, name)
    return otherwise if tensor is None else tensor.as_numpy().reshape(-1)[0]


def values(request, name):
    """All elements of an input tensor."""
    tensor = pb.get_input_tensor_by_name(request, name)
    return [] if tensor is None else list(tensor.as_numpy().reshape(-1))


def text(data, *lead):
    """A BYTES tensor of one element, which need not be valid UTF-8."""
    return np.array([data], dtype=np.object_).reshape(*lead, 1)


def tell(event, **facts):
    """Say what was seen, to a test that listens. Where none does, the few lines that the socket holds are dropped."""
    address = os.environ.get("TRITON_TEST_SOCKET")
    if not address:
        return
    line = json.dumps({"event": event, "at": time.monotonic(), **facts})
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        try:
            out.sendto(line.encode(), socket.MSG_DONTWAIT, address)
        except OSError as error:
            pb.Logger.log_verbose(f"{line} was not heard: {error}")


class Script:
    """What one request is to give."""

    def __init__(self, prompt, max_tokens):
        try:
            script = json.loads(prompt)
        except ValueError:
            script = {}
        if not isinstance(script, dict):
            script = {}
        self.say = script.get("say", prompt.decode("utf-8", "replace")).encode()
        self.size = script.get("piece", 0)
        self.delay = script.get("delay", 0.0)
        self.fail_at = script.get("fail_at")
        self.error = script.get("error", "the script fails here")
        self.code = getattr(pb.TritonError, script.get("code", "INTERNAL"))
        self.with_text = script.get("tail", "empty") == "text"
        self.max_tokens = max_tokens
        self.finish = script.get("finish")

    def pieces(self):
        """The answer's pieces, cut at the cap."""
        if self.size:
            cut = [self.say[at : at + self.size] for at in range(0, len(self.say), self.size)]
        else:
            cut = [character.encode() for character in self.say.decode()]
        return cut[: self.max_tokens]

    def play(self, sender, request_id, respond):
        """Send `respond(piece, number)` for every piece, then the final flag. A cancelled request ends early."""
        pieces = self.pieces()
        for number, piece in enumerate(pieces, 1):
            time.sleep(self.delay)
            if sender.is_cancelled():
                tell("cancelled", id=request_id, after=number - 1)
                sender.send(
                    pb.InferenceResponse(error=pb.TritonError("cancelled", pb.TritonError.CANCELLED)), flags=FINAL
                )
                return
            if self.fail_at is not None and number > self.fail_at:
                break
            last = number == len(pieces) and self.with_text and self.fail_at is None
            sender.send(respond(piece, number), flags=FINAL if last else 0)
            if last:
                tell("done", id=request_id, after=number)
                return
        if self.fail_at is not None:
            sender.send(pb.InferenceResponse(error=pb.TritonError(self.error, self.code)), flags=FINAL)
        else:
            sender.send(flags=FINAL)
        tell("done", id=request_id, after=len(pieces))
