"""Tokens to text, each response by itself: characters come in pieces."""

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
            tokens = pb.get_input_tensor_by_name(request, "TOKENS_BATCH").as_numpy().reshape(-1)
            piece = bytes(tokens.astype(np.uint8).tolist())
            answers.append(pb.InferenceResponse([pb.Tensor("OUTPUT", scripted.text(piece, 1))]))
        return answers
