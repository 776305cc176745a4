"""Chooses features by name, and loads saved ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batuta.conductors.features import Features, Floats
from batuta.conductors.hashed_ngrams import HashedNgrams
from batuta.conductors.sentence_features import EncodedSentences, SentenceEmbedding
from batuta.errors import ConfigError

MINILM = "minilm"
"""The name of the encoder of the extra `encoder`."""


def choose_features(embedding: str | None) -> Features:
    """Return hashed n-grams for None, the extra's encoder for `minilm`, else a named model's."""
    if embedding is None:
        return HashedNgrams()
    return EncodedSentences() if embedding == MINILM else SentenceEmbedding(embedding)


def load_features(card: Mapping[str, Any], tensors: Mapping[str, Floats]) -> Features:
    """Load saved features.

    Raises:
        ConfigError: the card has an unknown kind, or does not fit the tensors.
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
        raise ConfigError(f"the card of features {kind} is damaged: {error!r}") from None
