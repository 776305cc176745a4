"""Sentences as unit vectors: near ones mean much the same."""

from batuta.encoder.sentence_encoder import (
    ENCODER_NAME,
    MAX_TOKENS,
    WIDTH,
    SentenceEncoder,
    open_encoder,
)

__all__ = ["ENCODER_NAME", "MAX_TOKENS", "WIDTH", "SentenceEncoder", "open_encoder"]
