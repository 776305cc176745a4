"""Reads and writes folders of fitted models: a card, `batuta.json`, and tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import orjson
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors import numpy as saved

from batuta.embedded.model_files import read_json
from batuta.embedded.policy import CARD_FILE
from batuta.errors import ConfigError, StoreError, report_unwritable

TENSOR_FILE = "selector.safetensors"
Card = Mapping[str, Any]
Tensors = Mapping[str, NDArray[Any]]
Learned = TypeVar("Learned")
_save_file = cast(
    "Callable[[dict[str, NDArray[Any]], Path], None]",
    saved.save_file,  # pyright: ignore[reportUnknownMemberType] - its stub is incomplete
)
_load_file = cast(
    "Callable[[Path], dict[str, NDArray[Any]]]",
    saved.load_file,  # pyright: ignore[reportUnknownMemberType] - its stub is incomplete
)


def is_of_kind(folder: Path, kind: str) -> bool:
    """Return True if the folder has a card of that kind.

    Raises:
        ConfigError: the card cannot be read.
    """
    card = folder / CARD_FILE
    return card.is_file() and read_json(card).get("kind") == kind


def write_folder(
    folder: Path, card: Card, tensors: Tensors, *, card_file: str = CARD_FILE,
    tensor_file: str = TENSOR_FILE,
) -> None:  # fmt: skip
    """Write the card and the tensors into the folder, which is made if it does not exist.

    Raises:
        StoreError: the folder cannot be written.
    """
    ordered = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    with report_unwritable(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            _save_file(ordered, folder / tensor_file)
        except SafetensorError as error:  # for example on a full disk
            raise StoreError(f"{folder} cannot be written: {error}") from None
        (folder / card_file).write_bytes(orjson.dumps(card, option=orjson.OPT_INDENT_2))


def open_folder(
    folder: Path, kind: str, what: str, build: Callable[[Card, Tensors], Learned]
) -> Learned:
    """Read the folder's card and tensors, and return what `build` makes of them.

    Args:
        folder: the folder with both files.
        kind: the kind that the card must have.
        what: the kind as people read it, for error messages.
        build: builds the result from card and tensors.

    Raises:
        ConfigError: the folder has no card of that kind, or its content is unusable.
    """
    path = folder / CARD_FILE
    card = read_json(path)
    if card.get("kind") != kind:
        raise ConfigError(f"{path} is not the card of a {what}: its kind is {card.get('kind')}")
    tensors = read_tensors(folder / TENSOR_FILE)
    try:
        return build(card, tensors)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ConfigError(f"{folder} contains no usable {what}: {error!r}") from None


def read_tensors(path: Path) -> Tensors:
    """Read the tensors of a file.

    Raises:
        ConfigError: the file does not exist or cannot be read.
    """
    try:
        return _load_file(path)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
