"""Sentence embeddings as unit vectors."""

from batuta.encoder.sentence_encoder import (
    ENCODER_NAME,
    MAX_TOKENS,
    WIDTH,
    SentenceEncoder,
    open_encoder,
)

__all__ = ["ENCODER_NAME", "MAX_TOKENS", "WIDTH", "SentenceEncoder", "open_encoder"]
