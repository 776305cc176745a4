"""Options of a question, and their effect on the question and its limits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, TypedDict

from batuta.core import (
    MAX_ROUNDS,
    MAX_STEPS,
    EventHandler,
    Limits,
    Question,
    ResponseFormat,
    Sampling,
    Tool,
    ToolCall,
    Workflow,
)
from batuta.core.suggestions import suggest_names
from batuta.language.plan_rules import read_tag
from batuta.session.questions import ImageLike

ToolRunner = Callable[[ToolCall], str | Awaitable[str]]
"""Runs one of the caller's tools and returns what it says."""


class AskOptions(TypedDict, total=False):
    """Options of a question; the session chooses what is left out."""

    images: Sequence[ImageLike]
    """Pictures beside the question: a path, bytes, or an `https:` or `data:` address."""
    tools: Sequence[Tool]
    """Functions that the workers may call."""
    run_tool: ToolRunner
    """Runs them; without it a run that wants a tool ends as `waiting`, its calls in `run.reply`."""
    response_format: ResponseFormat
    """The form that the answer must have."""
    sampling: Sampling
    """Sampling of the visible answer."""
    max_cost: float
    """Dollars at most."""
    max_tokens: int
    """Tokens at most, of all calls together."""
    max_steps: int
    max_rounds: int
    max_seconds: float
    workflow: Workflow
    """A workflow written by hand; then nobody plans."""
    tags: Sequence[str]
    """The settings' rules for plans tell questions apart by these words."""
    seed: int
    """Makes sampling repeatable where the workers honour seeds."""
    dry_run: bool
    """Plan and estimate (`run.expected`); call no worker."""
    on_event: EventHandler
    """Hears every event as it happens."""


_NUMBER = (int, float, Decimal)
_TYPES: dict[str, tuple[Any, str]] = {
    "images": ((list, tuple), "a list of pictures"),
    "tools": ((list, tuple), "a list of `Tool`s"),
    "run_tool": (Callable, "a function"),
    "response_format": (ResponseFormat, "a `ResponseFormat`"),
    "sampling": (Sampling, "a `Sampling`"),
    "max_cost": (_NUMBER, "a number of dollars"),
    "max_tokens": (int, "a whole number"),
    "max_steps": (int, "a whole number"),
    "max_rounds": (int, "a whole number"),
    "max_seconds": (_NUMBER, "a number of seconds"),
    "workflow": (Workflow, "a `Workflow`"),
    "tags": ((list, tuple), "a list of texts"),
    "seed": (int, "a whole number"),
    "dry_run": (bool, "True or False"),
    "on_event": (Callable, "an async function"),
}
"""Each option has a type, which the words name; None stands for an option that is left out."""


def check_options(options: AskOptions) -> None:
    """Return if each option exists and is of its type; a limit with a misspelt name is none.

    Raises:
        TypeError: there is no such option, or a value is of another type.
    """
    for name, value in options.items():
        if name not in _TYPES:
            raise TypeError(f"there is no option {name!r}; {suggest_names(name, _TYPES)}")
        kind, words = _TYPES[name]
        wrong_bool = isinstance(value, bool) and kind is not bool
        if value is not None and (wrong_bool or not isinstance(value, kind)):
            raise TypeError(f"{name} is {words}, not {value!r:.60}")


def complete_question(question: Question, options: AskOptions) -> Question:
    """Return the question with the tools, form, sampling and tags of the options.

    Raises:
        ValueError: one of the tags is none.
    """
    return replace(
        question,
        tools=tuple(options.get("tools", question.tools)),
        response_format=options.get("response_format", question.response_format),
        sampling=options.get("sampling", question.sampling),
        tags=tuple(map(read_tag, options.get("tags", question.tags))),
    )


def merge_limits(usual: Limits, options: AskOptions) -> Limits:
    """Return the session's limits, and the question's own where it has some.

    Raises:
        ValueError: more steps or rounds than there can be.
    """
    named = {
        "steps": options.get("max_steps"),
        "rounds": options.get("max_rounds"),
        "tokens": options.get("max_tokens"),
        "usd": options.get("max_cost"),
        "seconds": options.get("max_seconds"),
    }
    given: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    _check_limit("max_rounds", given.get("rounds"), MAX_ROUNDS)
    if "workflow" not in options:  # one written by hand may be longer
        _check_limit("max_steps", given.get("steps"), MAX_STEPS)
    return replace(usual, **given)


def _check_limit(name: str, value: int | None, most: int) -> None:
    if value is not None and value > most:
        raise ValueError(f"{name} is at most {most}, not {value}")
