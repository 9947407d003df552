"""A scripted model in the shape of `tensorrt_llm_bls` with accumulate_tokens: every response holds the whole text.

It does not call the core: in Triton 2.51 a call to a decoupled model from within Python never returns where that model
answers with an error.
"""

import os
import sys

sys.path[:0] = os.environ["TRITON_TEST_PATH"].split(os.pathsep)  # the embedded interpreter ignores PYTHONPATH

import threading

import scripted
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            prompt = scripted.value(request, "text_input")
            script = scripted.Script(prompt, int(scripted.value(request, "max_tokens")))
            if not scripted.value(request, "stream", False):
                script.say, script.size = prompt + b"".join(script.pieces()), 10**9  # the prompt is in the output
            arguments = (script, request.get_response_sender(), request.request_id())
            threading.Thread(target=self._run, args=arguments, daemon=True).start()

    def _run(self, script, sender, name):
        so_far = []

        def respond(piece, number):
            so_far.append(piece)
            shown = b"".join(so_far).decode("utf-8", "replace").encode()  # as a tokenizer decodes half a character
            return pb.InferenceResponse([pb.Tensor("text_output", scripted.text(shown, 1))])

        script.play(sender, name, respond)
