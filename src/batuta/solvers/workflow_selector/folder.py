"""A workflow selector's folder: its card, `batuta.json`, and its numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import orjson
from safetensors import SafetensorError
from safetensors import numpy as saved

from batuta.core import Step, WorkerId, Workflow
from batuta.embedded.model_files import read_json
from batuta.embedded.policy import CARD_FILE
from batuta.errors import ConfigError, StoreError
from batuta.solvers.features import Floats
from batuta.solvers.workflow_selector.model import KIND, WorkflowSelector
from batuta.solvers.workflow_selector.reader import QuestionReader

TENSORS = "selector.safetensors"
_OWN = frozenset(
    {"kind", "name", "groups", "workflows", "continuations", "ranking", "safest", "reader"}
)
_save = cast(
    "Callable[[dict[str, Floats], Path], None]",
    saved.save_file,  # pyright: ignore[reportUnknownMemberType] - its stub says too little
)
_load = cast(
    "Callable[[Path], dict[str, Floats]]",
    saved.load_file,  # pyright: ignore[reportUnknownMemberType] - its stub says too little
)


def is_workflow_selector(folder: Path) -> bool:
    """Whether a workflow selector lies there."""
    card = folder / CARD_FILE
    return card.is_file() and read_json(card).get("kind") == KIND


def save_workflow_selector(selector: WorkflowSelector, folder: Path) -> None:
    """Write it there.

    Raises:
        StoreError: the folder cannot be written.
    """
    card, tensors = selector.save()
    ordered = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _save(ordered, folder / TENSORS)
        (folder / CARD_FILE).write_bytes(orjson.dumps(card, option=orjson.OPT_INDENT_2))
    except OSError as error:
        raise StoreError(f"{folder} cannot be written: {error.strerror}") from None


def open_workflow_selector(folder: Path) -> WorkflowSelector:
    """The workflow selector in that folder.

    Raises:
        ConfigError: there is none, or it cannot be used.
    """
    card = read_json(folder / CARD_FILE)
    if card.get("kind") != KIND:
        raise ConfigError(f"{folder / CARD_FILE} is no workflow selector's card")
    try:
        tensors = _load(folder / TENSORS)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{folder / TENSORS} cannot be read: {error}") from None
    try:
        return _selector_of(card, tensors)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ConfigError(f"{folder} holds no usable workflow selector: {error!r}") from None


def _selector_of(card: Mapping[str, Any], tensors: Mapping[str, Floats]) -> WorkflowSelector:
    later = card.get("continuations", [])
    return WorkflowSelector(
        title=str(card["name"]),
        reader=QuestionReader.load(card["reader"], tensors),
        groups=tuple(str(name) for name in card["groups"]),
        workflows=tuple(_workflow_of(steps) for steps in card["workflows"]),
        continuations=tuple(None if steps is None else _workflow_of(steps) for steps in later),
        rank_glw=np.asarray(card["ranking"], np.intp),
        safest_w=np.asarray(card["safest"], np.intp),
        ease_gl=tensors["ease_gl"],
        about={name: value for name, value in card.items() if name not in _OWN},
    )


def _workflow_of(steps: Sequence[Mapping[str, Any]]) -> Workflow:
    return Workflow(
        tuple(
            Step(
                subtask=str(step["subtask"]),
                worker=WorkerId(str(step["worker"])),
                access=tuple(step["access"]),
                previous=bool(step.get("previous")),
            )
            for step in steps
        )
    )
