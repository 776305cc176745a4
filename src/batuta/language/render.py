"""Workflow to text: the paper's three lists, such that `parse(render(w)) == w`."""

from __future__ import annotations

import json
import re

from batuta.core import Pool, Step, Workflow

_THINK = re.compile(r"<(?=/?think)", re.IGNORECASE)


def render(workflow: Workflow, pool: Pool) -> str:
    """The three lists, under the numbers that `pool` gives its workers.

    Raises:
        KeyError: a step's worker is not in the pool.
    """
    numbers = [pool.number(step.worker) for step in workflow.steps]
    subtasks = ", ".join(_quote(step.subtask) for step in workflow.steps)
    access = ", ".join(_access(step) for step in workflow.steps)
    return f"model_id = {numbers}\nsubtasks = [{subtasks}]\naccess_list = [{access}]"


def _quote(text: str) -> str:
    """A JSON string in which no tag of hidden reasoning stands."""
    return _THINK.sub(r"\\u003c", json.dumps(text, ensure_ascii=False))


def _access(step: Step) -> str:
    return '["all"]' if step.previous else str(list(step.access))
