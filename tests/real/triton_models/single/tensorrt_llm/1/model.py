"""A scripted model in the shape of TensorRT-LLM's llmapi: every response holds the whole text so far."""

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
            script = scripted.Script(prompt, int(scripted.value(request, "sampling_param_max_tokens", 32)))
            script.with_text = True
            streams = bool(scripted.value(request, "streaming", False))
            echo = b"" if scripted.value(request, "sampling_param_exclude_input_from_output", False) else prompt
            arguments = (script, request.get_response_sender(), request.request_id(), echo, streams)
            threading.Thread(target=self._run, args=arguments, daemon=True).start()

    def _run(self, script, sender, request_id, echo, streams):
        pieces = script.pieces()
        finish = script.finish or ("length" if len(pieces) == script.max_tokens else "stop")
        if not streams:
            script.say, script.size = b"".join(pieces), 10**9
        so_far = [echo]

        def respond(piece, number):
            so_far.append(piece)
            whole = b"".join(so_far)
            # As the LLM API does: a character that is not complete yet is shown as a replacement mark.
            shown = whole.decode("utf-8", "replace").encode()
            state = finish if not streams or number == len(pieces) else "None"
            return pb.InferenceResponse(
                [
                    pb.Tensor("text_output", scripted.text(shown)),
                    pb.Tensor("finish_reason", scripted.text(state.encode())),
                ]
            )

        script.play(sender, request_id, respond)
