"""Saves and opens a cascade in a folder.

The folder has the files of the cascade's selector, `cascade.json` and `cascade.safetensors`.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np

from batuta.conductors.selector import folder_digest, open_selector, save_selector
from batuta.conductors.tensor_folder import Tensors, read_tensors, write_folder
from batuta.embedded.model_files import read_json
from batuta.errors import ConfigError
from batuta.lab.baselines.cascade import Cascade
from batuta.lab.learners.answer_posterior import AnswerPosterior, DrawOrder

CARD_FILE = "cascade.json"
TENSOR_FILE = "cascade.safetensors"
_TRAIN_AGAIN = "train it again with batuta train selector, on outcomes that contain the answers"
_POSTERIOR_FIELDS = ("familiar", "strange")
_ARRAY_FIELDS = ("weights_kf", "onward_kg")


def save_cascade(cascade: Cascade, folder: Path) -> None:
    """Write the cascade and its selector into the folder, which is created if it does not exist.

    `checker`, `executed` and `extract` are not stored.

    Raises:
        StoreError: the folder cannot be written.
    """
    save_selector(cascade.selector, folder)
    beliefs = {name: cast("AnswerPosterior", getattr(cascade, name)) for name in _POSTERIOR_FIELDS}
    card = {
        "selector": cascade.selector.digest,
        "most": cascade.most_m,
        "calls": cascade.calls,
        "price": cascade.price,
        "dollar": cascade.dollar,
        "costs": cascade.cost_m,
        "calls_worth": cascade.calls_worth_m,
        "collisions": cascade.collisions,
        "order": {name: asdict(belief.order) for name, belief in beliefs.items()},
        "margin": {name: belief.margin for name, belief in beliefs.items()},
    }
    tensors: Tensors = {
        f"{name}.{array}": np.asarray(getattr(belief, array), np.float64)
        for name, belief in beliefs.items()
        for array in _ARRAY_FIELDS
    }
    write_folder(folder, card, tensors, card_file=CARD_FILE, tensor_file=TENSOR_FILE)


def open_cascade(folder: Path) -> Cascade:
    """Open the cascade in the folder, with the default `executed` and `extract` and no checker.

    Raises:
        ConfigError: the folder has no usable cascade and selector, or they were not trained
            together.
    """
    selector, card = open_selector(folder), read_json(folder / CARD_FILE)
    if card.get("selector") != folder_digest(folder):
        raise ConfigError(
            f"the cascade in {folder} belongs to another selector than the one there; "
            f"{_TRAIN_AGAIN}"
        )
    try:
        tensors: Any = read_tensors(folder / TENSOR_FILE)
        familiar, strange = (
            AnswerPosterior(
                **{array: tensors[f"{name}.{array}"] for array in _ARRAY_FIELDS},
                order=DrawOrder(**card["order"][name]),
                margin=float(card["margin"][name]),
            )
            for name in _POSTERIOR_FIELDS
        )
        cascade = Cascade(
            selector=selector,
            familiar=familiar,
            strange=strange,
            most_m=tuple(int(most) for most in card["most"]),
            cost_m=tuple(float(cost) for cost in card["costs"]),
            calls_worth_m=tuple(float(worth) for worth in card["calls_worth"]),
            collisions=float(card["collisions"]),
            calls=int(card["calls"]),
            price=float(card["price"]),
            dollar=float(card["dollar"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        message = f"{folder} holds no usable cascade: {error!r}; {_TRAIN_AGAIN}"
        raise ConfigError(message) from None
    return cascade
