"""How llama.cpp draws a token: its own chain of samplers, with a grammar before it where a format is asked for."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from engines.embedded_worker.model import BadCall, Sampling

__all__ = ["Chain"]

_RANDOM = 0xFFFFFFFF  # llama.cpp's seed for "any"
_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class Chain:
    """A `Sampler`.

    Args:
        context: llama.cpp's. window: tokens that penalties look back on. ends: those that end an answer.
    """

    def __init__(
        self, api: Any, context: Any, vocab: Any, window: int, sampling: Sampling, ends: tuple[int, ...]
    ) -> None:
        self._api = api
        self._context = context
        self._vocabulary = int(api.llama_vocab_n_tokens(vocab))
        self._grammar = None if sampling.format is None else self._make_grammar(vocab, sampling.format)
        self._chain = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
        for part in self._parts(window, sampling, ends):
            api.llama_sampler_chain_add(self._chain, part)
        self._candidates = np.empty(self._vocabulary, _DATA) if self._grammar is not None else None

    def _make_grammar(self, vocab: Any, wanted: str) -> Any:
        from llama_cpp.llama_grammar import JSON_GBNF, json_schema_to_gbnf

        try:
            text = JSON_GBNF if wanted == "json" else json_schema_to_gbnf(wanted)
        except (ValueError, KeyError, TypeError, AttributeError, AssertionError, RecursionError) as error:
            raise BadCall(f"The JSON schema is not one that can be kept to: {error}.", "response_format") from error
        grammar = self._api.llama_sampler_init_grammar(vocab, text.encode(), b"root")
        if not grammar:
            raise BadCall("The JSON schema is not one that can be kept to.", "response_format")
        return grammar

    def _parts(self, window: int, sampling: Sampling, ends: tuple[int, ...]) -> list[Any]:
        """llama.cpp's samplers, in the order in which its server has them."""
        api = self._api
        parts = []
        biases = dict(sampling.logit_bias)
        if sampling.ignore_eos:
            biases |= dict.fromkeys(ends, float("-inf"))
        if biases:
            array = (api.llama_logit_bias * len(biases))(*biases.items())
            parts.append(api.llama_sampler_init_logit_bias(self._vocabulary, len(biases), array))
        if sampling.repetition_penalty != 1 or sampling.frequency_penalty or sampling.presence_penalty:
            penalties = (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty)
            parts.append(api.llama_sampler_init_penalties(*self._penalty_size(window), *penalties))
        if sampling.temperature <= 0:
            return [*parts, api.llama_sampler_init_greedy()]
        seed = _RANDOM if sampling.seed is None else sampling.seed % _RANDOM
        return [
            *parts,
            api.llama_sampler_init_top_k(sampling.top_k),
            api.llama_sampler_init_typical(sampling.typical_p, 1),
            api.llama_sampler_init_top_p(sampling.top_p, 1),
            api.llama_sampler_init_min_p(sampling.min_p, 1),
            api.llama_sampler_init_temp(sampling.temperature),
            api.llama_sampler_init_dist(seed),
        ]

    def _penalty_size(self, window: int) -> tuple[int, ...]:
        """Newer llama.cpp also wants to know the vocabulary."""
        arguments = len(self._api.llama_sampler_init_penalties.argtypes or ()) or 5
        return (self._vocabulary, window) if arguments == 5 else (window,)

    def sample(self, row: int) -> int | None:
        """See `Sampler`."""
        api = self._api
        if self._candidates is None:
            token: int = api.llama_sampler_sample(self._chain, self._context, row)
            return token
        # A grammar is slow over a whole vocabulary, and the model mostly keeps to it by itself: so it is asked first
        # about the one token that would come, and about all of them only where it refuses that.
        candidates = self._candidates
        candidates["id"] = np.arange(self._vocabulary, dtype=np.int32)
        candidates["logit"] = np.ctypeslib.as_array(api.llama_get_logits_ith(self._context, row), (self._vocabulary,))
        candidates["p"] = 0
        logits = candidates["logit"].copy()
        chosen = self._apply(self._chain, candidates)
        single = np.array([(chosen, 1.0, 0.0)], _DATA)
        self._apply(self._grammar, single)
        if np.isneginf(single["logit"][0]):
            candidates["id"] = np.arange(self._vocabulary, dtype=np.int32)
            candidates["logit"] = logits
            candidates["p"] = 0
            self._apply(self._grammar, candidates)
            if np.isneginf(candidates["logit"]).all():
                return None
            chosen = self._apply(self._chain, candidates)
        api.llama_sampler_accept(self._grammar, chosen)
        api.llama_sampler_accept(self._chain, chosen)
        return int(chosen)

    def _apply(self, sampler: Any, candidates: Any) -> int:
        """Apply a sampler to the candidates; returns the token that it selected, the first where it selects none."""
        api = self._api
        array = api.llama_token_data_array(
            candidates.ctypes.data_as(ctypes.POINTER(api.llama_token_data)), len(candidates), -1, False
        )
        api.llama_sampler_apply(sampler, ctypes.byref(array))
        selected = array.selected if array.selected >= 0 else 0
        return int(array.data[selected].id)

    def close(self) -> None:
        self._api.llama_sampler_free(self._chain)
        if self._grammar is not None:
            self._api.llama_sampler_free(self._grammar)
