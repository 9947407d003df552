"""Writes a tiny model with random weights in llama's architecture: real to llama.cpp, a third of a megabyte.

The same seed gives the same file. Its answers are words without sense, in valid UTF-8: the rows of the output
matrix that belong to byte and control tokens are zero, so that words win.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

__all__ = ["write"]

HIDDEN, LAYERS, FEED_FORWARD, HEADS, KV_HEADS, CONTEXT = 64, 2, 128, 4, 2, 4096
END_OF_TURN = 4
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDS = (
    "a about after all an and any are as at back be because but by can come could day do even find first "
    "for from get give go good have he her here him his how if in into it just know like look make many "
    "me more my new no not now of on one only or other our out people say see she so some take than that "
    "the their them then there these they think this time to two up us use want water way we well what "
    "when which who will with work would year you "
)
LETTERS = "\u2581abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:;!?'\"()[]{}-_/\\<>|\n"


def write(file: Path, seed: int = 0) -> Path:
    """Write the model to `file` and return it."""
    tokens, scores, kinds, first_word = _vocabulary()
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_name("tiny-random")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(END_OF_TURN)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_chat_template(TEMPLATE)

    def weights(*shape: int, scale: float | None = None) -> NDArray[np.float16]:
        drawn: NDArray[np.float16] = (random.standard_normal(shape) * (scale or shape[-1] ** -0.5)).astype(np.float16)
        return drawn

    writer.add_tensor("token_embd.weight", weights(len(tokens), HIDDEN, scale=1.0))
    output = weights(len(tokens), HIDDEN, scale=1.0)
    output[:first_word] = 0
    output[END_OF_TURN] = weights(HIDDEN, scale=0.6)  # now and then an answer ends by itself
    writer.add_tensor("output.weight", output)
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    kv = KV_HEADS * HIDDEN // HEADS
    shapes = {"attn_q": (HIDDEN, HIDDEN), "attn_k": (kv, HIDDEN), "attn_v": (kv, HIDDEN)}
    shapes |= {"attn_output": (HIDDEN, HIDDEN)}
    shapes |= {"ffn_gate": (FEED_FORWARD, HIDDEN), "ffn_up": (FEED_FORWARD, HIDDEN), "ffn_down": (HIDDEN, FEED_FORWARD)}
    for layer in range(LAYERS):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{norm}.weight", np.ones(HIDDEN, np.float32))
        for name, shape in shapes.items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", weights(*shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _vocabulary() -> tuple[list[bytes], list[float], list[int], int]:
    """Tokens, scores and kinds, and the position of the first token that is text."""
    kind = gguf.TokenType
    rows: dict[bytes, tuple[float, int]] = {b"<unk>": (0.0, kind.UNKNOWN)}
    for control in (b"<s>", b"</s>", b"<|im_start|>", b"<|im_end|>"):
        rows[control] = (0.0, kind.CONTROL)
    for byte in range(256):
        rows[b"<0x%02X>" % byte] = (0.0, kind.BYTE)
    first_word = len(rows)
    for rank, word in enumerate(WORDS.split()):
        rows.setdefault(f"\u2581{word}".encode(), (-10.0 - rank, kind.NORMAL))
    for rank, letter in enumerate(LETTERS):
        rows.setdefault(letter.encode(), (-500.0 - rank, kind.NORMAL))
    # The tokenizer merges pairs, best score first: every beginning of a word must be a token itself.
    for word in WORDS.split():
        for end in range(1, len(word)):
            for part in ("\u2581" + word[:end], word[: end + 1]):
                rows.setdefault(part.encode(), (-300.0 - len(rows) / 100, kind.NORMAL))
    tokens = list(rows)
    return tokens, [float(score) for score, _ in rows.values()], [int(kind) for _, kind in rows.values()], first_word


if __name__ == "__main__":
    write(Path(sys.argv[1]))
