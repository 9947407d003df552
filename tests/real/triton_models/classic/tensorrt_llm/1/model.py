"""A scripted core: tokens are bytes, the prompt is the script. Knows `stop`, as the real one does."""

import os
import sys

sys.path[:0] = os.environ["TRITON_TEST_PATH"].split(os.pathsep)  # the embedded interpreter ignores PYTHONPATH

import threading

import numpy as np
import scripted
import triton_python_backend_utils as pb


class _Sender:
    """A response sender whose request can also be stopped from outside."""

    def __init__(self, sender):
        self._sender = sender
        self.stopped = False
        self.send = sender.send

    def is_cancelled(self):
        return self.stopped or self._sender.is_cancelled()


class TritonPythonModel:
    def initialize(self, args):
        self._running = {}

    def execute(self, requests):
        for request in requests:
            sender, name = _Sender(request.get_response_sender()), request.request_id()
            if scripted.value(request, "stop", False):
                scripted.tell("stop", id=name)
                if name in self._running:
                    self._running[name].stopped = True
                sender.send(flags=scripted.FINAL)
                continue
            prompt = bytes(pb.get_input_tensor_by_name(request, "input_ids").as_numpy()[0].astype(np.uint8).tolist())
            script = scripted.Script(prompt, int(scripted.value(request, "request_output_len")))
            script.size = script.size or 1
            if not scripted.value(request, "streaming", False):
                script.say, script.size = prompt + b"".join(script.pieces()), 10**9  # the prompt is in the output
            self._running[name] = sender
            threading.Thread(target=self._run, args=(script, sender, name), daemon=True).start()

    def _run(self, script, sender, name):
        def respond(piece, number):
            tokens = np.frombuffer(piece, np.uint8).astype(np.int32).reshape(1, 1, -1)
            return pb.InferenceResponse([pb.Tensor("output_ids", tokens)])

        script.play(sender, name, respond)
        self._running.pop(name, None)
