"""The protocol of features: question texts as vectors for selectors and routers.

Of the implementations, `HashedNgrams` needs only numpy, `EncodedSentences` the extra `encoder`, and
`SentenceEmbedding` a sentence-transformers model. Only the first is fitted to training questions.
All are saved as tensors and a JSON card, and loaded by `feature_kinds.load_features`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
SavedFeatures = tuple[dict[str, Any], dict[str, Floats]]
"""A card of JSON values, whose `kind` names the class, and tensors by name."""


class Features(Protocol):
    """A function from texts to vectors.

    Laws, up to rounding: after fitting, a text has the same vector on every machine and beside any
    other texts; each vector has length 1, or 0 if the text has no feature that counts;
    `load(*features.save())` gives the same vectors.
    """

    @property
    def name(self) -> str:
        """The method with its parameters, or the model."""
        ...

    def fit(self, texts: Sequence[str]) -> Features:
        """Return the features fitted to the texts; pretrained ones are returned unchanged.

        Raises:
            ConfigError: there are no texts.
        """
        ...

    def __call__(self, texts: Sequence[str]) -> Floats:
        """Return a row for each text: (n, d).

        Raises:
            ConfigError: the features are not fitted, or the model cannot be loaded.
        """
        ...

    def save(self) -> SavedFeatures:
        """Return a card and tensors for `load`."""
        ...
