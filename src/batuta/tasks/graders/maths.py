r"""Mathematical answers: the last box, compared as text, as numbers, in form, and symbolically."""

from __future__ import annotations

from typing import final

from batuta.core import Grade
from batuta.tasks.graders import extract, forms, values
from batuta.tasks.graders.latex import plain
from batuta.tasks.graders.limits import SHOWN, beyond
from batuta.tasks.graders.pool import UNDECIDED, MathsPool, Verdict


class _NeedsAlgebra(Exception):
    """Two values can only be compared symbolically."""


@final
class Maths:
    r"""Judges the expression in the last `\boxed{}`, or an answer that is nothing else.

    1 for the target in any form, 0 for anything else, undecided (None) where comparing the two
    took too long or too much memory. The box is not guessed: without one, or with the last one
    cut, the answer is wrong.
    """

    def __init__(self, pool: MathsPool) -> None:
        self._pool = pool

    async def grade(self, answer: str, target: str) -> Grade:
        """The grade of `answer`; what needs algebra is compared in another process."""
        found = found_answer(answer)
        if found is None:
            return Grade(0.0, None, "no box, or the last one is cut")
        if reason := beyond(found):
            return Grade(0.0, found[:SHOWN], reason)
        verdict = await self._compare(found, target)
        if verdict in UNDECIDED:
            return Grade(None, found, verdict.value)
        right = verdict is Verdict.SAME
        return Grade(float(right), found, "right" if right else f"expected {target}")

    async def _compare(self, found: str, target: str) -> Verdict:
        wanted, given = plain(target), plain(found)
        quick = without_algebra(wanted, given)
        if quick is None:
            return await self._pool.compare(wanted, given)
        return Verdict.SAME if quick else Verdict.DIFFERENT


def found_answer(text: str) -> str | None:
    """What `text` gives as its answer; None if it does not say."""
    shown = extract.visible(text)
    return extract.boxed(shown) if extract.has_box(shown) else extract.bare(shown)


def without_algebra(target: str, answer: str) -> bool | None:
    """Whether the answer is the target, where text, numbers and form tell; None where not."""
    if target == answer:
        return True
    try:
        return forms.same(forms.read(target), forms.read(answer), _plainly)
    except _NeedsAlgebra:
        return None


def _plainly(wanted: forms.Value, given: forms.Value) -> bool:
    return values.same_value(wanted, given, _algebra)


def _algebra(*_: str) -> bool:
    raise _NeedsAlgebra
