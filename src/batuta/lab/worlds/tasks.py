"""Fresh questions from a seed, and the grading of answers."""

from __future__ import annotations

import re

from batuta.core import Grade, Task, TaskId
from batuta.lab.worlds.families import (
    ARITHMETIC_FAMILY,
    CALENDAR_FAMILY,
    FACTS_FAMILY,
    LISTS_FAMILY,
    MIXED_FAMILY,
    TEXT_FAMILY,
)
from batuta.lab.worlds.grammar import HELD_OUT_STYLES, question_families, render_question
from batuta.lab.worlds.problem import WORDINGS_PER_KIND, format_value, solve_problem
from batuta.lab.worlds.seeded_random import hash_parts, seeded_generator

TRAINING_FAMILIES = tuple(
    family.name
    for family in (ARITHMETIC_FAMILY, LISTS_FAMILY, FACTS_FAMILY, TEXT_FAMILY, CALENDAR_FAMILY)
)
"""The families for training."""

HELD_OUT_FAMILY = MIXED_FAMILY.name
"""The family that training draws only if it is named."""

MAX_DIFFICULTY = 6


def draw_tasks(
    family: str | None,
    n: int,
    seed: int,
    *,
    held_out: bool = False,
    difficulty: int | None = None,
) -> tuple[Task, ...]:
    """Return fresh questions as `DrawTasks` says; `held_out` changes only the wording."""
    names = TRAINING_FAMILIES if family is None else (family,)
    return tuple(
        _draw_task(
            names[index % len(names)], (seed, index), held_out=held_out, difficulty=difficulty
        )
        for index in range(n)
    )


def _draw_task(name: str, key: tuple[int, int], *, held_out: bool, difficulty: int | None) -> Task:
    family = question_families()[name]
    rng = seeded_generator("task", name, *key, difficulty)  # the same problem in any wording
    steps = difficulty or rng.randint(1, MAX_DIFFICULTY)
    usual = len(family.styles) - HELD_OUT_STYLES
    styles = range(usual, len(family.styles)) if held_out else range(usual)
    while True:
        problem = family.draw(rng, steps)
        value = None if problem is None else solve_problem(problem)
        if problem is None or value is None:
            continue
        style, last = rng.choice(styles), WORDINGS_PER_KIND - 1
        wording = [last if held_out else rng.randrange(last) for _ in problem.ops]
        question = render_question(problem, style, wording)
        tags = ("rehearsal", name, *(("held-out wording",) if held_out else ()))
        return Task(
            id=TaskId(f"rehearsal-{name}-{problem.difficulty}-{hash_parts(question).hex()[:12]}"),
            question=question,
            target=format_value(value),
            grader=family.grader(problem, value),
            tags=tags,
            difficulty=float(problem.difficulty),
        )


_ANSWER = re.compile(r"answer(?:\s+is)?\s*[*_]*\s*[:=]?\s*[*_]*\s*(.+)", re.IGNORECASE | re.DOTALL)
_INTEGER = re.compile(r"-?\d[\d,]*")


def extract_answer(answer: str) -> str | None:
    """Return the text after "answer" in the last line with that word, else the last line.

    Return None if there is no text.
    """
    lines = [line.strip() for line in answer.strip().splitlines() if line.strip()]
    for line in reversed(lines):
        if found := _ANSWER.search(line):
            return found[1].strip(" *_`\"'.").strip() or None
    return lines[-1].strip(" *_`\"'.") if lines else None


def grade_answer(task: Task, answer: str) -> Grade:
    """Give the score 1 if the extracted answer is the task's target, else 0.

    Text around integers and lists is ignored; of several integers the last counts. Names may differ
    in case and begin with "the".
    """
    extracted = extract_answer(answer)
    if extracted is None:
        return Grade(0.0, None, "no answer")
    same = _normalize_text(extracted, task.grader) == _normalize_text(task.target, task.grader)
    return Grade(float(same), extracted, "right" if same else f"expected {task.target}")


def _plain_integer(text: str) -> str:
    digits = text.replace(",", "")
    sign = "-" if digits.startswith("-") else ""
    digits = digits.lstrip("+-0") or "0"
    return digits if digits == "0" else sign + digits


def _normalize_text(text: str, grader: str) -> str:
    if grader == "list":
        return ",".join(re.findall(r"-?\d+", text))
    if grader == "integer":
        numbers = _INTEGER.findall(text)
        return _plain_integer(numbers[-1]) if numbers else text
    words_only = " ".join(text.split())
    return words_only if grader == "exact" else words_only.casefold().removeprefix("the ")
