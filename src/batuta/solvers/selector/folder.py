"""A selector's folder: its card, `batuta.json`, and its numbers, `selector.safetensors`."""

from __future__ import annotations

from pathlib import Path

from batuta.core import WorkerId
from batuta.solvers import features
from batuta.solvers.selector.guard import SelectorGuard
from batuta.solvers.selector.head import TEMPERATURE, CorrectionHead
from batuta.solvers.selector.model import SELECTOR_KIND, VALUE_ARRAYS, Selector
from batuta.solvers.selector.value_model import Smoothing, ValueModel
from batuta.solvers.tensor_folder import Card, Tensors, is_of_kind, open_folder, write_folder


def is_selector(folder: Path) -> bool:
    """Whether a selector lies there."""
    return is_of_kind(folder, SELECTOR_KIND)


def save_selector(selector: Selector, folder: Path) -> None:
    """Write it there.

    Raises:
        StoreError: the folder cannot be written.
    """
    write_folder(folder, *selector.state())


def open_selector(folder: Path) -> Selector:
    """The selector in that folder.

    Raises:
        ConfigError: there is none, or it cannot be used.
    """
    return open_folder(folder, SELECTOR_KIND, "selector", _build_selector)


def _build_selector(card: Card, tensors: Tensors) -> Selector:
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
