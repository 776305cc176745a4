"""Options of a question, and their effect on the question and its limits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, TypedDict, cast

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
from batuta.guardrails.response_format import ResponseFormatChecker
from batuta.language.plan_rules import read_tag
from batuta.schemas import SchemaTimeoutError
from batuta.session.questions import ImageLike

ToolRunner = Callable[[ToolCall], str | Awaitable[str]]
"""Runs one of the caller's tools and returns its result as text."""


class AskOptions(TypedDict, total=False):
    """Options of a question; the session's defaults apply to omitted options."""

    images: Sequence[ImageLike]
    """Images to add: each a path, bytes, or an `https:`, `http:` or `data:` URL."""
    tools: Sequence[Tool]
    """Functions that the workers may call."""
    run_tool: ToolRunner
    """Runs the tools; without it a run that calls a tool ends as `waiting`, with the calls in
    `run.reply`."""
    response_format: ResponseFormat
    """The format that the answer must have."""
    sampling: Sampling
    """Sampling of the visible answer."""
    max_cost: float
    """Maximum cost of the run, in dollars."""
    max_tokens: int
    """Number of tokens of all calls together after which no further call is made."""
    max_steps: int
    """Maximum number of steps of a workflow, from 1 to 5; with `workflow` it may be more."""
    max_rounds: int
    """Maximum number of workflows that are planned and run, from 1 to 3."""
    max_seconds: float
    """Maximum duration of the run, in seconds."""
    workflow: Workflow
    """The workflow to run; no conductor is asked."""
    tags: Sequence[str]
    """Words by which the rules of the settings select questions."""
    seed: int
    """Makes sampling repeatable if the workers support seeds."""
    dry_run: bool
    """Whether to plan and estimate only (`run.expected`), without calling a worker."""
    on_event: EventHandler
    """Awaited with every event as it happens."""


_NUMBER = (int, float, Decimal)
_TYPES: dict[str, tuple[Any, str]] = {
    "images": ((list, tuple), "a list of images"),
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
    "tags": ((list, tuple), "a list of strings"),
    "seed": (int, "a whole number"),
    "dry_run": (bool, "True or False"),
    "on_event": (Callable, "an async function"),
}
"""The type of each option and its name in error messages."""


def check_options(options: AskOptions) -> AskOptions:
    """Return the options without those that are None.

    Names and types are checked, so that a limit with a misspelt name is not ignored.

    Raises:
        TypeError: an option does not exist, or its value has the wrong type.
    """
    for name, value in options.items():
        if name not in _TYPES:
            raise TypeError(f"there is no option {name!r}; {suggest_names(name, _TYPES)}")
        kind, words = _TYPES[name]
        wrong_bool = isinstance(value, bool) and kind is not bool
        if value is not None and (wrong_bool or not isinstance(value, kind)):
            raise TypeError(f"{name} must be {words}, not {value!r:.60}")
    for name, kind in (("tools", Tool), ("tags", str)):
        for one in cast("Sequence[object]", options.get(name) or ()):
            if not isinstance(one, kind):
                raise TypeError(f"{name} must be {_TYPES[name][1]}, not with {one!r:.60}")
    given = {name: value for name, value in options.items() if value is not None}
    return cast("AskOptions", given)


def complete_question(question: Question, options: AskOptions) -> Question:
    """Return the question with the tools, format, sampling and tags of the options.

    Raises:
        ValueError: a tag is malformed.
    """
    return replace(
        question,
        tools=tuple(options.get("tools", question.tools)),
        response_format=options.get("response_format", question.response_format),
        sampling=options.get("sampling", question.sampling),
        tags=tuple(map(read_tag, options.get("tags", question.tags))),
    )


async def check_format(form: ResponseFormat | None) -> None:
    """Check that the schema of a response format is valid, before any call is paid for.

    Raises:
        ValueError: the schema is invalid or too large, or takes too long to check.
    """
    if form is None:
        return
    try:
        await ResponseFormatChecker(form).check_schema()
    except (ValueError, SchemaTimeoutError) as error:
        raise ValueError(f"response_format: {error}") from None


def merge_limits(defaults: Limits, options: AskOptions) -> Limits:
    """Return the session's limits, overridden by those of the options.

    Raises:
        ValueError: a limit is out of range.
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
    if "workflow" not in options:  # a workflow that the caller wrote may be longer
        _check_limit("max_steps", given.get("steps"), MAX_STEPS)
    return replace(defaults, **given)


def _check_limit(name: str, value: int | None, most: int) -> None:
    if value is not None and value > most:
        raise ValueError(f"{name} must be at most {most}, not {value}")
