"""Tasks without end: Reasoning Gym's generators (arXiv 2505.24760), with its own scorers."""

from __future__ import annotations

import importlib
import importlib.util
import random
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
"""The first needs other generators' names; the entries of the others do not survive JSON."""

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
"""Their scorers evaluate the answer as Python: a model could run what it likes, or hang us."""

EXCLUDED_GENERATORS = _NOT_SERIALIZABLE | _EVALUATES_ANSWERS

UNREPEATABLE_GENERATORS = frozenset(
    {
        "isomorphic_strings",
        "knight_swap",
        "list_functions",
        "polynomial_multiplication",
        "ransom_note",
        "word_ladder",
    }
)
"""Draw from sets of strings: the same seed gives other questions in another process. An id still
names one text."""


_STRIDE = 1_000_003
"""Question n of the package's seed s is question 0 of its seed s + n; ours must not overlap."""


def is_installed() -> bool:
    """Return True if the package is installed."""
    return importlib.util.find_spec("reasoning_gym") is not None


def generator_names() -> tuple[str, ...]:
    """The names of the generators that can be used.

    Raises:
        SourceError: the package is not installed.
    """
    return tuple(sorted(set(_import_gym().factory.DATASETS) - EXCLUDED_GENERATORS))


def generate_tasks(
    family: str, size: int, seed: int = 0, config: dict[str, Any] | None = None
) -> tuple[Task, ...]:
    """Fresh tasks of one generator; the same for the same seed and version of the package.

    Those of an unrepeatable generator are tagged so.

    Args:
        family: the generator's name.
        size: how many.
        seed: other seeds give other questions.
        config: the generator's own parameters; None: its defaults.

    Raises:
        SourceError: no such generator, parameters it refuses, or the package is not installed.
    """
    if family not in generator_names():
        raise SourceError(
            f"Reasoning Gym has no generator {family!r}; see: batuta tasks show {NAME}"
        )
    try:
        with _own_globals():
            first = seed * _STRIDE
            made = _import_gym().create_dataset(family, size=size, seed=first, **(config or {}))
            return tuple(_make_task(family, made[index]) for index in range(size))
    except (AssertionError, TypeError, ValueError) as error:
        raise SourceError(f"Reasoning Gym refuses {family} with {config}: {error}") from None


def score_answer(task: Task, answer: str) -> Grade:
    """The generator's own score of an extracted answer to one of its tasks, in [0, 1].

    Raises:
        SourceError: the package is not installed.
    """
    entry: dict[str, Any] = orjson.loads(task.data)
    scorer = _import_gym().get_score_answer_fn(entry["metadata"]["source_dataset"])
    try:
        with _own_globals():
            value = float(scorer(answer, entry))
    except Exception as error:  # noqa: BLE001 - a hundred scorers that foresee not every answer
        return Grade(0.0, answer, f"the scorer could not read it: {type(error).__name__}")
    return Grade(min(max(value, 0.0), 1.0), answer)


@contextmanager
def _own_globals() -> Generator[None]:
    """Undoes what a few generators do to their process.

    They seed the shared generator of random numbers, and one leaves twelve digits to every
    decimal, dollars among them.
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
            f"its tasks are made by a package: {install_hint('reasoning-gym')}"
        ) from None
