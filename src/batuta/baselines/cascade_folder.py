"""A cascade's folder: its selector's files, `cascade.json`, and `cascade.safetensors`."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import numpy as np
import orjson
from safetensors import SafetensorError
from safetensors import numpy as saved

from batuta.baselines.cascade import Cascade
from batuta.embedded.folder import read_json
from batuta.errors import ConfigError, StoreError
from batuta.solvers.selector import open_selector, save_selector
from batuta.solvers.selector.belief import Belief

CARD = "cascade.json"
NUMBERS = "cascade.safetensors"
_BELIEFS = ("familiar", "strange")
_ARRAYS = tuple(field.name for field in fields(Belief) if field.name != "again")


def save_cascade(cascade: Cascade, folder: Path) -> None:
    """Write it there, its selector too; who checks is not written.

    Raises:
        StoreError: the folder cannot be written.
    """
    save_selector(cascade.selector, folder)
    beliefs = {name: cast("Belief", getattr(cascade, name)) for name in _BELIEFS}
    card = {
        "selector": cascade.selector.digest,
        "most": cascade.most_m,
        "calls": cascade.calls,
        "price": cascade.price,
        "again": {name: belief.again for name, belief in beliefs.items()},
    }
    tensors = {
        f"{name}.{array}": np.ascontiguousarray(getattr(belief, array), np.float64)
        for name, belief in beliefs.items()
        for array in _ARRAYS
    }
    try:
        saved.save_file(tensors, folder / NUMBERS)  # pyright: ignore[reportUnknownMemberType] - its stub says too little
        (folder / CARD).write_bytes(orjson.dumps(card, option=orjson.OPT_INDENT_2))
    except OSError as error:
        raise StoreError(f"{folder} cannot be written: {error.strerror}") from None


def open_cascade(folder: Path) -> Cascade:
    """The cascade in that folder, without a checker.

    Raises:
        ConfigError: there is none, it cannot be used, or its selector was trained again.
    """
    selector, card = open_selector(folder), read_json(folder / CARD)
    if card.get("selector") != selector.digest:
        raise ConfigError(
            f"the cascade in {folder} belongs to another selector; train both again with "
            "batuta train selector, on outcomes with their answers"
        )
    try:
        numbers: Any = saved.load_file(folder / NUMBERS)  # pyright: ignore[reportUnknownMemberType] - same
        familiar, strange = (
            Belief(
                **{array: numbers[f"{name}.{array}"] for array in _ARRAYS},
                again=float(card["again"][name]),
            )
            for name in _BELIEFS
        )
        most_m = tuple(int(most) for most in card["most"])
        calls, price = int(card["calls"]), float(card["price"])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{folder} holds no usable cascade: {error!r}") from None
    return Cascade(selector, familiar, strange, most_m, calls, price)
