"""Workflow to text: the paper's three lists, such that `parse(render(w)) == w`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from batuta.core import Pool, Step, Workflow

ACCEPTED = "model_id = []\nsubtasks = []\naccess_list = []"
"""How a later round lets the answer stand."""
_THINK = re.compile(r"<(?=/?think)", re.IGNORECASE)


def render_workflow(workflow: Workflow, pool: Pool, *, names: bool = False) -> str:
    """The three lists, under the numbers that `pool` gives its workers, or under their names.

    With names the subtasks come first, as a small policy writes them: it then knows what a worker
    is to do when it names him.

    Raises:
        KeyError: a step's worker is not in the pool.
    """
    numbers = [pool.number(step.worker) for step in workflow.steps]
    called = quote_list(step.worker for step in workflow.steps) if names else str(numbers)
    lists = [f"model_id = {called}", f"subtasks = {quote_list(s.subtask for s in workflow.steps)}"]
    access = f"access_list = [{', '.join(_access_entry(step) for step in workflow.steps)}]"
    return "\n".join([*(reversed(lists) if names else lists), access])


def quote_list(texts: Iterable[str]) -> str:
    """A list of JSON strings."""
    return f"[{', '.join(map(_quote_text, texts))}]"


def _quote_text(text: str) -> str:
    """A JSON string in which no tag of hidden reasoning stands."""
    return _THINK.sub(r"\\u003c", json.dumps(text, ensure_ascii=False))


def _access_entry(step: Step) -> str:
    return '["all"]' if step.previous else str(list(step.access))
