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
from batuta.embedded.model_files import read_json
from batuta.errors import ConfigError, StoreError
from batuta.solvers.selector import open_selector, save_selector
from batuta.solvers.selector.answer_posterior import AnswerPosterior

CARD_FILE = "cascade.json"
TENSOR_FILE = "cascade.safetensors"
_POSTERIOR_FIELDS = ("familiar", "strange")
_ARRAY_FIELDS = tuple(field.name for field in fields(AnswerPosterior) if field.name != "again")


def save_cascade(cascade: Cascade, folder: Path) -> None:
    """Write it there, its selector too; who checks is not written.

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
        "again": {name: belief.again for name, belief in beliefs.items()},
    }
    tensors = {
        f"{name}.{array}": np.ascontiguousarray(getattr(belief, array), np.float64)
        for name, belief in beliefs.items()
        for array in _ARRAY_FIELDS
    }
    try:
        saved.save_file(tensors, folder / TENSOR_FILE)  # pyright: ignore[reportUnknownMemberType] - its stub says too little
        (folder / CARD_FILE).write_bytes(orjson.dumps(card, option=orjson.OPT_INDENT_2))
    except OSError as error:
        raise StoreError(f"{folder} cannot be written: {error.strerror}") from None


def open_cascade(folder: Path) -> Cascade:
    """The cascade in that folder, without a checker.

    Raises:
        ConfigError: there is none, it cannot be used, or its selector was trained again.
    """
    selector, card = open_selector(folder), read_json(folder / CARD_FILE)
    if card.get("selector") != selector.digest:
        raise ConfigError(
            f"the cascade in {folder} belongs to another selector; train both again with "
            "batuta train selector, on outcomes with their answers"
        )
    try:
        numbers: Any = saved.load_file(folder / TENSOR_FILE)  # pyright: ignore[reportUnknownMemberType] - same
        familiar, strange = (
            AnswerPosterior(
                **{array: numbers[f"{name}.{array}"] for array in _ARRAY_FIELDS},
                again=float(card["again"][name]),
            )
            for name in _POSTERIOR_FIELDS
        )
        most_m = tuple(int(most) for most in card["most"])
        calls, price = int(card["calls"]), float(card["price"])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{folder} holds no usable cascade: {error!r}") from None
    return Cascade(
        selector=selector,
        familiar=familiar,
        strange=strange,
        most_m=most_m,
        calls=calls,
        price=price,
    )
