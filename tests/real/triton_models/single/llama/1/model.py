"""llama.cpp (xllamacpp) behind the tensor names of TensorRT-LLM's ensemble."""

import os
import sys

sys.path[:0] = os.environ["TRITON_TEST_PATH"].split(os.pathsep)  # the embedded interpreter ignores PYTHONPATH

import json
import threading

import numpy as np
import scripted
import triton_python_backend_utils as pb
import xllamacpp


class TritonPythonModel:
    def initialize(self, args):
        params = xllamacpp.CommonParams()
        params.model.path = os.environ["TRITON_TEST_GGUF"]
        params.n_parallel, params.n_ctx, params.warmup = 8, 8192, False
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        params.hostnames, params.port = ["127.0.0.1"], 0
        self._server = xllamacpp.Server(params)

    def execute(self, requests):
        for request in requests:
            body = {
                "prompt": scripted.value(request, "text_input").decode(),
                "max_tokens": int(scripted.value(request, "max_tokens")),
                "stream": bool(scripted.value(request, "stream", False)),
                "stop": [word.decode() for word in scripted.values(request, "stop_words")],
            }
            for name in ("temperature", "top_p", "top_k", "seed"):
                given = scripted.value(request, name)
                if given is not None:
                    body[name] = given.item()
            arguments = (request.get_response_sender(), request.request_id(), body)
            threading.Thread(target=self._run, args=arguments, daemon=True).start()

    def _run(self, sender, request_id, body):
        state = {"count": 0, "error": None}

        def send(text, prompt_tokens, tokens):
            state["count"] += tokens
            sender.send(
                pb.InferenceResponse(
                    [
                        pb.Tensor("text_output", scripted.text(text.encode())),
                        pb.Tensor("num_input_tokens", np.array([prompt_tokens], np.int32)),
                        pb.Tensor("num_output_tokens", np.array([tokens], np.int32)),
                    ]
                )
            )

        def take(chunk):
            """One or several chunks of the stream; True ends the generation."""
            chunk = json.loads(chunk) if isinstance(chunk, (str, bytes)) else chunk
            for one in chunk if isinstance(chunk, list) else [chunk]:
                if one.get("error"):
                    state["error"] = one["error"]["message"]
                    return True
                usage = one.get("usage") or {}
                total = usage.get("completion_tokens", state["count"] + 1)
                said = one["choices"][0].get("text", "") if one.get("choices") else ""
                if said or usage:
                    send(said, usage.get("prompt_tokens", 0), max(total - state["count"], 0))
            return sender.is_cancelled()

        if body["stream"]:
            self._server.handle_completions(body, take)
        else:
            answer = self._server.handle_completions(body)
            if answer.get("error"):
                state["error"] = answer["error"]["message"]
            else:
                usage = answer["usage"]
                send(answer["choices"][0]["text"], usage["prompt_tokens"], usage["completion_tokens"])
        if sender.is_cancelled():
            scripted.tell("cancelled", id=request_id, after=state["count"])
        if state["error"] is None:
            sender.send(flags=scripted.FINAL)
        else:
            failed = pb.TritonError(state["error"], pb.TritonError.INVALID_ARG)
            sender.send(pb.InferenceResponse(error=failed), flags=scripted.FINAL)
