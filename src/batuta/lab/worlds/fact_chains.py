"""Families: chains of facts from the chronicle, and (held out) facts that end in arithmetic."""

from __future__ import annotations

from random import Random

from batuta.lab.worlds.arithmetic import CALCULATIONS, keep_if_bounded
from batuta.lab.worlds.grammar import QuestionFamily, draw_steps, register_family
from batuta.lab.worlds.knowledge_base import FACTS, KINDS_OF, THINGS, relations_of
from batuta.lab.worlds.problem import Problem, ProblemStep, StepValue, is_thing

_MIN_MIXED_STEPS = 2
"""One hop and one calculation."""


def _random_walk(rng: Random, length: int, *, to_number: bool) -> Problem | None:
    """Return a chain of that many hops that visits nothing twice."""
    start = rng.choice(THINGS[rng.choice(list(THINGS))])
    here, seen, ops = start, {start}, list[ProblemStep]()
    for left in range(length, 0, -1):
        last = left == 1
        ways = [
            relation
            for relation in relations_of(KINDS_OF[here])
            if (relation.object == "number") is (last and to_number)
        ]
        if not ways:
            return None
        way = rng.choice(ways)
        there = FACTS[way.name, here]
        ops.append(ProblemStep(way.name))
        if isinstance(there, str):
            if there in seen:
                return None
            seen.add(there)
            here = there
    return Problem("facts", start, tuple(ops))


def _draw_facts(rng: Random, difficulty: int) -> Problem | None:
    return _random_walk(rng, difficulty, to_number=rng.random() < 0.3)  # noqa: PLR2004  (some end in one)


def _draw_mixed(rng: Random, difficulty: int) -> Problem | None:
    difficulty = max(_MIN_MIXED_STEPS, difficulty)
    hops = difficulty // 2
    walk = _random_walk(rng, hops, to_number=True)
    if walk is None:
        return None
    ops = walk.ops + draw_steps(rng, CALCULATIONS, difficulty - hops)
    return keep_if_bounded(Problem("mixed", walk.start, ops))


def _read_start(text: str) -> StepValue | None:
    return text if is_thing(text) else None


FACTS_FAMILY = register_family(
    QuestionFamily(
        name="facts",
        skill="facts",
        draw=_draw_facts,
        read_start=_read_start,
        grader=lambda _, value: "integer" if isinstance(value, int) else "name",
    )
)

MIXED_FAMILY = register_family(
    QuestionFamily(
        name="mixed",
        skill="facts",
        draw=_draw_mixed,
        read_start=_read_start,
        grader=lambda _problem, _value: "integer",
    )
)
