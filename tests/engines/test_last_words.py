"""The line that says why, among all that an engine wrote."""

from __future__ import annotations

import pytest

from engines.last_words import last_words

TRUNCATED = """\
0.00.007.980 I srv          init: loading model
0.00.057.750 E llama_model_load: error loading model: tensor 'a' data is not within the file bounds
0.00.063.590 E llama_model_load_from_file_impl: failed to load model
0.00.063.673 E common_fit_params: encountered an error while trying to fit params: failed to load model
0.00.095.893 E cmn  common_init_: failed to load model '/m.gguf'
0.00.095.952 I srv    operator(): operator(): cleaning up before exit...
0.00.096.331 E srv          init: exiting due to model loading error
llama.cpp did not start: Failed to init server, please check the input params.""".splitlines()
TAKEN = """\
0.00.004.362 E srv         start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 43857
0.00.004.576 I srv    operator(): operator(): cleaning up before exit...
0.00.004.661 E llama.cpp did not start: Failed to init server.srv          init: exiting due to HTTP server error
""".splitlines()


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (TRUNCATED, "it said: llama_model_load: error loading model: tensor 'a' data is not within the file bounds"),
        (["W ggml: failed to find a GPU", *TRUNCATED], "it said: llama_model_load: error loading model: tensor 'a' "),
        (TAKEN, "it said: srv         start: couldn't bind HTTP server socket"),
        (["Traceback (most recent call last):", "  x", "ModuleNotFoundError: y"], "its last words: Traceback (most"),
        (["a", "b", "c", "d"], "its last words: b | c | d"),
    ],
)
def test_of_a_load_that_failed_the_first_cause_is_told(lines: list[str], said: str) -> None:
    assert last_words(lines, was_ready=False).startswith(said)


def test_of_an_engine_that_served_the_last_lines_are_told() -> None:
    assert last_words(["an error of yesterday", "a", "b", "c"], was_ready=True) == "its last words: a | b | c"


def test_of_one_that_said_nothing_nothing_is_told() -> None:
    assert last_words([], was_ready=False) == ""
