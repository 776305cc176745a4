"""The kinds of features there are: chosen by name, or loaded as they were saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batuta.conductors.features import Features, Floats
from batuta.conductors.hashed_ngrams import HashedNgrams
from batuta.conductors.sentence_features import EncodedSentences, SentenceEmbedding
from batuta.errors import ConfigError

MINILM = "minilm"
"""How the encoder of the extra `encoder` is called for."""


def choose_features(embedding: str | None) -> Features:
    """None: hashed n-grams; `minilm`: the extra's encoder; else a sentence-transformers model."""
    if embedding is None:
        return HashedNgrams()
    return EncodedSentences() if embedding == MINILM else SentenceEmbedding(embedding)


def load_features(card: Mapping[str, Any], tensors: Mapping[str, Floats]) -> Features:
    """The features that were saved so.

    Raises:
        ConfigError: the card is of no known kind, or does not fit the tensors.
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
