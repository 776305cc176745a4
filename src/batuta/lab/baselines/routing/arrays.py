"""Types of numpy arrays, named by their entries."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Indices = NDArray[np.signedinteger[Any]]
"""Indices into another array."""
Masks = NDArray[np.bool_]
