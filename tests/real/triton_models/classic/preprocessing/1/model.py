"""Text to tokens: one for each byte."""

import os
import sys

sys.path[:0] = os.environ["TRITON_TEST_PATH"].split(os.pathsep)  # the embedded interpreter ignores PYTHONPATH

import numpy as np
import scripted
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            tokens = np.frombuffer(scripted.value(request, "QUERY"), np.uint8).astype(np.int32)[None]
            length = np.array([[tokens.shape[1]]], np.int32)
            outputs = [pb.Tensor("INPUT_ID", tokens), pb.Tensor("REQUEST_INPUT_LEN", length)]
            answers.append(pb.InferenceResponse(outputs))
        return answers
