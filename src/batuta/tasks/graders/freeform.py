"""Short answers in words, numbers or formulas; what cannot be decided here is left undecided."""

from __future__ import annotations

import math
import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction
from typing import final

from batuta.core import Grade
from batuta.tasks.graders import extract, units
from batuta.tasks.graders.latex import plain
from batuta.tasks.graders.limits import SHOWN, beyond
from batuta.tasks.graders.numbers import equal, leading
from batuta.tasks.graders.pool import UNDECIDED, MathsPool, Verdict

TOLERANCE = 0.01
"""Relative, of a measured number; counts and years are exact."""

OTHER_WORDS = "other words, which may mean the same"

_TRUTH = {"yes": True, "true": True, "correct": True, "no": False, "false": False}
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_ABOUT = re.compile(
    r"^(?:\\approx|\\sim|≈|~|about|approximately|around|roughly|=)\s*", re.IGNORECASE
)
_NAME = re.compile(r"^[A-Za-z](?:_\w+)?\s*=\s*")
_ACCENTS = frozenset(map(chr, range(0x300, 0x370)))
_ARTICLE = re.compile(r"^(?:an?|the)\s+")
_COMMAND = re.compile(r"\\(?:text(?:bf|rm|it)?|math(?:rm|bf|it))\s*\{([^{}]*)\}")
_COUNTED = re.compile(r"[a-zA-Z]+(?: [a-zA-Z]+)*")
_LINKS = frozenset({"or", "and", "to", "plus", "minus"})
_MATHS = re.compile(r"\\(?!text)[a-zA-Z]|[\^=+\d]")
_PROSE = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{3,}")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number and its unit."""

    value: Fraction
    unit: str = ""
    measured: bool = False
    """Written with a decimal point or a power of ten."""


@final
class FreeForm:
    """Judges the marked answer or the last line: as words, yes or no, a quantity, a formula.

    1 for right, 0 for wrong, undecided (None) where other words might mean the same.
    """

    def __init__(self, pool: MathsPool) -> None:
        self._pool = pool

    async def grade(self, answer: str, target: str) -> Grade:
        """The grade of `answer`."""
        found = extract.final(answer)
        if found is None:
            return Grade(0.0, None, "no answer, or its box is cut")
        if reason := beyond(found):
            return Grade(0.0, found[:SHOWN], reason)
        right = decided(found, target)
        if right is None and _MATHS.search(target) and _MATHS.search(found):
            return await self._as_maths(found, target)
        if right is None:
            return Grade(None, found, OTHER_WORDS)
        return Grade(float(right), found, "right" if right else f"expected {target}")

    async def _as_maths(self, found: str, target: str) -> Grade:
        """The grade of an expression; wrong only if a number was asked for and one is given."""
        wanted = quantity(target)
        near = TOLERANCE if wanted and wanted.measured else 0.0
        verdict = await self._pool.compare(plain(target), plain(found), near)
        if verdict is Verdict.SAME:
            return Grade(1.0, found, "right")
        if verdict in UNDECIDED:
            return Grade(None, found, verdict.value)
        if wanted is None or wanted.unit or _PROSE.search(found):
            return Grade(None, found, OTHER_WORDS)
        return Grade(0.0, found, f"expected {target}")


def decided(found: str, target: str) -> bool | None:
    """Whether an answer is the target, as a quantity, as words, as yes or no; None: unclear."""
    wanted, given = quantity(target), quantity(found)
    same = None if wanted is None or given is None else same_quantity(wanted, given)
    if same is not None:
        return same
    if _words(found) == _words(target):
        return True
    truth = _TRUTH.get(_words(target))
    return None if truth is None else _same_truth(found, truth=truth)


def _words(text: str) -> str:
    """Letters and digits in one form, without article, accents and marks."""
    text = _COMMAND.sub(r"\1", text).replace("\\", " ")
    text = unicodedata.normalize("NFKD", text).casefold()
    text = "".join(c if c.isalnum() or c in "+-.%" else " " for c in text if c not in _ACCENTS)
    kept = re.sub(r"-(?!\d)|(?<=[a-z])-", " ", text).strip(" .")
    return _ARTICLE.sub("", " ".join(kept.split()))


def _same_truth(found: str, *, truth: bool) -> bool | None:
    """Whether an answer that says yes or no in its first word says the same."""
    words = re.findall(r"[a-z]+", _words(found))
    negated = words[:1] == ["not"]
    said = _TRUTH.get(next(iter(words[negated:]), ""))
    return None if said is None else (said != negated) == truth


def quantity(text: str) -> Quantity | None:
    """The number and unit that `text` is; None if it is more, or something else."""
    text = _NAME.sub("", _ABOUT.sub("", plain(text).strip()))
    text = _ABOUT.sub("", text)
    found = leading(text)
    if found is None:
        return None
    value, rest = found
    number = text[: len(text) - len(rest)]
    scale, rest = _scale(rest)
    if not _is_unit(rest):
        return None
    measured = "." in number or "10^" in number or "e" in number.casefold()
    return Quantity(value * scale, rest, measured)


def _is_unit(rest: str) -> bool:
    """Whether what follows a number is nothing, a unit of measure, or what is counted."""
    if rest in {"", "%"} or units.known(rest):
        return True
    counted = _COUNTED.fullmatch(units.spelled(rest))
    return counted is not None and _LINKS.isdisjoint(counted[0].casefold().split())


def _scale(rest: str) -> tuple[int, str]:
    word, _, after = rest.removeprefix(r"\text{").partition(" ")
    scale = _SCALES.get(word.strip("}").casefold())
    return (1, rest) if scale is None else (scale, after)


def same_quantity(wanted: Quantity, given: Quantity) -> bool | None:
    """Whether two quantities are the same; None where a unit is not known."""
    if "%" in {wanted.unit, given.unit} and wanted.unit != given.unit:
        return _near(wanted, given.value) or _near(wanted, _share(wanted, given))
    if not wanted.unit or not given.unit or wanted.unit == given.unit:
        return _near(wanted, given.value)
    value = units.converted(float(given.value), given.unit, wanted.unit)
    if value is None:
        return _near(wanted, given.value) if units.same_name(wanted.unit, given.unit) else None
    return False if math.isnan(value) else _near(wanted, Fraction(value))


def _share(wanted: Quantity, given: Quantity) -> Fraction:
    return given.value * 100 if wanted.unit == "%" else given.value / 100


def _near(wanted: Quantity, value: Fraction) -> bool:
    """Whether `value` is near enough: counts are exact, what is measured has a tolerance."""
    if not wanted.measured and not units.known(wanted.unit):
        return equal(wanted.value, value)
    return abs(value - wanted.value) <= Fraction(TOLERANCE) * abs(wanted.value)
