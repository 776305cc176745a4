"""Saves and opens a selector's folder: `batuta.json` and `selector.safetensors`."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from batuta.conductors.feature_kinds import load_features
from batuta.conductors.selector.model import (
    SELECTOR_KIND,
    VALUE_ARRAYS,
    Selector,
    SelectorGuard,
    state_digest,
)
from batuta.conductors.selector.value_model import Smoothing, ValueModel
from batuta.conductors.tensor_folder import (
    TENSOR_FILE,
    Card,
    Tensors,
    is_of_kind,
    open_folder,
    read_tensors,
    write_folder,
)
from batuta.core import WorkerId
from batuta.embedded.model_files import read_json
from batuta.embedded.policy import CARD_FILE

_LOG = logging.getLogger(__name__)


def is_selector(folder: Path) -> bool:
    """Tell whether the folder has a selector."""
    return is_of_kind(folder, SELECTOR_KIND)


def save_selector(selector: Selector, folder: Path) -> None:
    """Write the selector into the folder."""
    write_folder(folder, *selector.state())


def open_selector(folder: Path) -> Selector:
    """Open the selector in that folder.

    Raises:
        ConfigError: there is no selector, or it cannot be used.
    """
    return open_folder(folder, SELECTOR_KIND, "selector", _build_selector)


def folder_digest(folder: Path) -> str:
    """Return the version of the selector in that folder, as its writer computed it.

    Raises:
        ConfigError: there is no selector.
    """
    return state_digest(read_json(folder / CARD_FILE), read_tensors(folder / TENSOR_FILE))


def _build_selector(card: Card, tensors: Tensors) -> Selector:
    if card.get("rival") or np.any(tensors.get("head.weights_fm", 0)):
        _LOG.warning(
            "the selector %s chose by parts that selectors have no more: it now chooses without "
            "them; batuta train selector fits it anew",
            card["name"],
        )
    workers = tuple(WorkerId(str(name)) for name in card["workers"])
    arrays = {name: tensors[f"values.{name}"] for name in VALUE_ARRAYS}
    return Selector(
        title=str(card["name"]),
        features=load_features(card["features"], tensors),
        values=ValueModel(workers=workers, smoothing=Smoothing(**card["smoothing"]), **arrays),
        guard=SelectorGuard(**card["guard"]),
    )
