"""Text to Workflow: lenient in reading, strict in validity (Conductor paper, section 3.1).

And back: a workflow becomes the three lists of the paper, such that `parse(render(w)) == w`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import NamedTuple

from batuta.core import MAX_STEPS, AcceptedAnswer, Pool, Step, WorkerId, Workflow
from batuta.errors import WorkflowError
from batuta.language.draft_schema import lists_of_cut_draft, lists_of_steps
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
"""Lists that may be misread before the text is given up, so that time stays linear."""
_MAX_SHOWN_CHARACTERS = 40
"""Characters of a wrong value that an error repeats."""
_EMPTY_ACCESS_WORDS = {"", "none", "null", "[]", "nothing"}


class WorkflowLists(NamedTuple):
    """The three lists, as read."""

    model_id: list[LiteralValue]
    subtasks: list[LiteralValue]
    access_list: list[LiteralValue]


def parse_workflow(
    text: str,
    pool: Pool,
    *,
    max_steps: int = MAX_STEPS,
    revise: bool = False,
    cut: bool = False,
) -> Workflow | AcceptedAnswer:
    """Return the workflow that `text` describes, its numbers resolved to the pool's ids.

    Args:
        text: the draft.
        pool: whose numbers and ids it names.
        max_steps: steps that it may have.
        revise: whether it is of a later round of a recursion: three empty lists mean "return that
            answer as it is", and `"all"` also reads the previous round.
        cut: whether the draft was cut off: of one in JSON the steps that are whole are read.

    Raises:
        WorkflowError: not a workflow; the sentence names the first thing that is wrong.
    """
    lists = read_lists(text, cut=cut)
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


def read_lists(text: str, *, cut: bool = False) -> WorkflowLists:
    """Return the first list behind each of the three labels, or those that a list of steps makes.

    Args:
        text: the draft.
        cut: whether it was cut off; then a list of steps may be open.

    Raises:
        WorkflowError: a label or its list is missing or cannot be read.
    """
    spoken = _strip_thinking(text)
    lists = lists_of_steps(spoken)
    if lists is None and cut:
        lists = lists_of_cut_draft(spoken)
        if lists is None and spoken.lstrip().startswith("{"):
            raise WorkflowError("no step of it is whole")
    return _read_labelled_lists(spoken) if lists is None else WorkflowLists(*lists)


def is_complete_draft(text: str) -> bool:
    """Tell whether all three lists are closed, so that nothing that may follow is read.

    A bracket in a thought, in a subtask or in a list that is still open closes nothing.
    """
    spoken = _strip_thinking(text).lstrip()
    if spoken.startswith("{"):
        return _is_json(spoken)
    scan = _scan_labels(spoken)
    opened = any(isinstance(error, UnclosedListError) for error in scan.errors.values())
    return len(scan.found) == len(_FIELDS) and not opened


def _is_json(text: str) -> bool:
    """Tell whether an object of JSON ends where the text ends."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


class _LabelScan(NamedTuple):
    """The lists that follow the labels of a text, and the errors in them."""

    found: dict[str, list[LiteralValue]]
    """The first list directly behind each label."""
    loose: dict[str, int]
    """The end of each field's first label that has no list directly behind it."""
    errors: dict[str, WorkflowError]
    """The reason why a field's list could not be read."""


def _scan_labels(spoken: str) -> _LabelScan:
    """Read the lists that stand directly behind the labels, and note why others cannot be read."""
    scan = _LabelScan({}, {}, {})
    position = 0
    while len(scan.found) < len(_FIELDS) and len(scan.errors) < _MAX_TRIES:
        label = _LABEL.search(spoken, position)
        if label is None:
            break
        field = next(name for name in _FIELDS if label[name])
        position = label.end()
        if field in scan.found:
            continue
        if not label["list"]:
            scan.loose.setdefault(field, position)
        else:
            try:
                scan.found[field], position = read_list(spoken, label.end() - 1)
            except WorkflowError as error:
                known = field if field not in scan.errors else f"{field} {position}"
                scan.errors.setdefault(known, error)
    return scan


def _read_labelled_lists(spoken: str) -> WorkflowLists:
    """Return the first list behind each label.

    Raises:
        WorkflowError: a label or its list is missing or cannot be read.
    """
    scan = _scan_labels(spoken)
    for field in _FIELDS:
        if field not in scan.found:
            scan.found[field] = _read_distant_list(spoken, field, scan.loose, scan.errors)
    return WorkflowLists(*(scan.found[field] for field in _FIELDS))


def _read_distant_list(
    text: str, field: str, loose: dict[str, int], errors: dict[str, WorkflowError]
) -> list[LiteralValue]:
    """Return the first list anywhere behind the label, where none stood directly behind it."""
    if field in errors:
        raise WorkflowError(f"{field}: {errors[field]}")
    if field not in loose:
        raise WorkflowError(f"there is no list {field}")
    bracket = text.find("[", loose[field])
    following = _LABEL.search(text, loose[field])
    if bracket < 0 or (following and following.start() < bracket):
        raise WorkflowError(f"there is no list behind {field}")
    try:
        return read_list(text, bracket)[0]
    except WorkflowError as error:
        raise WorkflowError(f"{field}: {error}") from None


def _strip_thinking(text: str) -> str:
    """Return the text without its hidden reasoning; a prefix may have opened it unseen."""
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
    """Return the value as a number; numeric strings count."""
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,9}\s*", value):
        return int(value)
    return value if isinstance(value, int) else None


def _resolve_worker(value: LiteralValue, index: int, pool: Pool) -> WorkerId:
    """Return the worker of that number, or of that name: many models write names."""
    number = _parse_number(value)
    if number is None:
        if isinstance(value, str) and value.strip() in pool:
            return WorkerId(value.strip())
        raise WorkflowError(f"model_id of step {index} is not a number but {_shorten_value(value)}")
    if not 0 <= number < len(pool):
        raise WorkflowError(
            f"model_id of step {index} is {number} where the pool has 0 to {len(pool) - 1}"
        )
    return pool.workers[number].id


def _parse_access(value: LiteralValue, index: int) -> tuple[tuple[int, ...], bool]:
    """Return the earlier steps that may be read, and whether the entry said "all"."""
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
            raise WorkflowError(f"access of step {index} has {_shorten_value(entry)}")
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
"""How a later round lets the answer stand."""
_THINK_TAG = re.compile(r"<(?=/?think)", re.IGNORECASE)


def render_workflow(workflow: Workflow, pool: Pool, *, names: bool = False) -> str:
    """Return the three lists, with workers by their numbers in `pool` or by their names.

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
    """Return a list of JSON strings."""
    return f"[{', '.join(map(_quote_text, texts))}]"


def _quote_text(text: str) -> str:
    """Return a JSON string in which no tag of hidden reasoning stands."""
    return _THINK_TAG.sub(r"\\u003c", json.dumps(text, ensure_ascii=False))


def _access_entry(step: Step) -> str:
    return '["all"]' if step.previous else str(list(step.access))
