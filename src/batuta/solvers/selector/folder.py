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
from batuta.embedded.conductor import FILE
from batuta.embedded.folder import read_json
from batuta.errors import ConfigError, StoreError
from batuta.solvers import features
from batuta.solvers.selector.guard import Guard
from batuta.solvers.selector.head import TEMPERATURE, Head
from batuta.solvers.selector.model import KIND, VALUES, Selector
from batuta.solvers.selector.values import Smoothing, Values

TENSORS = "selector.safetensors"
Tensors = dict[str, NDArray[np.float32]]
_save = cast(
    "Callable[[Tensors, Path], None]",
    saved.save_file,  # pyright: ignore[reportUnknownMemberType] - its stub says too little
)
_load = cast(
    "Callable[[Path], Tensors]",
    saved.load_file,  # pyright: ignore[reportUnknownMemberType] - its stub says too little
)


def is_selector(folder: Path) -> bool:
    """Whether a selector lies there."""
    card = folder / FILE
    return card.is_file() and read_json(card).get("kind") == KIND


def save_selector(selector: Selector, folder: Path) -> None:
    """Write it there.

    Raises:
        StoreError: the folder cannot be written.
    """
    card, tensors = selector.state()
    ordered = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _save(ordered, folder / TENSORS)
        (folder / FILE).write_bytes(orjson.dumps(card, option=orjson.OPT_INDENT_2))
    except OSError as error:
        raise StoreError(f"{folder} cannot be written: {error.strerror}") from None


def open_selector(folder: Path) -> Selector:
    """The selector in that folder.

    Raises:
        ConfigError: there is none, or it cannot be used.
    """
    card = read_json(folder / FILE)
    if card.get("kind") != KIND:
        raise ConfigError(f"{folder / FILE} is no selector's card: its kind is {card.get('kind')}")
    try:
        tensors = _load(folder / TENSORS)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{folder / TENSORS} cannot be read: {error}") from None
    try:
        return _selector(card, tensors)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{folder} holds no usable selector: {error!r}") from None


def _selector(card: Mapping[str, Any], tensors: Tensors) -> Selector:
    if card["temperature"] != TEMPERATURE:
        raise ValueError(f"trained at temperature {card['temperature']}, not {TEMPERATURE}")
    workers = tuple(WorkerId(str(name)) for name in card["workers"])
    arrays = {name: tensors[f"values.{name}"] for name in VALUES}
    values = Values(workers=workers, smoothing=Smoothing(**card["smoothing"]), **arrays)
    return Selector(
        str(card["name"]),
        features.load(card["features"], tensors),
        values,
        Head(tensors["head.weights_fm"], tensors["head.bias_m"]),
        Guard(**card["guard"]),
    )
