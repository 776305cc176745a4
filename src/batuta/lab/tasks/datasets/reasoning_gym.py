"""Generates tasks with Reasoning Gym (arXiv 2505.24760), and scores them with its own scorers."""

from __future__ import annotations

import importlib
import importlib.util
import random
import re
from collections.abc import Generator
from contextlib import contextmanager
from decimal import localcontext
from typing import Any

import orjson

from batuta.core import Grade, Task, TaskId
from batuta.distribution import install_hint
from batuta.errors import SourceError
from batuta.lab.tasks.datasets.dataset import as_json, text_digest

NAME = "reasoning-gym"

_NOT_SERIALIZABLE = frozenset({"composite", "arc_agi", "rearc", "graph_color"})
"""`composite` needs the names of other generators; entries of the other three are not JSON."""

_EVALUATES_ANSWERS = frozenset(
    {
        "binary_matrix",
        "countdown",
        "intermediate_integration",
        "n_queens",
        "number_sorting",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
        "spiral_matrix",
        "string_insertion",
    }
)
"""Generators whose scorers evaluate the answer as Python: a model could execute code or hang the
process."""

_ACCEPTS_ANY_ANSWER = frozenset({"game_of_life_halting"})
"""Generators whose scorers call every text right: `bool("False")` is true."""

EXCLUDED_GENERATORS = _NOT_SERIALIZABLE | _EVALUATES_ANSWERS | _ACCEPTS_ANY_ANSWER

UNREPEATABLE_GENERATORS = frozenset(
    {
        "isomorphic_strings",
        "knight_swap",
        "list_functions",
        "ransom_note",
        "word_ladder",
    }
)
"""Generators that draw from sets of strings, so that the same seed gives other questions in another
process; an id still identifies one question."""


_HUGE = re.compile(r"\s*[+-]?[\d._]*[eE][+-]?\d{4,}\s*")
"""Matches a number such as `1e99999999`, which a scorer would write out as a fraction."""

_STRIDE = 1_000_003
"""Distance between the package's seeds for adjacent seeds of Batuta. In the package, question n of
seed s is question 0 of seed s + n, so adjacent seeds would share questions."""


def is_installed() -> bool:
    """Return whether the package is installed."""
    return importlib.util.find_spec("reasoning_gym") is not None


def generator_names() -> tuple[str, ...]:
    """Return the names of the usable generators.

    Raises:
        SourceError: the package is not installed.
    """
    return tuple(sorted(set(_import_gym().factory.DATASETS) - EXCLUDED_GENERATORS))


def generate_tasks(
    family: str, size: int, seed: int = 0, config: dict[str, Any] | None = None
) -> tuple[Task, ...]:
    """Generate tasks, equal for the same seed and version of the package.

    Tasks of an unrepeatable generator, which may differ, have the tag `unrepeatable`. `config` has
    the generator's own parameters.

    Raises:
        SourceError: there is no such generator, it refuses the size or a parameter, or the package
            is not installed.
    """
    if family not in generator_names():
        raise SourceError(
            f"Reasoning Gym has no generator {family!r}; see: batuta tasks show {NAME}"
        )
    try:
        with _restored_globals():
            first = seed * _STRIDE
            generated = _import_gym().create_dataset(
                family, size=size, seed=first, **(config or {})
            )
            return tuple(_make_task(family, generated[index]) for index in range(size))
    except (AssertionError, TypeError, ValueError) as error:
        parameters = {"size": size, **(config or {})}
        raise SourceError(f"Reasoning Gym refuses {family} with {parameters}: {error}") from None


def score_answer(task: Task, answer: str) -> Grade:
    """Return the generator's score, in [0, 1], for an extracted answer.

    The score is 0 if the scorer fails or the answer has a huge exponent.

    Raises:
        SourceError: the package is not installed.
    """
    if _HUGE.fullmatch(answer):
        return Grade(0.0, answer, "its exponent is too large")
    entry: dict[str, Any] = orjson.loads(task.data)
    scorer = _import_gym().get_score_answer_fn(entry["metadata"]["source_dataset"])
    try:
        with _restored_globals():
            value = float(scorer(answer, entry))
    except Exception as error:  # noqa: BLE001 - scorers fail on unforeseen answers
        return Grade(0.0, answer, f"the scorer could not read it: {type(error).__name__}")
    return Grade(min(max(value, 0.0), 1.0), answer)


@contextmanager
def _restored_globals() -> Generator[None]:
    """Restore the global state that a few generators change.

    They seed the shared random number generator; one sets the decimal precision to twelve digits,
    which would affect dollars.
    """
    before = random.getstate()
    try:
        with localcontext():
            yield
    finally:
        random.setstate(before)


def _make_task(family: str, entry: dict[str, Any]) -> Task:
    question: str = entry["question"]
    return Task(
        id=TaskId(f"{NAME}/{family}/{text_digest(question)}"),
        question=question,
        target="" if entry["answer"] is None else str(entry["answer"]),
        grader=NAME,
        tags=(NAME, family, *(("unrepeatable",) if family in UNREPEATABLE_GENERATORS else ())),
        data=as_json(entry),
    )


def _import_gym() -> Any:
    try:
        return importlib.import_module("reasoning_gym")
    except ModuleNotFoundError:
        raise SourceError(
            f"Reasoning Gym is not installed: {install_hint('reasoning-gym')}"
        ) from None
