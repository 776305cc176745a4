"""Parses a draft into a Workflow: lenient in syntax, strict in validity (Conductor paper, 3.1).

Also renders a workflow as the three lists of the paper, which `parse_workflow` reads back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import NamedTuple

from batuta.core import MAX_STEPS, AcceptedAnswer, Pool, Step, WorkerId, Workflow
from batuta.errors import WorkflowError
from batuta.language.draft_schema import dump_json, lists_of_steps, lists_of_truncated_draft
from batuta.language.literal import LiteralValue, UnclosedListError, read_list

_FIELDS = ("model_id", "subtasks", "access_list")
_LABEL = re.compile(
    r"""(?<![A-Za-z0-9])(?:(?P<model_id>models?[_ -]?ids?)|(?P<subtasks>sub[_ -]?tasks?)
    |(?P<access_list>access(?:[_ -]?lists?)?))
    [\s"'`*\u2019\u201d)]{0,8}(?:\([^()\n]{0,40}\)\s?)?[:=][\s"'`*]{0,16}(?:(?:python|json|list)\s{0,8})?(?P<list>\[)?""",
    re.IGNORECASE | re.VERBOSE,
)
_THINK = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.IGNORECASE | re.DOTALL)
_THINK_END = re.compile(r"</think(?:ing)?>", re.IGNORECASE)
_MAX_TRIES = 16
"""Number of unreadable lists after which no more are parsed, so that time stays linear."""
_MAX_SHOWN_CHARACTERS = 40
"""Maximum number of characters of an invalid value that an error message quotes."""
_EMPTY_ACCESS_WORDS = {"", "none", "null", "[]", "nothing"}


class WorkflowLists(NamedTuple):
    """The three lists before validation."""

    model_id: list[LiteralValue]
    subtasks: list[LiteralValue]
    access_list: list[LiteralValue]


def parse_workflow(
    text: str,
    pool: Pool,
    *,
    max_steps: int = MAX_STEPS,
    revise: bool = False,
    truncated: bool = False,
) -> Workflow | AcceptedAnswer:
    """Return the workflow that `text` describes, with worker numbers resolved to ids.

    Args:
        text: the draft.
        pool: the workers that the draft names by number or id.
        max_steps: maximum number of steps.
        revise: whether the draft is for a later round. Three empty lists then accept the previous
            answer, and `"all"` also reads the previous round.
        truncated: whether the draft was truncated; then the complete steps of a JSON draft are
            used.

    Raises:
        WorkflowError: the draft is not a valid workflow; the message names the first error.
    """
    lists = read_lists(text, truncated=truncated)
    if revise and not any(lists):
        return AcceptedAnswer()
    _check_lengths(lists, max_steps)
    steps: list[Step] = []
    for index, (number, subtask, access) in enumerate(zip(*lists, strict=True)):
        worker = _resolve_worker(number, index, pool)
        if not isinstance(subtask, str):
            raise WorkflowError(f"subtask {index} is not a string but {_shorten_value(subtask)}")
        earlier, everything = _parse_access(access, index)
        steps.append(
            Step(subtask=subtask, worker=worker, access=earlier, previous=revise and everything)
        )
    return Workflow(tuple(steps))


def read_lists(text: str, *, truncated: bool = False) -> WorkflowLists:
    """Return the three lists of a draft: from its JSON steps, or the first list after each label.

    Args:
        text: the draft.
        truncated: whether the draft was truncated; its list of steps may then be unclosed.

    Raises:
        WorkflowError: a label or its list is missing or cannot be read, or a truncated JSON draft
            has no complete step.
    """
    spoken = _strip_thinking(text)
    lists = lists_of_steps(spoken)
    if lists is None and truncated:
        lists = lists_of_truncated_draft(spoken)
        if lists is None and spoken.lstrip().startswith("{"):
            raise WorkflowError("no step is complete")
    return _read_labelled_lists(spoken) if lists is None else WorkflowLists(*lists)


def is_complete_draft(text: str) -> bool:
    """Return True if the draft is complete, so that generation can stop.

    Brackets in hidden reasoning or in strings do not close a list.
    """
    spoken = _strip_thinking(text).lstrip()
    if spoken.startswith("{"):
        return _is_json(spoken)
    scan = _scan_labels(spoken)
    opened = any(isinstance(error, UnclosedListError) for error in scan.errors.values())
    return len(scan.lists) == len(_FIELDS) and not opened


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


class _LabelScan(NamedTuple):
    """The lists that follow the labels of a text, and the errors in them."""

    lists: dict[str, list[LiteralValue]]
    """The first list directly after each label."""
    loose: dict[str, int]
    """The end of each field's first label without a list directly after it."""
    errors: dict[str, WorkflowError]
    """The reasons why lists could not be parsed: the first of each field under the field's name,
    further ones under the name and a position."""


def _scan_labels(spoken: str) -> _LabelScan:
    scan = _LabelScan({}, {}, {})
    position = 0
    while len(scan.lists) < len(_FIELDS) and len(scan.errors) < _MAX_TRIES:
        label = _LABEL.search(spoken, position)
        if label is None:
            break
        field = next(name for name in _FIELDS if label[name])
        position = label.end()
        if field in scan.lists:
            continue
        if not label["list"]:
            scan.loose.setdefault(field, position)
        else:
            try:
                scan.lists[field], position = read_list(spoken, label.end() - 1)
            except WorkflowError as error:
                known = field if field not in scan.errors else f"{field} {position}"
                scan.errors.setdefault(known, error)
    return scan


def _read_labelled_lists(spoken: str) -> WorkflowLists:
    """Return the first list after each label.

    Raises:
        WorkflowError: a label or its list is missing or cannot be read.
    """
    scan = _scan_labels(spoken)
    for field in _FIELDS:
        if field not in scan.lists:
            scan.lists[field] = _read_distant_list(spoken, field, scan.loose, scan.errors)
    return WorkflowLists(*(scan.lists[field] for field in _FIELDS))


def _read_distant_list(
    text: str, field: str, loose: dict[str, int], errors: dict[str, WorkflowError]
) -> list[LiteralValue]:
    """Return the first list between a label that has no list directly after it and the next label.

    Raises:
        WorkflowError: the label or its list is missing, or the list cannot be read.
    """
    if field in errors:
        raise WorkflowError(f"{field}: {errors[field]}")
    if field not in loose:
        raise WorkflowError(f"there is no list {field}")
    bracket = text.find("[", loose[field])
    following = _LABEL.search(text, loose[field])
    if bracket < 0 or (following and following.start() < bracket):
        raise WorkflowError(f"there is no list after {field}")
    try:
        return read_list(text, bracket)[0]
    except WorkflowError as error:
        raise WorkflowError(f"{field}: {error}") from None


def _strip_thinking(text: str) -> str:
    """Return the text without hidden reasoning; the opening tag of the first may be missing."""
    first = _THINK_END.search(text)
    opening = text.lower().find("<think")
    if first and (opening < 0 or opening > first.start()):
        text = text[first.end() :]
    return _THINK.sub(" ", text)


def _check_lengths(lists: WorkflowLists, max_steps: int) -> None:
    steps = len(lists.model_id)
    for field, values in zip(_FIELDS[1:], lists[1:], strict=True):
        if len(values) != steps:
            raise WorkflowError(f"{field} has {len(values)} entries where model_id has {steps}")
    if not steps:
        raise WorkflowError("the workflow has no step")
    if steps > max_steps:
        raise WorkflowError(f"the workflow has {steps} steps where {max_steps} are allowed")


def _parse_number(value: LiteralValue) -> int | None:
    """Return the value as a number; None if it is neither a number nor a string of digits."""
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,9}\s*", value):
        return int(value)
    return value if isinstance(value, int) else None


def _resolve_worker(value: LiteralValue, index: int, pool: Pool) -> WorkerId:
    """Return the worker with that number or that id, since many models write ids.

    Raises:
        WorkflowError: the pool has no such worker.
    """
    number = _parse_number(value)
    if number is None:
        if isinstance(value, str) and value.strip() in pool:
            return WorkerId(value.strip())
        raise WorkflowError(
            f"model_id of step {index} is neither a number nor a worker's id but "
            f"{_shorten_value(value)}"
        )
    if not 0 <= number < len(pool):
        raise WorkflowError(
            f"model_id of step {index} is {number} where the pool has 0 to {len(pool) - 1}"
        )
    return pool.workers[number].id


def _parse_access(value: LiteralValue, index: int) -> tuple[tuple[int, ...], bool]:
    """Return the earlier steps that may be read, and whether the entry contains "all".

    Raises:
        WorkflowError: the entry names something else than earlier steps.
    """
    entries: list[LiteralValue] = value if isinstance(value, list) else [value]
    numbers: set[int] = set()
    for entry in entries:
        number = _parse_number(entry)
        word = entry.strip().lower() if isinstance(entry, str) else None
        if word == "all":
            return tuple(range(index)), True
        if word in _EMPTY_ACCESS_WORDS:
            continue
        if number is None:
            raise WorkflowError(
                f"access of step {index} has {_shorten_value(entry)}, which is no step's number"
            )
        if not 0 <= number < index:
            raise WorkflowError(
                f"access of step {index} names step {number}, which is not before it"
            )
        numbers.add(number)
    return tuple(sorted(numbers)), False


def _shorten_value(value: LiteralValue) -> str:
    shown = repr(value)
    return shown if len(shown) <= _MAX_SHOWN_CHARACTERS else f"{shown[:_MAX_SHOWN_CHARACTERS]}…"


ACCEPTED = "model_id = []\nsubtasks = []\naccess_list = []"
"""The draft with which a later round accepts the previous answer."""


def render_workflow(workflow: Workflow, pool: Pool, *, names: bool = False) -> str:
    """Return the three lists, with workers by number in `pool` or by id.

    With ids the subtasks come first, as in the drafts of a small policy, which then knows each
    subtask when it chooses the worker.

    Raises:
        KeyError: a step's worker is not in the pool.
    """
    numbers = [pool.number(step.worker) for step in workflow.steps]
    called = quote_list(step.worker for step in workflow.steps) if names else str(numbers)
    lists = [f"model_id = {called}", f"subtasks = {quote_list(s.subtask for s in workflow.steps)}"]
    access = f"access_list = [{', '.join(_access_entry(step) for step in workflow.steps)}]"
    return "\n".join([*(reversed(lists) if names else lists), access])


def quote_list(texts: Iterable[str]) -> str:
    """Return a list of JSON strings."""
    return f"[{', '.join(map(dump_json, texts))}]"


def _access_entry(step: Step) -> str:
    return '["all"]' if step.previous else str(list(step.access))
