"""A selector's folder: its card, `batuta.json`, and its numbers, `selector.safetensors`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import orjson
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors import numpy as saved

from batuta.core import WorkerId
from batuta.embedded.model_files import read_json
from batuta.embedded.policy import CARD_FILE
from batuta.errors import ConfigError, StoreError
from batuta.solvers import features
from batuta.solvers.selector.guard import SelectorGuard
from batuta.solvers.selector.head import TEMPERATURE, CorrectionHead
from batuta.solvers.selector.model import SELECTOR_KIND, VALUE_ARRAYS, Selector
from batuta.solvers.selector.value_model import Smoothing, ValueModel

TENSOR_FILE = "selector.safetensors"
TensorDict = dict[str, NDArray[np.float32]]
_save_tensors = cast(
    "Callable[[TensorDict, Path], None]",
    saved.save_file,  # pyright: ignore[reportUnknownMemberType] - its stub says too little
)
_load_tensors = cast(
    "Callable[[Path], TensorDict]",
    saved.load_file,  # pyright: ignore[reportUnknownMemberType] - its stub says too little
)


def is_selector(folder: Path) -> bool:
    """Whether a selector lies there."""
    card = folder / CARD_FILE
    return card.is_file() and read_json(card).get("kind") == SELECTOR_KIND


def save_selector(selector: Selector, folder: Path) -> None:
    """Write it there.

    Raises:
        StoreError: the folder cannot be written.
    """
    card, tensors = selector.state()
    ordered = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _save_tensors(ordered, folder / TENSOR_FILE)
        (folder / CARD_FILE).write_bytes(orjson.dumps(card, option=orjson.OPT_INDENT_2))
    except OSError as error:
        raise StoreError(f"{folder} cannot be written: {error.strerror}") from None


def open_selector(folder: Path) -> Selector:
    """The selector in that folder.

    Raises:
        ConfigError: there is none, or it cannot be used.
    """
    card = read_json(folder / CARD_FILE)
    if card.get("kind") != SELECTOR_KIND:
        raise ConfigError(
            f"{folder / CARD_FILE} is no selector's card: its kind is {card.get('kind')}"
        )
    try:
        tensors = _load_tensors(folder / TENSOR_FILE)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{folder / TENSOR_FILE} cannot be read: {error}") from None
    try:
        return _build_selector(card, tensors)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{folder} holds no usable selector: {error!r}") from None


def _build_selector(card: Mapping[str, Any], tensors: TensorDict) -> Selector:
    if card["temperature"] != TEMPERATURE:
        raise ValueError(f"trained at temperature {card['temperature']}, not {TEMPERATURE}")
    workers = tuple(WorkerId(str(name)) for name in card["workers"])
    arrays = {name: tensors[f"values.{name}"] for name in VALUE_ARRAYS}
    values = ValueModel(workers=workers, smoothing=Smoothing(**card["smoothing"]), **arrays)
    return Selector(
        title=str(card["name"]),
        features=features.load_features(card["features"], tensors),
        values=values,
        head=CorrectionHead(tensors["head.weights_fm"], tensors["head.bias_m"]),
        guard=SelectorGuard(**card["guard"]),
    )
