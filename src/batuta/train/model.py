"""The policy's network: a small Qwen2 from nothing, or a pretrained one from a folder or hub."""

from __future__ import annotations

from typing import Any

from transformers import Qwen2Config, Qwen2ForCausalLM


def make_model(
    tokenizer: Any,
    *,
    hidden: int = 128,
    layers: int = 3,
    heads: int = 4,
    kv_heads: int = 2,
    inner: int = 256,
    positions: int = 1024,
) -> Qwen2ForCausalLM:
    """A Qwen2 of random weights with tied embeddings, in fp32.

    Args:
        tokenizer: gives the vocabulary and the special tokens.
        hidden: width of the residual stream.
        layers: how many.
        heads: of attention.
        kv_heads: keys and values are shared among the heads.
        inner: width inside the feed-forward part.
        positions: tokens of prompt and completion at most.
    """
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=inner,
        max_position_embeddings=positions,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        use_cache=True,
        initializer_range=0.02,
    )
    return Qwen2ForCausalLM(config)
