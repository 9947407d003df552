"""Writes a tiny llama model with random weights: nonsense words, but served by a real llama.cpp at once.

Only whole words and characters can come out (the rows of byte and control tokens are nought), so that answers are
valid text; now and then the end of the turn comes, which is token 4.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["write_tiny_gguf"]

HIDDEN, LAYERS, FEED_FORWARD, HEADS, KV_HEADS, CONTEXT = 64, 2, 128, 4, 2, 4_096
END_OF_TURN = 4
WORDS = (
    "the of and to in is that it was for on are with as at be this have from or one had by word but not what all "
    "were we when your can said there use an each which she do how their if will up other about out many then them"
)
CHARACTERS = "▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:;!?'\"()[]{}-_/\\"
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_tiny_gguf(path: Path, seed: int = 0) -> Path:
    """Write the model and return its path. The same seed gives the same model."""
    import gguf  # a tool of the tests alone, and slow to import

    writer = gguf.GGUFWriter(str(path), "llama")
    silent, size = _vocabulary(writer, gguf.TokenType)
    writer.add_name("tiny-random-llama")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_chat_template(TEMPLATE)
    for name, weights in _tensors(silent, size, seed).items():
        writer.add_tensor(name, weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _vocabulary(writer: Any, kinds: Any) -> tuple[int, int]:
    """Add the tokens; return how many of them, at the front, must never come out, and how many there are."""
    tokens: dict[str, tuple[float, int]] = {"<unk>": (0.0, kinds.UNKNOWN)}
    for name in ("<s>", "</s>", "<|im_start|>", "<|im_end|>"):
        tokens[name] = (0.0, kinds.CONTROL)
    for byte in range(256):
        tokens[f"<0x{byte:02X}>"] = (0.0, kinds.BYTE)
    silent = len(tokens)
    # A word is found by joining pieces pairwise, so its beginnings must be tokens too.
    for rank, word in enumerate(WORDS.split()):
        tokens.setdefault(f"▁{word}", (-10.0 - rank, kinds.NORMAL))
        for length in range(2, len(word) + 1):
            for piece in (f"▁{word[: length - 1]}", word[:length]):
                tokens.setdefault(piece, (-300.0 - len(tokens) / 100, kinds.NORMAL))
    for rank, character in enumerate(CHARACTERS):
        tokens.setdefault(character, (-500.0 - rank, kinds.NORMAL))
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([token.encode() for token in tokens])
    writer.add_token_scores([score for score, _ in tokens.values()])
    writer.add_token_types([int(kind) for _, kind in tokens.values()])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(END_OF_TURN)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    return silent, len(tokens)


def _tensors(silent: int, size: int, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)

    def weights(*shape: int, deviation: float | None = None) -> np.ndarray:
        return (random.standard_normal(shape) * (deviation or shape[-1] ** -0.5)).astype(np.float16)

    ones = np.ones(HIDDEN, np.float32)
    narrow = KV_HEADS * HIDDEN // HEADS
    output = weights(size, HIDDEN, deviation=1.0)
    output[:silent] = 0
    output[END_OF_TURN] = weights(HIDDEN, deviation=0.6)
    tensors = {
        "token_embd.weight": weights(size, HIDDEN, deviation=1.0),
        "output.weight": output,
        "output_norm.weight": ones,
    }
    for layer in range(LAYERS):
        block = {
            "attn_norm": ones,
            "attn_q": weights(HIDDEN, HIDDEN),
            "attn_k": weights(narrow, HIDDEN),
            "attn_v": weights(narrow, HIDDEN),
            "attn_output": weights(HIDDEN, HIDDEN),
            "ffn_norm": ones,
            "ffn_gate": weights(FEED_FORWARD, HIDDEN),
            "ffn_up": weights(FEED_FORWARD, HIDDEN),
            "ffn_down": weights(HIDDEN, FEED_FORWARD),
        }
        tensors |= {f"blk.{layer}.{name}.weight": tensor for name, tensor in block.items()}
    return tensors
