"""Wordings: a problem to a question and back. Each family has styles, the last two held out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache
from random import Random

from batuta.rehearsal.chronicle import RELATIONS
from batuta.rehearsal.problem import Op, Problem, Value, is_thing, kinds, phrase, read_op, show

HELD_OUT_STYLES = 2
"""A family's last styles are held out, the others are for training."""


class Layout(StrEnum):
    """How the steps of a question are strung together."""

    SENTENCES = "sentences"
    THEN = "then"
    SEMICOLONS = "semicolons"
    LINES = "lines"
    ARROWS = "arrows"


class Nesting(StrEnum):
    """How hops between facts are said inside the start of a question."""

    OF = "of"
    """The mayor of the home town of Ada Brenn."""
    POSSESSIVE = "possessive"
    """Ada Brenn's home town's mayor."""


@dataclass(frozen=True, slots=True)
class Style:
    """One wording of a family's questions."""

    template: str
    """With `{start}` and, unless every step is nested in the start, `{steps}`."""
    layout: Layout = Layout.SENTENCES
    nesting: Nesting | None = None


@dataclass(frozen=True, slots=True)
class Family:
    """A family of questions: how they are drawn, worded and read."""

    name: str
    skill: str
    """The skill that most of its steps want."""
    styles: tuple[Style, ...]
    draw: Callable[[Random, int], Problem | None]
    """A problem of that difficulty; None: draw again."""
    read_start: Callable[[str], Value | None]
    grader: Callable[[Problem, Value], str]
    """The name of the grader that fits the answer."""


def enroll(family: Family) -> Family:
    """Make a family known to `read` and `tasks`."""
    _FAMILIES[family.name] = family
    return family


def families() -> Mapping[str, Family]:
    """Every family, by name."""
    return _FAMILIES


def render(problem: Problem, style: int, wording: Sequence[int] = ()) -> str:
    """The question in that style.

    Args:
        problem: what is asked.
        style: which of its family's.
        wording: of each step, the number of its phrase; none: the canonical ones.
    """
    chosen = _FAMILIES[problem.family].styles[style]
    start, said = show(problem.start), 0
    if chosen.nesting is not None:
        said = _leading_hops(problem.ops)
        start = _nested(start, problem.ops[:said], chosen.nesting)
    worded = list(zip(problem.ops, wording or (0,) * problem.difficulty, strict=True))
    steps = _string([phrase(op, number) for op, number in worded[said:]], chosen.layout)
    return chosen.template.replace("{start}", start).replace("{steps}", steps)


@lru_cache(maxsize=65_536)
def read(text: str) -> Problem | None:
    """The problem that the question states, in any wording; None: not of this world."""
    spoken = text.strip()
    for family in _FAMILIES.values():
        for style, pattern in _patterns(family.name):
            if found := pattern.fullmatch(spoken):
                problem = _understand(family, style, found)
                if problem is not None:
                    return problem
    return None


@cache
def _patterns(name: str) -> tuple[tuple[Style, re.Pattern[str]], ...]:
    """A family's styles, each with the pattern of its questions."""
    return tuple(
        (style, re.compile(_pattern(style.template), re.DOTALL)) for style in _FAMILIES[name].styles
    )


def _pattern(template: str) -> str:
    escaped = re.escape(template)
    start = r"(?P<start>\[[^\]]*\]|[^\[\]]+?)"
    return escaped.replace(r"\{start\}", start).replace(r"\{steps\}", "(?P<steps>.+)")


def _understand(family: Family, style: Style, found: re.Match[str]) -> Problem | None:
    """The problem behind a match; None if a part of it means nothing."""
    groups = found.groupdict()
    hops: tuple[Op, ...] | None = ()
    start: Value | None = None
    if style.nesting is None:
        start = family.read_start(groups["start"])
    elif (chain := _read_nested(groups["start"], style.nesting)) is not None:
        start, hops = chain
    if start is None:
        return None
    ops: list[Op] = list(hops)
    for clause in _unstring(groups.get("steps") or "", style.layout):
        op = read_op(clause)
        if op is None:
            return None
        ops.append(op)
    return Problem(family.name, start, tuple(ops)) if ops else None


def _leading_hops(ops: Sequence[Op]) -> int:
    """How many steps at the beginning are relations."""
    for index, op in enumerate(ops):
        if op.kind not in RELATIONS:
            return index
    return len(ops)


def _nested(start: str, hops: Sequence[Op], nesting: Nesting) -> str:
    if nesting is Nesting.POSSESSIVE:
        return "'s ".join([start, *(op.kind for op in hops)])
    return " of ".join([*(f"the {op.kind}" for op in reversed(hops)), start])


def _read_nested(text: str, nesting: Nesting) -> tuple[str, tuple[Op, ...]] | None:
    if nesting is Nesting.POSSESSIVE:
        start, *names = text.split("'s ")
    else:
        *outer, start = text.split(" of ")
        names = [name.removeprefix("the ") for name in reversed(outer)]
    if not is_thing(start) or not names or any(name not in RELATIONS for name in names):
        return None
    return start, tuple(Op(name) for name in names)


_JOINTS = {Layout.THEN: ", then ", Layout.SEMICOLONS: "; ", Layout.ARROWS: " => "}
_NUMBERED = re.compile(r"^\s*\d+[.)] ", re.MULTILINE)


def _string(clauses: Sequence[str], layout: Layout) -> str:
    if layout is Layout.SENTENCES:
        return " ".join(f"{clause[0].upper()}{clause[1:]}." for clause in clauses)
    if layout is Layout.LINES:
        return "\n".join(f"{number}. {clause}" for number, clause in enumerate(clauses, 1))
    return _JOINTS[layout].join(clauses)


def _unstring(text: str, layout: Layout) -> list[str]:
    if not text:
        return []
    if layout is Layout.SENTENCES:
        parts = text.strip().removesuffix(".").split(". ")
        return [part[:1].lower() + part[1:] for part in parts]
    if layout is Layout.LINES:
        return [line.strip() for line in _NUMBERED.split(text) if line.strip()]
    return text.split(_JOINTS[layout])


def chain(rng: Random, names: Sequence[str], length: int) -> tuple[Op, ...]:
    """Random steps of the named kinds, no two neighbours of one kind."""
    ops: list[Op] = []
    while len(ops) < length:
        op = kinds()[rng.choice(names)].draw(rng)
        if not ops or ops[-1].kind != op.kind:
            ops.append(op)
    return tuple(ops)


_FAMILIES: dict[str, Family] = {}
