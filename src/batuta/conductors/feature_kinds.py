"""Chooses text features by name, and loads saved ones."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np

from batuta.conductors.features import Features, Floats, SavedFeatures
from batuta.conductors.hashed_ngrams import HashedNgrams
from batuta.distribution import package_hint
from batuta.encoder import ENCODER_NAME, WIDTH, open_encoder
from batuta.errors import ConfigError

_CACHED_VECTORS = 30_000
"""Maximum number of texts whose vectors are cached."""
_LONGEST_CACHED = 20_000
"""Maximum number of characters of a text that is cached, since the cache keeps the texts too."""


@dataclass(frozen=True, slots=True)
class EncodedSentences:
    """MiniLM sentence vectors from the extra `encoder`, without torch, cached in the process.

    A text of more than `batuta.encoder.MAX_TOKENS` tokens is truncated.
    """

    @property
    def name(self) -> str:
        """The name of the model."""
        return ENCODER_NAME

    def fit(self, texts: Sequence[str]) -> EncodedSentences:
        """Return these features; the model is pretrained.

        Raises:
            ConfigError: there are no texts.
        """
        if not texts:
            raise ConfigError("features need at least one training question")
        return self

    def __call__(self, texts: Sequence[str]) -> Floats:
        """Return a unit vector for each text, as rows: (n, WIDTH).

        Raises:
            ConfigError: the extra is not installed, or its files cannot be used.
        """
        encode = _encode_text.__wrapped__
        rows = [
            _encode_text(text) if len(text) <= _LONGEST_CACHED else encode(text) for text in texts
        ]
        return np.asarray(rows, np.float32).reshape(len(texts), WIDTH)

    def save(self) -> SavedFeatures:
        """Return a card with the name of the model, and no tensors."""
        return {"kind": "sentence-encoder", "model": ENCODER_NAME}, {}

    @classmethod
    def load(cls, card: Mapping[str, Any], _: Mapping[str, Floats]) -> Self:
        """Load what `save` returned.

        Raises:
            KeyError: the card names no model.
            ValueError: the features were fitted with another model.
        """
        if card["model"] != ENCODER_NAME:
            raise ValueError(
                f"it was learned with {card['model']}, and {ENCODER_NAME} is installed"
            )
        return cls()


@lru_cache(_CACHED_VECTORS)
def _encode_text(text: str) -> Floats:
    return open_encoder()([text])[0]


@dataclass(frozen=True, slots=True)
class SentenceEmbedding:
    """A sentence-transformers model, which needs torch and is loaded on first use."""

    folder: str
    """The model's folder, or its name on the Hugging Face hub."""

    @property
    def name(self) -> str:
        """The last part of the folder or name, after `sentence-embedding/`."""
        return f"sentence-embedding/{Path(self.folder).name}"

    def fit(self, texts: Sequence[str]) -> SentenceEmbedding:
        """Return these features; the model is pretrained."""
        return self

    def __call__(self, texts: Sequence[str]) -> Floats:
        """Return a unit vector for each text, as rows: (n, d).

        Raises:
            ConfigError: sentence-transformers is not installed, or the model cannot be loaded.
        """
        encoder = _load_encoder(self.folder)
        return np.asarray(encoder.encode(list(texts), normalize_embeddings=True), np.float32)

    def save(self) -> SavedFeatures:
        """Return a card with the folder or name of the model, and no tensors."""
        return {"kind": "sentence-embedding", "folder": self.folder}, {}

    @classmethod
    def load(cls, card: Mapping[str, Any], _: Mapping[str, Floats]) -> Self:
        """Load what `save` returned."""
        return cls(str(card["folder"]))


@cache
def _load_encoder(folder: str) -> Any:
    try:
        library = importlib.import_module("sentence_transformers")
    except ImportError:
        raise ConfigError(
            "sentence embeddings need sentence-transformers; install it "
            f"({package_hint('sentence-transformers')}), or use the hashed n-grams"
        ) from None
    try:
        return library.SentenceTransformer(folder)
    except (OSError, ValueError) as error:
        raise ConfigError(f"no sentence embedding could be loaded from {folder}: {error}") from None


MINILM = "minilm"
"""The argument of `choose_features` for the encoder of the extra `encoder`."""


def choose_features(embedding: str | None) -> Features:
    """Return hashed n-grams for None, MiniLM for `minilm`, else a sentence-transformers model."""
    if embedding is None:
        return HashedNgrams()
    return EncodedSentences() if embedding == MINILM else SentenceEmbedding(embedding)


def load_features(card: Mapping[str, Any], tensors: Mapping[str, Floats]) -> Features:
    """Load saved features.

    Raises:
        ConfigError: the card has an unknown kind, does not match the tensors, or needs another
            encoder than the installed one.
    """
    kinds = {
        "hashed-ngrams": HashedNgrams.load,
        "sentence-encoder": EncodedSentences.load,
        "sentence-embedding": SentenceEmbedding.load,
    }
    kind = str(card.get("kind"))
    if kind not in kinds:
        raise ConfigError(f"there are no features of kind {kind!r}; known: {', '.join(kinds)}")
    try:
        return kinds[kind](card, tensors)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"the features {kind} cannot be used: {error!r}") from None
