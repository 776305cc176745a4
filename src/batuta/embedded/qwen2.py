"""Qwen2 in numpy: one sequence at a time, in float32.

Qwen2 (arXiv:2407.10671, section 2.2) has RMSNorm, rotary positions (arXiv:2104.09864),
grouped-query attention with biases, and SwiGLU. Sliding windows and scaled positions are refused.

At this size the number of numpy calls determines the time of a token. So when the matrices are
loaded, each norm's weight is folded into the matrix that follows and the scale of the scores into
that of the queries, and q, k and v are joined into one matrix, gate and up into another. The halves
of a head that rotary positions pair are interleaved, so that rotating them is one product of
complex numbers.

Axes: t new tokens, c all tokens so far, d hidden, h query heads, k key heads, e entries of a head,
f inner entries of the MLP, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from batuta.embedded.model_files import Floats, Tensors
from batuta.errors import ConfigError

_HALF = np.float32(0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen2Config:
    """The sizes and options of a Qwen2 model, from its config.json."""

    vocabulary: int
    hidden: int
    inner: int
    layers: int
    heads: int
    """Number of query heads."""
    key_heads: int
    """Number of heads of keys and values."""
    positions: int
    """Maximum tokens of a sequence."""
    epsilon: float
    """Added to the mean square in RMSNorm."""
    theta: float
    """The base of the rotary frequencies."""
    ties_embeddings: bool
    """True if the output head is the embedding matrix."""

    def __post_init__(self) -> None:
        sizes = (self.vocabulary, self.hidden, self.inner, self.layers, self.positions)
        if min(*sizes, self.heads, self.key_heads) < 1:
            raise ValueError("a size is not positive")
        if self.hidden % (2 * self.heads) or self.heads % self.key_heads:
            raise ValueError(
                "hidden / heads is not an even number, or heads / key heads not a whole one"
            )

    @property
    def head(self) -> int:
        """Number of entries of one head."""
        return self.hidden // self.heads

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Self:
        """Read the content of a config.json.

        Raises:
            ConfigError: the content is malformed, or the model is not a Qwen2 that is supported.
        """
        try:
            _check_config(config)
            return cls(
                vocabulary=int(config["vocab_size"]),
                hidden=int(config["hidden_size"]),
                inner=int(config["intermediate_size"]),
                layers=int(config["num_hidden_layers"]),
                heads=int(config["num_attention_heads"]),
                key_heads=int(config["num_key_value_heads"]),
                positions=int(config["max_position_embeddings"]),
                epsilon=float(config["rms_norm_eps"]),
                theta=float(_rope_settings(config)["rope_theta"]),
                ties_embeddings=bool(config["tie_word_embeddings"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"config.json is not as transformers saves it: {error!r}") from None


def _rope_settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of rotary positions, as transformers 4 or 5 writes them."""
    if "rope_parameters" in config:
        return config["rope_parameters"]
    return {"rope_theta": config["rope_theta"], **(config.get("rope_scaling") or {})}


def _check_config(config: Mapping[str, Any]) -> None:
    if config["model_type"] == "llama":
        raise ConfigError(
            "a Llama is served by llama.cpp: write it as a file with `batuta train export`, and "
            "name that file"
        )
    settings = {
        "model_type": (config["model_type"], "qwen2"),
        "hidden_act": (config.get("hidden_act", "silu"), "silu"),
        "use_sliding_window": (bool(config.get("use_sliding_window")), False),
        "rope_type": (_rope_settings(config).get("rope_type", "default"), "default"),
    }
    for name, (value, computed) in settings.items():
        if value != computed:
            raise ConfigError(
                f"config.json sets {name} to {value!r}; the embedded model computes only "
                f"{computed!r}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """The matrices of one layer, to be multiplied by a row vector from the left."""

    qkv: Floats
    """(d, (h + 2k) e)"""
    bias: Floats
    """((h + 2k) e)"""
    out: Floats
    """(h e, d)"""
    gate_up: Floats
    """(d, 2f)"""
    down: Floats
    """(f, d)"""


@final
class KVCache:
    """The keys and values of one sequence, each (layer, k, room, e)."""

    def __init__(self, shape: Qwen2Config, room: int) -> None:
        """Allocate memory for `room` tokens."""
        size = (shape.layers, shape.key_heads, room, shape.head)
        self.keys: Floats = np.empty(size, np.float32)
        self.values: Floats = np.empty(size, np.float32)
        self.length = 0
        """Number of tokens so far."""


@final
class Qwen2:
    """The model's weights; a sequence's state is its `KVCache`, so one model serves many."""

    def __init__(self, shape: Qwen2Config, tensors: Tensors) -> None:
        """Take the weights from a file's tensors.

        Raises:
            ConfigError: a tensor is missing or cannot be used.
        """
        self.shape = shape
        size = (shape.vocabulary, shape.hidden)
        self._embedding = tensors.take("model.embed_tokens.weight", *size)
        head = self._embedding if shape.ties_embeddings else tensors.take("lm_head.weight", *size)
        self._head = _fold_norm(tensors.take("model.norm.weight", shape.hidden), head)
        self._layers = [_load_layer(shape, tensors, index) for index in range(shape.layers)]
        self._rotations = _rope_rotations(shape)

    def logits(self, tokens: Sequence[int], cache: KVCache) -> Floats:
        """Append `tokens` to the sequence in `cache`; return the logits of the next token: (v).

        One call for several tokens is faster than a call for each; the logits are the same, up to
        rounding. The cache must have room for the tokens.
        """
        hidden = self._embedding[tokens]
        seen = slice(cache.length, cache.length + len(tokens))
        rotations = self._rotations[seen, None]
        for index, layer in enumerate(self._layers):
            qkv = self._rms_norm(hidden) @ layer.qkv
            qkv += layer.bias
            mixed = self._attend(qkv, rotations, cache.keys[index], cache.values[index], seen=seen)
            hidden += mixed @ layer.out
            hidden += _gated_activation(self._rms_norm(hidden) @ layer.gate_up) @ layer.down
        cache.length = seen.stop
        return self._rms_norm(hidden[-1:])[0] @ self._head

    def _rms_norm(self, hidden: Floats) -> Floats:
        """Return the RMSNorm of each row, (t, d), without the norm's weight."""
        mean_square = np.vecdot(hidden, hidden) / self.shape.hidden
        return hidden / np.sqrt(mean_square + self.shape.epsilon)[:, None]

    def _attend(
        self,
        qkv: Floats,
        rotations: NDArray[np.complex64],
        keys: Floats,
        values: Floats,
        *,
        seen: slice,
    ) -> Floats:
        """Store the new keys and values; return each new token's attention output, (t, h e)."""
        shape, t = self.shape, len(qkv)
        split = shape.heads + shape.key_heads
        per_head = qkv.reshape(t, split + shape.key_heads, shape.head)
        rotated = per_head[:, :split].view(np.complex64)
        rotated *= rotations
        keys[:, seen] = per_head[:, shape.heads : split].swapaxes(0, 1)
        values[:, seen] = per_head[:, split:].swapaxes(0, 1)
        groups = (shape.key_heads, shape.heads // shape.key_heads)
        queries = per_head[:, : shape.heads].reshape(t, *groups, shape.head)
        queries = queries.transpose(1, 2, 0, 3).reshape(shape.key_heads, -1, shape.head)
        scores = queries @ keys[:, : seen.stop].swapaxes(1, 2)
        if t > 1:
            _mask_future(scores.reshape(*groups, t, seen.stop))
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        mixed = weights @ values[:, : seen.stop]
        mixed /= weights.sum(axis=2, keepdims=True)
        return mixed.reshape(*groups, t, shape.head).transpose(2, 0, 1, 3).reshape(t, -1)


def _mask_future(scores: Floats) -> None:
    """Set to minus infinity the scores of the tokens that follow each new token.

    `scores` are (…, t, c); the new tokens are the last t of axis c.
    """
    t, c = scores.shape[-2:]
    scores[..., np.triu(np.ones((t, c), np.bool_), c - t + 1)] = -np.inf


def _gated_activation(gate_up: Floats) -> Floats:
    """Return SwiGLU, silu(gate) times up: (t, f).

    In the form x (1 + tanh(x / 2)) / 2, silu cannot overflow.
    """
    inner = gate_up.shape[1] // 2
    half = gate_up[:, :inner] * _HALF
    gated = np.tanh(half)
    gated += 1
    gated *= half
    gated *= gate_up[:, inner:]
    return gated


def _fold_norm(norm: Floats, matrix: Floats) -> Floats:
    """Return `matrix`, (out, d), transposed and with the preceding norm's weight folded in."""
    return np.ascontiguousarray((matrix * norm).T)


def _load_layer(shape: Qwen2Config, tensors: Tensors, index: int) -> _Layer:
    d, e, f = shape.hidden, shape.head, shape.inner
    sizes = {"q": shape.heads * e, "k": shape.key_heads * e, "v": shape.key_heads * e}

    def take(name: str, *size: int) -> Floats:
        return tensors.take(f"model.layers.{index}.{name}", *size)

    weights = {n: take(f"self_attn.{n}_proj.weight", size, d) for n, size in sizes.items()}
    biases = {n: take(f"self_attn.{n}_proj.bias", size) for n, size in sizes.items()}
    for part in (weights, biases):
        part["q"] = _interleave_halves(part["q"], e) / np.sqrt(np.float32(e))
        part["k"] = _interleave_halves(part["k"], e)
    qkv = np.concatenate([*weights.values()])
    gate_up = [take(f"mlp.{name}_proj.weight", f, d) for name in ("gate", "up")]
    return _Layer(
        qkv=_fold_norm(take("input_layernorm.weight", d), qkv),
        bias=np.concatenate([*biases.values()]),
        out=np.ascontiguousarray(take("self_attn.o_proj.weight", d, d).T),
        gate_up=_fold_norm(take("post_attention_layernorm.weight", d), np.concatenate(gate_up)),
        down=np.ascontiguousarray(take("mlp.down_proj.weight", d, f).T),
    )


def _interleave_halves(rows: Floats, head: int) -> Floats:
    """Return each head's rows in the order 0, e/2, 1, e/2 + 1…, in pairs that rotate together."""
    halves = rows.reshape(-1, 2, head // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def _rope_rotations(shape: Qwen2Config) -> NDArray[np.complex64]:
    """Return the rotation of each pair of a head's entries at each position: (position, e/2)."""
    powers = np.arange(0, shape.head, 2, dtype=np.float32) / np.float32(shape.head)
    frequencies = (1.0 / np.float32(shape.theta) ** powers).astype(np.float32)
    angles = np.arange(shape.positions, dtype=np.float32)[:, None] * frequencies
    return (np.cos(angles) + 1j * np.sin(angles)).astype(np.complex64)
