"""Families: chains of facts from the chronicle, and (held out) facts that end in arithmetic."""

from __future__ import annotations

from random import Random

from batuta.rehearsal.chronicle import FACTS, KINDS_OF, THINGS, relations_of
from batuta.rehearsal.grammar import Family, Layout, Nesting, Style, chain, enroll
from batuta.rehearsal.numbers import CALCULATIONS, tame
from batuta.rehearsal.problem import Op, Problem, Value, is_thing

_SHORTEST_MIX = 2
"""One hop and one calculation."""


def _walk(rng: Random, length: int, *, to_number: bool) -> Problem | None:
    """A chain of that many hops that visits nothing twice."""
    start = rng.choice(THINGS[rng.choice(list(THINGS))])
    here, seen, ops = start, {start}, list[Op]()
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
        ops.append(Op(way.name))
        if isinstance(there, str):
            if there in seen:
                return None
            seen.add(there)
            here = there
    return Problem("facts", start, tuple(ops))


def _draw_facts(rng: Random, difficulty: int) -> Problem | None:
    return _walk(rng, difficulty, to_number=rng.random() < 0.3)  # noqa: PLR2004  (some end in one)


def _draw_mixed(rng: Random, difficulty: int) -> Problem | None:
    difficulty = max(_SHORTEST_MIX, difficulty)
    hops = difficulty // 2
    walk = _walk(rng, hops, to_number=True)
    if walk is None:
        return None
    ops = walk.ops + chain(rng, CALCULATIONS, difficulty - hops)
    return tame(Problem("mixed", walk.start, ops))


def _read(text: str) -> Value | None:
    return text if is_thing(text) else None


FACTS_FAMILY = enroll(
    Family(
        "facts",
        "facts",
        (
            Style("In the chronicle of Veldra, what is {start}?", nesting=Nesting.OF),
            Style("Name {start}.", nesting=Nesting.POSSESSIVE),
            Style("In the chronicle, start from {start}. {steps} Where do you end?"),
            Style("Follow the chronicle from {start}: {steps}. What is found last?", Layout.THEN),
            Style("From {start} go on: {steps}. Where does the trail end?", Layout.ARROWS),
            Style("Think of {start} in Veldra. {steps} Who or what is it?", Layout.SENTENCES),
            Style("Who or what is {start}?", nesting=Nesting.OF),
            Style("Tell me {start}, please.", nesting=Nesting.POSSESSIVE),
            Style(
                "The clerk opens the page of {start}:\n{steps}\nWhich entry is last?", Layout.LINES
            ),
            Style("A guest asks about {start}; {steps}. What is said?", Layout.SEMICOLONS),
            Style(
                "Beginning at {start}, follow this trail of facts: {steps}. What is at its end?",
                Layout.ARROWS,
            ),
            Style(
                "A traveller in Veldra asks for {start}. What should be answered?",
                nesting=Nesting.OF,
            ),
        ),
        _draw_facts,
        _read,
        lambda _, value: "integer" if isinstance(value, int) else "name",
    )
)

MIXED = enroll(
    Family(
        "mixed",
        "facts",
        (
            Style(
                "Take {start} in the chronicle of Veldra. {steps} What number do you get?",
                nesting=Nesting.OF,
            ),
            Style(
                "Look up {start}, then {steps}. What is the result?",
                Layout.THEN,
                nesting=Nesting.POSSESSIVE,
            ),
            Style(
                "Begin with {start}; {steps}. Give the number.",
                Layout.SEMICOLONS,
                nesting=Nesting.OF,
            ),
            Style(
                "Start from {start} and go on like this:\n{steps}\nWhat is the final number?",
                Layout.LINES,
                nesting=Nesting.OF,
            ),
            Style(
                "Let the first number be {start}, and then: {steps}. What is the last number?",
                Layout.ARROWS,
                nesting=Nesting.OF,
            ),
            Style(
                "Write down {start}. {steps} What is written now?",
                Layout.SENTENCES,
                nesting=Nesting.POSSESSIVE,
            ),
        ),
        _draw_mixed,
        _read,
        lambda _problem, _value: "integer",
    )
)
