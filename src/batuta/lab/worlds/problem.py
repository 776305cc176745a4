"""Problems, each a start value and a chain of elementary steps, and the computation of steps."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import date
from random import Random
from typing import Any

from batuta.lab.worlds.knowledge_base import FACTS, KINDS_OF, RELATIONS
from batuta.lab.worlds.words import WORDS

StepValue = int | str | tuple[int, ...] | date
"""The value that one step passes to the next."""

WORDINGS_PER_KIND = 5
"""Number of wordings of each kind of step: four for training, and the last held out."""

StepArguments = tuple[int, ...]

Transform = Callable[[Any, int], StepValue]
"""Returns a step's result from the value so far and the step's number (0 if it has none)."""

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@dataclass(frozen=True, slots=True)
class ProblemStep:
    """One elementary step: the name of its kind, and its numbers."""

    kind: str
    args: StepArguments = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepKind:
    """A kind of elementary step: its wordings and its computation."""

    name: str
    skill: str
    """The skill that the step needs: arithmetic, code, facts, text or calendar."""
    phrases: tuple[str, ...]
    """The wordings, `#` for each number; the first is canonical, the last is held out."""
    apply: Transform
    takes: type = object
    """The type of the values to which the step can be applied."""
    ranges: tuple[tuple[int, int], ...] = ()
    """The bounds of each argument, inclusive."""
    confusable_with: tuple[str, ...] = ()
    """Kinds for which the step can be mistaken, with the same arguments and types."""
    is_final: bool = False
    """True if no step of its family can follow the step."""

    def draw(self, rng: Random) -> ProblemStep:
        """Return a step of this kind with random arguments."""
        return ProblemStep(self.name, tuple(rng.randint(*bounds) for bounds in self.ranges))


@dataclass(frozen=True, slots=True)
class Problem:
    """The meaning of a question, independent of its wording: a start value and its steps, `ops`."""

    family: str
    start: StepValue
    ops: tuple[ProblemStep, ...]

    @property
    def difficulty(self) -> int:
        """The number of elementary steps."""
        return len(self.ops)


_RELATION_VERBS = ("find", "look for", "go to", "ask for", "move on to")


def _relation_kind(name: str) -> StepKind:
    own = RELATIONS[name]
    return StepKind(
        name=name,
        skill="facts",
        phrases=tuple(f"{verb} the {name}" for verb in _RELATION_VERBS),
        apply=lambda value, _: FACTS[name, str(value)],
        confusable_with=tuple(
            other.name
            for other in RELATIONS.values()
            if other != own and (other.subject, other.object) == (own.subject, own.object)
        ),
    )


def step_kinds() -> Mapping[str, StepKind]:
    """Return every kind of step, by name."""
    return _KINDS


def phrase_step(op: ProblemStep, variant: int = 0) -> str:
    """Return the step in the wording of index `variant`."""
    text = _KINDS[op.kind].phrases[variant]
    for number in op.args:
        text = text.replace("#", str(number), 1)
    return text


def read_step(text: str) -> ProblemStep | None:
    """Return the step that a text states in any wording; None if it states none."""
    found = _PHRASES.get(_DIGITS.sub("#", text))
    if found is None:
        return None
    return ProblemStep(found, tuple(int(number) for number in _DIGITS.findall(text)))


_MAX_NUMBER = 10**4000
"""Maximum absolute value of a number; a question may ask to square a number a hundred times."""


def apply_step(op: ProblemStep, value: StepValue) -> StepValue | None:
    """Return the step's result; None if it is too large, or the step does not fit the value."""
    kind = _KINDS[op.kind]
    if not isinstance(value, kind.takes):
        return None
    try:
        result = kind.apply(value, op.args[0] if op.args else 0)
    except (ValueError, KeyError, IndexError, OverflowError):
        return None
    numbers = result if isinstance(result, tuple) else (result,) if isinstance(result, int) else ()
    return None if any(abs(number) > _MAX_NUMBER for number in numbers) else result


def solve_problem(problem: Problem) -> StepValue | None:
    """Return the correct answer; None if a step cannot be applied."""
    value: StepValue | None = problem.start
    for op in problem.ops:
        value = None if value is None else apply_step(op, value)
    return value


def misread_step(op: ProblemStep, value: StepValue, pick: float) -> StepValue | None:
    """Return the wrong result of a misunderstood step; None if neither it nor a similar one fits.

    `pick` in [0, 1) chooses the misunderstanding.
    """
    kind = _KINDS[op.kind]
    ways: list[ProblemStep] = [ProblemStep(other, op.args) for other in kind.confusable_with]
    if op.args:
        ways += [ProblemStep(op.kind, (op.args[0] + change, *op.args[1:])) for change in (1, -1)]
    right = apply_step(op, value)
    for offset in range(len(ways)):
        wrong = apply_step(ways[(int(pick * len(ways)) + offset) % len(ways)], value)
        if wrong is not None and wrong != right:
            return wrong
    return None if right is None else perturb_value(right, pick)


def perturb_value(value: StepValue, pick: float) -> StepValue:
    """Return a slightly different value, chosen by `pick` in [0, 1)."""
    if isinstance(value, int):
        return value + (-10, -2, -1, 1, 2, 10)[int(pick * 6)]
    if isinstance(value, tuple):
        if not value:
            return (0,)
        at = int(pick * len(value))
        return (*value[:at], value[at] + 1, *value[at + 1 :])
    if isinstance(value, date):
        return date.fromordinal(max(1, value.toordinal() + (-2, -1, 1, 2)[int(pick * 4)]))
    return _perturb_text(value, pick)


def _perturb_text(text: str, pick: float) -> str:
    if text in WEEKDAYS:
        return WEEKDAYS[(WEEKDAYS.index(text) + 1 + int(pick * 6)) % 7]
    if len(text) < 2:  # noqa: PLR2004  (one letter cannot be swapped with its neighbour)
        return text + "a"
    at = int(pick * (len(text) - 1))
    swapped = text[:at] + text[at + 1] + text[at] + text[at + 2 :]
    return swapped if swapped != text else text[:at] + text[at + 1 :]


def format_value(value: StepValue) -> str:
    """Return the value as text that `read_value` can read."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    if isinstance(value, date):
        return f"{value.day} {MONTHS[value.month - 1]} {value.year}"
    return str(value)


def read_value(text: str) -> StepValue:
    """Return the number, list or date that a text states; without one, the text itself."""
    if _DIGITS.fullmatch(text):
        return int(text)
    if text.startswith("["):
        return tuple(int(number) for number in _DIGITS.findall(text))
    if (found := _DATE.fullmatch(text)) and found[2] in MONTHS:
        try:
            return date(int(found[3]), MONTHS.index(found[2]) + 1, int(found[1]))
        except ValueError:
            return text
    return text


def is_thing(text: object) -> bool:
    """Return True if a thing of the knowledge base has that name."""
    return text in KINDS_OF


@dataclass(frozen=True, slots=True)
class StepRule:
    """The rule by which a kind of step computes; `WORDS` has the wordings."""

    name: str
    apply: Transform
    confusable_with: tuple[str, ...] = ()
    _: KW_ONLY
    number: tuple[int, int] | None = None
    """The bounds of the step's number, inclusive; None if the step has no number."""


def register_steps(
    skill: str, takes: type, *rules: StepRule, final: Collection[str] = ()
) -> tuple[StepKind, ...]:
    """Register kinds of steps of one skill, on values of type `takes`, and return them.

    No step may follow a kind that `final` names.

    Raises:
        ValueError: two kinds have the same wording.
    """
    kinds = tuple(
        StepKind(
            name=rule.name,
            skill=skill,
            phrases=tuple(WORDS["steps"][rule.name]),
            apply=rule.apply,
            takes=takes,
            ranges=() if rule.number is None else (rule.number,),
            confusable_with=rule.confusable_with,
            is_final=rule.name in final,
        )
        for rule in rules
    )
    _register_kinds(kinds)
    return kinds


def _register_kinds(more: Sequence[StepKind]) -> None:
    for kind in more:
        _KINDS[kind.name] = kind
        for words in kind.phrases:
            if _PHRASES.setdefault(words, kind.name) != kind.name:
                raise ValueError(f"two kinds of steps are called {words!r}")


_DIGITS = re.compile(r"-?\d+")
_DATE = re.compile(r"(\d{1,2}) ([A-Z][a-z]+) (\d{4})")
_KINDS: dict[str, StepKind] = {}
_PHRASES: dict[str, str] = {}
_register_kinds([_relation_kind(name) for name in RELATIONS])
