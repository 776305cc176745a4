"""Finds the boundaries of a session; between them the acting worker continues. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile

from batuta.conductors.sessions.state import MOST_ACTIONS, Action, SessionRules, SessionThread, Turn
from batuta.core import Pool, Question
from batuta.core.formatting import format_count
from batuta.core.tool_classes import ToolClass

_SHRUNK = 0.6
"""A request with less than this fraction of its thread's tokens counts as compacted."""
_LONG = 4_000
"""A conversation with at most this number of tokens never counts as compacted by its size."""
_ALIKE = 3
"""Each multiple of this number of equal actions in a row counts as a stall."""


class Boundary(StrEnum):
    """A reason to choose the acting worker anew."""

    BEGINNING = "beginning"
    """No worker has acted yet, or the acting worker may not answer or has too small a window."""
    TASK = "task"
    """The user sets a new task."""
    COMPACTION = "compaction"
    """The client shortened the conversation, so that no prompt cache holds it."""
    SAME_FAILURE = "same_failure"
    """A tool failed in the same way an even number of times."""
    STALL = "stall"
    """The same action was repeated, or many actions in a row changed nothing."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Whether a request is at a boundary of its session, and why."""

    boundary: Boundary | None
    """None: the acting worker continues."""
    reason: str
    """The reason, as a clause."""


def find_moment(
    thread: SessionThread | None,
    question: Question,
    turn: Turn,
    *,
    tokens: int,
    pool: Pool,
    rules: SessionRules,
) -> Moment:
    """Return whether the request is at a boundary, and why.

    Args:
        thread: the stored state of the conversation; None: a new conversation.
        question: the conversation.
        turn: the newest turn of the conversation.
        tokens: estimated tokens of the conversation.
        pool: the workers that may answer.
        rules: the session's rules.
    """
    if thread is None or thread.acting is None:
        return Moment(Boundary.BEGINNING, "no worker has acted in this conversation yet")
    acting = thread.acting
    if acting not in pool:
        return Moment(Boundary.BEGINNING, f"{acting}, which acted before, may no longer answer")
    window = pool[acting].context_window
    if window is not None and tokens > window:
        size = f"about {format_count(tokens)} tokens do not fit in the {format_count(window)}"
        return Moment(Boundary.BEGINNING, f"{size} of {acting}")
    if thread.compacted:
        return Moment(Boundary.COMPACTION, "the conversation was compacted, and the task goes on")
    if thread.tokens > _LONG and tokens < thread.tokens * _SHRUNK:
        sizes = f"from about {format_count(thread.tokens)} to {format_count(tokens)} tokens"
        return Moment(Boundary.COMPACTION, f"the conversation was compacted {sizes}")
    if turn.is_fresh:
        return _fresh_moment(turn)
    return _find_trouble(thread, question, turn, rules) or _describe_results(turn)


def _fresh_moment(turn: Turn) -> Moment:
    if turn.says_to_go_on:
        return Moment(None, "the user says to go on")
    return Moment(Boundary.TASK, "the user sets a new task")


def _describe_results(turn: Turn) -> Moment:
    count = turn.new_results
    results = "1 tool result" if count == 1 else f"{count or 'no'} tool results"
    return Moment(None, f"{results} arrived")


def _find_trouble(
    thread: SessionThread, question: Question, turn: Turn, rules: SessionRules
) -> Moment | None:
    """Return a boundary if a failure occurred an even number of times or the task stalled."""
    if not turn.actions:
        return None
    counts, newest = turn.failures, turn.actions[-1]
    for key in newest.failures:
        tool, _, digest = key.rpartition(" ")
        times = counts[key] + thread.forgotten.get(digest, 0)
        if times % 2 == 0:
            return Moment(Boundary.SAME_FAILURE, f"{tool} failed in the same way {times} times")
    keys = [action.key for action in turn.actions[-_ALIKE:]]
    if len(keys) == _ALIKE and len(set(keys)) == 1 and _count_alike(turn) % _ALIKE == 0:
        return Moment(Boundary.STALL, f"the same was done {_count_alike(turn)} times in a row")
    idle = _count_idle(question, turn, rules)
    if 0 < idle < MOST_ACTIONS and idle % rules.stall_actions == 0:
        return Moment(Boundary.STALL, f"{idle} actions in a row changed nothing")
    return None


def _count_alike(turn: Turn) -> int:
    last = turn.actions[-1].key
    return sum(1 for _ in takewhile(lambda action: action.key == last, reversed(turn.actions)))


def _count_idle(question: Question, turn: Turn, rules: SessionRules) -> int:
    """Return the number of actions at the end of the turn that changed nothing."""
    classes = {tool.name: rules.tool_classes.of(tool) for tool in question.tools}

    def is_idle(action: Action) -> bool:
        called = (classes.get(call.name, ToolClass.CHANGE) for call in action.calls)
        return ToolClass.CHANGE not in called

    return sum(1 for _ in takewhile(is_idle, reversed(turn.actions)))
