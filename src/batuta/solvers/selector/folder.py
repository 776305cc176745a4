"""A selector's folder: its card, `batuta.json`, and its numbers, `selector.safetensors`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batuta.core import WorkerId
from batuta.solvers.feature_kinds import load_features
from batuta.solvers.selector.guard import SelectorGuard
from batuta.solvers.selector.head import TEMPERATURE, CorrectionHead
from batuta.solvers.selector.model import SELECTOR_KIND, VALUE_ARRAYS, Selector
from batuta.solvers.selector.rivals import ClusterRanking, NeighbourLead
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
        features=load_features(card["features"], tensors),
        values=values,
        head=CorrectionHead(tensors["head.weights_fm"], tensors["head.bias_m"]),
        guard=SelectorGuard(**card["guard"]),
        **_build_rival(card.get("rival"), values, tensors),
    )


def _build_rival(
    rival: Mapping[str, Any] | None, values: ValueModel, tensors: Tensors
) -> dict[str, Any]:
    """The fields of a selector that has a rival; none, if it has none."""
    if rival is None:
        return {}
    if rival["kind"] == ClusterRanking.kind:
        built = ClusterRanking(tensors["rival.centres_cd"], tensors["rival.merit_cm"])
    elif rival["kind"] == NeighbourLead.kind:
        built = NeighbourLead(values.memory_nd, values.rewards_nm())
    else:
        raise ValueError(f"trained with a rival of the kind {rival['kind']!r}, unknown here")
    return {"rival": built, "rival_guard": SelectorGuard(**rival["guard"])}
