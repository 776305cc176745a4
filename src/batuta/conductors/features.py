"""From a question's text to numbers that a selector or a router can learn from: what all have.

The kinds are in `feature_kinds`: `HashedNgrams` needs numpy and nothing else; `EncodedSentences`
the extra `encoder`; `SentenceEmbedding` any sentence-transformers model. All are fitted on the
training questions, saved as tensors and a JSON card, and loaded by `feature_kinds.load_features`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
SavedFeatures = tuple[dict[str, Any], dict[str, Floats]]
"""A card (JSON values; `kind` says whose) and tensors by name."""


class Features(Protocol):
    """Texts to vectors.

    Laws: once fitted, the same text has the same vector everywhere and whatever texts are beside
    it; each vector has length 1, or 0 if nothing in the text is known; `load(*features.save())`
    gives the same vectors.
    """

    @property
    def name(self) -> str:
        """What it is and its numbers."""
        ...

    def fit(self, texts: Sequence[str]) -> Features:
        """The same features, fitted to these texts."""
        ...

    def __call__(self, texts: Sequence[str]) -> Floats:
        """A row for each text: (n, d)."""
        ...

    def save(self) -> SavedFeatures:
        """What `load` needs."""
        ...
