"""The model of llama-cpp-python, by its C bindings: they batch sequences and can be interrupted, its class `Llama` not.

llama.cpp's logits are asked for where a token is drawn only, so log probabilities cost no memory for whole prompts.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from engines.embedded_worker.llama_sampler import Chain
from engines.embedded_worker.model import BadCall, LoadError, ModelError, Part, Sampler, Sampling, Settings

__all__ = ["Llama", "load"]

_ABORTED = 2
_POOLING_MEAN = 1
_PIECE = 256  # bytes that nearly every token fits into


def load(settings: Settings) -> Llama:
    """Load the model. Raises LoadError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from llama_cpp import llama_cpp as api
        except ImportError as error:
            raise LoadError(f"llama-cpp-python cannot be imported: {error}") from error
    return Llama(api, settings)


class Llama:
    """A `Model`.

    Args:
        api: the module `llama_cpp.llama_cpp`.
    """

    def __init__(self, api: Any, settings: Settings) -> None:
        self._api = api
        api.llama_backend_init()
        parameters = api.llama_model_default_params()
        parameters.n_gpu_layers = settings.gpu_layers if settings.gpu_layers >= 0 else 2**31 - 1
        self._model = api.llama_model_load_from_file(settings.model.encode(), parameters)
        if not self._model:
            raise LoadError(f"llama.cpp cannot load {settings.model}; its own words stand above")
        self._vocab = api.llama_model_get_vocab(self._model)
        self.vocabulary = int(api.llama_vocab_n_tokens(self._vocab))
        # C calls it for every node of the graph. As a C function of the C library's own it needs neither Python nor
        # its lock: the text at `_flag` is empty, or one byte long, and that is the answer, no or yes.
        self._flag = ctypes.create_string_buffer(2)
        self._strlen = api.ggml_abort_callback(ctypes.cast(ctypes.CDLL(None).strlen, ctypes.c_void_p).value)
        self._context = self._make_context(settings)
        self._memory = api.llama_get_memory(self._context)
        self.context = int(api.llama_n_ctx_seq(self._context))
        self.batch = int(api.llama_n_batch(self._context))
        self._batch = api.llama_batch_init(self.batch, 0, 1)
        self._pieces: dict[int, bytes] = {}
        self._ends: tuple[int, ...] | None = None
        self._template = self._load_template(settings)

    def _make_context(self, settings: Settings) -> Any:
        api = self._api
        parameters = api.llama_context_default_params()
        parameters.n_ctx = settings.context * settings.slots
        parameters.n_seq_max = settings.slots
        parameters.n_batch = parameters.n_ubatch = min(settings.batch, settings.context)
        parameters.n_threads = settings.threads
        parameters.n_threads_batch = settings.batch_threads
        parameters.abort_callback = self._strlen
        parameters.abort_callback_data = ctypes.addressof(self._flag)
        parameters.no_perf = True
        if settings.embeddings:
            parameters.embeddings = True
            # A text is pooled within one physical batch, so it must fit into one.
            parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = settings.context
            parameters.n_seq_max = 1
            architecture = self._metadata("general.architecture")
            if self._metadata(f"{architecture}.pooling_type") is None:
                parameters.pooling_type = _POOLING_MEAN
        context = api.llama_init_from_model(self._model, parameters)
        if not context:
            raise LoadError("llama.cpp cannot make a context of that size; its own words stand above")
        return context

    def _metadata(self, key: str) -> str | None:
        buffer = ctypes.create_string_buffer(256)
        length = self._api.llama_model_meta_val_str(self._model, key.encode(), buffer, len(buffer))
        return None if length < 0 else buffer.value.decode("utf-8", "replace")

    # -- text --------------------------------------------------------------------------------------------------

    def _load_template(self, settings: Settings) -> Any:
        if settings.embeddings:
            return None
        if settings.chat_template is not None:
            with open(settings.chat_template, encoding="utf-8") as stream:
                source = stream.read()
        else:
            found = self._api.llama_model_chat_template(self._model, None)
            if not found:
                return None
            source = found.decode("utf-8", "replace")
        import jinja2
        from llama_cpp.llama_chat_format import Jinja2ChatFormatter

        begin, end = self._api.llama_vocab_bos(self._vocab), self._api.llama_vocab_eos(self._vocab)
        self._begin = self._special(begin)
        try:
            return Jinja2ChatFormatter(template=source, bos_token=self._begin, eos_token=self._special(end))
        except jinja2.TemplateError as error:
            raise LoadError(f"the chat template is not right: {error}") from error

    def render(self, messages: list[dict[str, Any]]) -> str:
        """See `Model`. The template is data of whoever made the model, and runs in Jinja's sandbox."""
        if self._template is None:
            raise BadCall("This model has no chat template; use completions.", "messages", "Unsupported")
        import jinja2

        try:
            prompt: str = self._template(messages=messages).prompt
        except (jinja2.TemplateError, ValueError, TypeError, KeyError) as error:
            raise BadCall(f"The model's chat template does not take these messages: {error}.", "messages") from error
        # The tokenizer sets the model's beginning itself, where the model wants one.
        return prompt.removeprefix(self._begin) if self._api.llama_vocab_get_add_bos(self._vocab) else prompt

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        data = text.encode("utf-8", "replace")
        size = len(data) + 2
        tokens = (self._api.llama_token * size)()
        count = self._api.llama_tokenize(self._vocab, data, len(data), tokens, size, True, special)
        if count < 0:
            size = -count
            tokens = (self._api.llama_token * size)()
            count = self._api.llama_tokenize(self._vocab, data, len(data), tokens, size, True, special)
        return list(tokens[:count])

    def piece(self, token: int) -> bytes:
        known = self._pieces.get(token)
        if known is None:
            known = self._pieces[token] = self._to_piece(token, special=False)
        return known

    def _special(self, token: int) -> str:
        return "" if token < 0 else self._to_piece(token, special=True).decode("utf-8", "replace")

    def _to_piece(self, token: int, *, special: bool) -> bytes:
        buffer = ctypes.create_string_buffer(_PIECE)
        length = self._api.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, special)
        if length < 0:
            buffer = ctypes.create_string_buffer(-length)
            length = self._api.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, special)
        return buffer.raw[:length]

    def is_end(self, token: int) -> bool:
        return bool(self._api.llama_vocab_is_eog(self._vocab, token))

    # -- computing ---------------------------------------------------------------------------------------------

    def sampler(self, sampling: Sampling) -> Sampler:
        if sampling.ignore_eos and self._ends is None:
            self._ends = tuple(token for token in range(self.vocabulary) if self.is_end(token))
        return Chain(self._api, self._context, self._vocab, self.context, sampling, self._ends or ())

    def decode(self, parts: Sequence[Part]) -> list[int] | None:
        rows = []
        count = 0
        for part in parts:
            for offset, token in enumerate(part.tokens):
                self._put(count, token, part.start + offset, part.sequence, output=False)
                count += 1
            if part.row:
                self._batch.logits[count - 1] = 1
                rows.append(count - 1)
        self._batch.n_tokens = count
        return rows if self._run() else None

    def forget(self, sequence: int, start: int) -> bool:
        if self._memory is None or self._api.llama_memory_seq_rm(self._memory, sequence, start, -1):
            return True
        self._api.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        return start == 0

    def logprobs(self, row: int, token: int, top: int) -> tuple[float, list[tuple[int, float]]]:
        pointer = self._api.llama_get_logits_ith(self._context, row)
        logits = np.ctypeslib.as_array(pointer, (self.vocabulary,)).astype(np.float64)
        highest = logits.max()
        logits -= highest + np.log(np.exp(logits - highest).sum())
        likeliest = np.argpartition(-logits, min(top, self.vocabulary - 1))[:top] if top else np.empty(0, np.intp)
        ordered = likeliest[np.argsort(-logits[likeliest])]
        return float(logits[token]), [(int(other), float(logits[other])) for other in ordered]

    def embed(self, tokens: Sequence[int]) -> list[float] | None:
        if self._memory is not None:
            self._api.llama_memory_clear(self._memory, True)
        for position, token in enumerate(tokens):
            self._put(position, token, position, 0, output=True)
        self._batch.n_tokens = len(tokens)
        if not self._run():
            return None
        pointer = self._api.llama_get_embeddings_seq(self._context, 0)
        if not pointer:
            raise ModelError("the model gives no embedding of a text")
        vector = np.ctypeslib.as_array(pointer, (self._api.llama_model_n_embd_out(self._model),)).astype(np.float64)
        length = float(np.linalg.norm(vector))
        made: list[float] = (vector / length if length > 0 else vector).astype(np.float32).tolist()
        return made

    def interrupt(self, stop: bool) -> None:
        self._flag[0] = b"\x01" if stop else b"\x00"

    def _put(self, place: int, token: int, position: int, sequence: int, *, output: bool) -> None:
        batch = self._batch
        batch.token[place] = token
        batch.pos[place] = position
        batch.n_seq_id[place] = 1
        batch.seq_id[place][0] = sequence
        batch.logits[place] = output

    def _run(self) -> bool:
        """Compute the batch. False where it was interrupted."""
        code = self._api.llama_decode(self._context, self._batch)
        if code not in (0, _ABORTED):
            raise ModelError(f"llama_decode returned {code}")
        return bool(code == 0)
