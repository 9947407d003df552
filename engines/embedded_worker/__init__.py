"""The embedded engine's worker: one model in a process of its own, many calls on it at once.

    __main__   starts: loads the model, then runs the desk
    mailbox    the line to the gateway; a thread that reads it at all times, so that a cancel is heard while computing
    desk       the calls that run: whose tokens go into the next batch, what becomes of the ones that come out
    wish       a request's body, checked
    answer     one call's answer: text out of tokens, stop sequences, OpenAI's JSON
    text       characters that are split over tokens; the beginnings of stop sequences
    model      what the desk asks of a model; `llama` is that of llama-cpp-python

Meant to be run by the embedded engine: `python -P -m engines.embedded_worker DESCRIPTOR MODEL_MODULE SETTINGS`. Nothing
heavy is imported before the model is loaded.
"""
