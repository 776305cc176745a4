"""Saves and opens a workflow selector's folder: `batuta.json` and its tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from batuta.conductors.tensor_folder import Card, Tensors, is_of_kind, open_folder, write_folder
from batuta.conductors.workflow_selector.model import KIND, QuestionReader, WorkflowSelector
from batuta.core import Step, WorkerId, Workflow

_OWN = frozenset(
    {"kind", "name", "groups", "workflows", "continuations", "ranking", "safest", "reader",
     "rounds"}
)  # fmt: skip


def is_workflow_selector(folder: Path) -> bool:
    """Tell whether the folder has a workflow selector."""
    return is_of_kind(folder, KIND)


def save_workflow_selector(selector: WorkflowSelector, folder: Path) -> None:
    """Write the workflow selector into the folder."""
    write_folder(folder, *selector.save())


def open_workflow_selector(folder: Path) -> WorkflowSelector:
    """Open the workflow selector in that folder.

    Raises:
        ConfigError: there is no workflow selector, or it cannot be used.
    """
    return open_folder(folder, KIND, "workflow selector", _selector_of)


def _selector_of(card: Card, tensors: Tensors) -> WorkflowSelector:
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
        stated_rounds=int(card.get("rounds", 1)),
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
