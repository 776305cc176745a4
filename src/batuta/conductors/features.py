"""The protocol of features: question texts as vectors for selectors and routers.

`feature_kinds` lists them: `HashedNgrams` needs only numpy, `EncodedSentences` the extra `encoder`,
and `SentenceEmbedding` a sentence-transformers model. All are fitted on the training questions,
saved as tensors and a JSON card, and loaded by `feature_kinds.load_features`.
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

    Laws: after fitting, a text has the same vector on every machine and beside any other texts;
    each vector has length 1, or 0 if no feature of the text is known; `load(*features.save())`
    gives the same vectors.
    """

    @property
    def name(self) -> str:
        """The method and its parameters."""
        ...

    def fit(self, texts: Sequence[str]) -> Features:
        """Return these features fitted to the texts."""
        ...

    def __call__(self, texts: Sequence[str]) -> Floats:
        """Return a row for each text: (n, d)."""
        ...

    def save(self) -> SavedFeatures:
        """Return a card and tensors for `load`."""
        ...
