"""A scripted model under the tensor names of TensorRT-LLM's ensemble."""

import os
import sys

sys.path[:0] = os.environ["TRITON_TEST_PATH"].split(os.pathsep)  # the embedded interpreter ignores PYTHONPATH

import threading

import numpy as np
import scripted
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            prompt = scripted.value(request, "text_input")
            script = scripted.Script(prompt, int(scripted.value(request, "max_tokens")))
            seen = {
                "stop_words": [word.decode() for word in scripted.values(request, "stop_words")],
                "bad_words": [word.decode() for word in scripted.values(request, "bad_words")],
                "guide": [word.decode() for word in scripted.values(request, "guided_decoding_guide")],
            }
            for name in ("top_k", "top_p", "temperature", "seed", "min_tokens"):
                given = scripted.value(request, name)
                seen[name] = None if given is None else given.item()
            scripted.tell("began", id=request.request_id(), prompt=prompt.decode(), seen=seen)
            streams = bool(scripted.value(request, "stream", False))
            if not streams:
                script.say, script.size = b"".join(script.pieces()), 10**9
            echo = b"" if streams or scripted.value(request, "exclude_input_in_output", False) else prompt
            counts = len(prompt.split()), len(script.pieces()) if streams else len(script.say.decode())
            arguments = (script, request.get_response_sender(), request.request_id(), echo, counts)
            threading.Thread(target=self._run, args=arguments, daemon=True).start()

    def _run(self, script, sender, request_id, echo, counts):
        def respond(piece, number):
            tokens = [np.array([count], np.int32) for count in (counts[0], 1 if script.size != 10**9 else counts[1])]
            return pb.InferenceResponse(
                [
                    pb.Tensor("text_output", scripted.text(echo + piece)),
                    pb.Tensor("num_input_tokens", tokens[0]),
                    pb.Tensor("num_output_tokens", tokens[1]),
                ]
            )

        script.play(sender, request_id, respond)
