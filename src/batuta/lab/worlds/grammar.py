"""Renders problems as questions, and parses questions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache
from random import Random

from batuta.core.formatting import as_sentence
from batuta.lab.worlds.drawn_tasks import MAX_QUESTION
from batuta.lab.worlds.knowledge_base import RELATIONS
from batuta.lab.worlds.problem import (
    Problem,
    ProblemStep,
    StepValue,
    format_value,
    is_thing,
    phrase_step,
    read_step,
    step_kinds,
)
from batuta.lab.worlds.words import WORDS

HELD_OUT_STYLES = 2
"""Number of styles at the end of each family's list that are held out from training."""


class StepLayout(StrEnum):
    """The way in which the steps of a question are joined."""

    SENTENCES = "sentences"
    THEN = "then"
    SEMICOLONS = "semicolons"
    LINES = "lines"
    ARROWS = "arrows"


class HopNesting(StrEnum):
    """The way in which hops between facts are worded within the start of a question."""

    OF = "of"
    """The mayor of the home town of Ada Brenn."""
    POSSESSIVE = "possessive"
    """Ada Brenn's home town's mayor."""


@dataclass(frozen=True, slots=True)
class QuestionStyle:
    """A wording of a family's questions."""

    template: str
    """The wording, with `{start}`, and with `{steps}` unless all steps are nested in the start."""
    layout: StepLayout = StepLayout.SENTENCES
    nesting: HopNesting | None = None
    """The wording of the first hops within the start; None if all hops are steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionFamily:
    """A family of questions: how they are drawn, worded and read."""

    name: str
    skill: str
    """The main skill that the family's questions need."""
    draw: Callable[[Random, int], Problem | None]
    """Returns a random problem of that difficulty, or None to draw again."""
    read_start: Callable[[str], StepValue | None]
    """Returns the start value that a text states; None if it states none."""
    grader: Callable[[Problem, StepValue], str]
    """Returns the name of the grader for a problem and its answer."""

    @property
    def styles(self) -> tuple[QuestionStyle, ...]:
        """The wordings of the family's questions."""
        return _read_styles(self.name)


@cache
def _read_styles(family: str) -> tuple[QuestionStyle, ...]:
    return tuple(
        QuestionStyle(template, StepLayout(layout), HopNesting(nesting[0]) if nesting else None)
        for layout, template, *nesting in WORDS["styles"][family]
    )


def register_family(family: QuestionFamily) -> QuestionFamily:
    """Register the family, so that its questions can be drawn and parsed; return the family."""
    _FAMILIES[family.name] = family
    return family


def question_families() -> Mapping[str, QuestionFamily]:
    """Return every family, by name."""
    return _FAMILIES


def render_question(problem: Problem, style: int, wording: Sequence[int] = ()) -> str:
    """Return the problem as a question in the style of index `style`.

    `wording` has the index of each step's phrase; empty: the canonical phrases.
    """
    chosen = _FAMILIES[problem.family].styles[style]
    start, phrased = format_value(problem.start), 0
    if chosen.nesting is not None:
        phrased = _leading_hops(problem.ops)
        start = _nest_hops(start, problem.ops[:phrased], chosen.nesting)
    worded = list(zip(problem.ops, wording or (0,) * problem.difficulty, strict=True))
    steps = _join_clauses(
        [phrase_step(op, number) for op, number in worded[phrased:]], chosen.layout
    )
    return chosen.template.replace("{start}", start).replace("{steps}", steps)


@lru_cache(maxsize=65_536)
def read_problem(text: str) -> Problem | None:
    """Return the problem that a question states; None if the question is not of this world."""
    question = text.strip()
    if len(question) > MAX_QUESTION:
        return None
    for family in _FAMILIES.values():
        for style, pattern in _style_patterns(family.name):
            if found := pattern.fullmatch(question):
                problem = _build_problem(family, style, found)
                if problem is not None:
                    return problem
    return None


@cache
def _style_patterns(name: str) -> tuple[tuple[QuestionStyle, re.Pattern[str]], ...]:
    return tuple(
        (style, re.compile(_template_pattern(style.template), re.DOTALL))
        for style in _FAMILIES[name].styles
    )


def _template_pattern(template: str) -> str:
    escaped = re.escape(template)
    start = r"(?P<start>\[[^\]]*\]|[^\[\]]+?)"
    return escaped.replace(r"\{start\}", start).replace(r"\{steps\}", "(?P<steps>.+)")


def _build_problem(
    family: QuestionFamily, style: QuestionStyle, found: re.Match[str]
) -> Problem | None:
    """Return the problem of a match; None if a part of the match cannot be parsed."""
    groups = found.groupdict()
    hops: tuple[ProblemStep, ...] = ()
    start: StepValue | None = None
    if style.nesting is None:
        start = family.read_start(groups["start"])
    elif (chain := _read_nested(groups["start"], style.nesting)) is not None:
        start, hops = chain
    if start is None:
        return None
    ops: list[ProblemStep] = list(hops)
    for clause in _split_clauses(groups.get("steps") or "", style.layout):
        op = read_step(clause)
        if op is None:
            return None
        ops.append(op)
    return Problem(family.name, start, tuple(ops)) if ops else None


def _leading_hops(ops: Sequence[ProblemStep]) -> int:
    return next((at for at, op in enumerate(ops) if op.kind not in RELATIONS), len(ops))


def _nest_hops(start: str, hops: Sequence[ProblemStep], nesting: HopNesting) -> str:
    if nesting is HopNesting.POSSESSIVE:
        return "'s ".join([start, *(op.kind for op in hops)])
    return " of ".join([*(f"the {op.kind}" for op in reversed(hops)), start])


def _read_nested(text: str, nesting: HopNesting) -> tuple[str, tuple[ProblemStep, ...]] | None:
    if nesting is HopNesting.POSSESSIVE:
        start, *names = text.split("'s ")
    else:
        *outer, start = text.split(" of ")
        names = [name.removeprefix("the ") for name in reversed(outer)]
    if not is_thing(start) or not names or any(name not in RELATIONS for name in names):
        return None
    return start, tuple(ProblemStep(name) for name in names)


_CLAUSE_SEPARATORS = {
    StepLayout.THEN: ", then ",
    StepLayout.SEMICOLONS: "; ",
    StepLayout.ARROWS: " => ",
}
_NUMBERED = re.compile(r"^[^\S\n]*+\d++[.)] ", re.MULTILINE)


def _join_clauses(clauses: Sequence[str], layout: StepLayout) -> str:
    if layout is StepLayout.SENTENCES:
        return " ".join(map(as_sentence, clauses))
    if layout is StepLayout.LINES:
        return "\n".join(f"{number}. {clause}" for number, clause in enumerate(clauses, 1))
    return _CLAUSE_SEPARATORS[layout].join(clauses)


def _split_clauses(text: str, layout: StepLayout) -> list[str]:
    if not text:
        return []
    if layout is StepLayout.SENTENCES:
        parts = text.strip().removesuffix(".").split(". ")
        return [part[:1].lower() + part[1:] for part in parts]
    if layout is StepLayout.LINES:
        return [line.strip() for line in _NUMBERED.split(text) if line.strip()]
    return text.split(_CLAUSE_SEPARATORS[layout])


def draw_steps(rng: Random, names: Sequence[str], length: int) -> tuple[ProblemStep, ...]:
    """Return `length` random steps of the named kinds, no two in a row of the same kind.

    There must be two kinds or more, unless `length` is 0 or 1.
    """
    ops: list[ProblemStep] = []
    while len(ops) < length:
        op = step_kinds()[rng.choice(names)].draw(rng)
        if not ops or ops[-1].kind != op.kind:
            ops.append(op)
    return tuple(ops)


_FAMILIES: dict[str, QuestionFamily] = {}
