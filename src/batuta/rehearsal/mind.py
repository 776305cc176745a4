"""How a worker thinks: it reads, computes step by step, and slips.

Two sorts of slips. A *misunderstanding* depends on the worker, the question and the step, and on
nothing else: the same worker makes it again, also when it verifies itself. A *lapse* depends on
the whole prompt and the seed. No branch here compares anything with the truth of the question:
a verifier compares its own result with the one that it reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple

from batuta.rehearsal.chance import ROLLS, roll, rolls
from batuta.rehearsal.chronicle import FACTS, KINDS_OF, RELATIONS, mistaken, relations_of
from batuta.rehearsal.heard import Heard, Verb
from batuta.rehearsal.problem import (
    Op,
    Problem,
    Value,
    apply,
    blur,
    kinds,
    misread,
    phrase,
    read_value,
    show,
)
from batuta.rehearsal.profiles import Profile

SYSTEMATIC = 0.88
"""Share of a worker's slips that are misunderstandings; the rest are lapses."""
LOAD = 0.085
"""Added slips a step for every step beyond the span, without a plan."""
PLANNED_LOAD = 0.3
"""Share of that load that is left with a plan."""
FUSS = (0.36, 0.26, 0.12)
"""Chance that a planner makes more of a question of one, two or three steps than there is."""
DISTRACTION = 0.03
"""Added lapses a step for every thousand characters of others' text, for no care at all."""
SECOND_LOOK = 0.3
"""Share of that load that is left when a worker thinks again about one step in dispute."""
CLEAR = 0.12
"""Load of a step above which a worker cannot tell any more who is right, and lets stand what it
reads."""
FALSE_BELIEF = 0.02
"""Share of a worker's beliefs about facts that are false."""
SKIM = 0.25
"""Chance that a careless verifier passes over a difference."""
SHOWN = 0.15
"""Share of the usual misunderstandings that is left in steps that a checker has seen done, once it
has left the working that it reads."""
STUBBORN = 0.4
"""Share of the misunderstandings that it does not see through in which a worker insists on its own
result; in the others it lets stand what it reads."""


class Line(NamedTuple):
    """One written step."""

    what: str
    before: str
    after: str
    guess: bool


class Working(NamedTuple):
    """A piece of work: its lines and the value at the end; None: stuck."""

    lines: tuple[Line, ...]
    value: Value | None
    corrected: int
    """Steps where it left the working that it read."""


class Result(NamedTuple):
    """What one attempt at a step gives."""

    value: Value | None
    guess: bool


@lru_cache(maxsize=16_384)
def belief(worker: str, knows: float, relation: str, subject: str) -> str | int | None:
    """What a worker believes a fact to be; None: it does not know."""
    known, false, pick, *_ = rolls("belief", worker, relation, subject)
    truth = FACTS.get((relation, subject))
    if truth is None or known >= knows:
        return None
    return mistaken(relation, subject, pick) if false < FALSE_BELIEF else truth


@lru_cache(maxsize=65_536)
def _inclination(worker: str, question: str) -> tuple[float, ...]:
    """The rolls behind a worker's misunderstandings of a question."""
    return rolls("misunderstanding", worker, question)


@lru_cache(maxsize=1024)
def _bias(worker: str, kind: str) -> float:
    """How much a worker is prone to misunderstand that kind of step; 1 on average."""
    return 0.4 + 1.2 * roll("bias", worker, kind)


class Mind:
    """One worker at work on one prompt."""

    __slots__ = ("_distraction", "_fixed", "_load", "_loose", "heard", "problem", "profile")

    def __init__(self, profile: Profile, problem: Problem, heard: Heard, seed: int) -> None:
        self.profile = profile
        self.problem = problem
        self.heard = heard
        self._fixed = _inclination(profile.name, heard.question)
        self._loose = rolls("lapse", profile.name, seed, heard.text)
        self._load = LOAD * max(0, problem.difficulty - profile.span)
        self._distraction = DISTRACTION * heard.read_chars / 1000 * (1 - profile.care)

    def plan(self) -> tuple[Op, ...]:
        """The steps of the question as this worker understands them."""
        ops = list(self.problem.ops)
        hazard = (1 - self.profile.planning) * len(ops) / 3
        slip, pick, at, fuss, *_ = rolls("plan", self.profile.name, self.heard.question)
        index = int(at * len(ops))
        if len(ops) <= len(FUSS) and fuss < FUSS[len(ops) - 1]:
            return (*ops[: index + 1], *ops[index:])
        if slip >= hazard:
            return tuple(ops)
        alike = kinds()[ops[index].kind].mistaken
        if alike:
            ops[index] = Op(alike[int(pick * len(alike))], ops[index].args)
        elif ops[index].args:
            ops[index] = Op(ops[index].kind, (ops[index].args[0] + 1, *ops[index].args[1:]))
        elif len(ops) > 1:
            del ops[index]
        return tuple(ops)

    def look_up(self) -> tuple[tuple[str, str, str], ...]:
        """(relation, subject, object) that may help: what it believes, along the chain."""
        found: list[tuple[str, str, str]] = []
        places: list[str] = [str(self.problem.start)]
        for op in self.problem.ops:
            if op.kind not in RELATIONS:
                break
            onward: list[str] = []
            sure = True
            for place in places:
                known = self._recalled(op.kind, place)
                sure = sure and known is not None
                if known is not None:
                    found.append((op.kind, place, str(known)))
                    onward.append(str(known))
            places = onward if sure else _all_of(RELATIONS[op.kind].object)
        return tuple(dict.fromkeys(found))

    def _recalled(self, relation: str, subject: str) -> str | int | None:
        """What is believed of the fact, else what is read of it, else perhaps an invention."""
        own = belief(self.profile.name, self.profile.knows, relation, subject)
        told = (sheet.facts.get((relation, subject)) for sheet in self.heard.sheets)
        if own is None:
            own = next((fact for fact in told if fact is not None), None)
        if own is None and self.profile.invents and subject in KINDS_OF:
            invented, pick, *_ = rolls("invent", self.profile.name, relation, subject)
            if invented < self.profile.invents:
                return mistaken(relation, subject, pick)
        return own

    def work(self, mode: Verb) -> Working:
        """Go through the steps in that mode: solve, verify, repair or compare."""
        ops = self._ops()
        value: Value = self.problem.start
        lines: list[Line] = []
        corrected = 0
        shown = self._shown(mode)
        for index, op in enumerate(ops):
            what, before = phrase(op), show(value)
            own = self._attempt(index, op, value, SHOWN if corrected and what in shown else 1.0)
            settled, left = self._settle(index, op, value, own, mode)
            if settled.value is None:
                return Working(tuple(lines), None, corrected)
            corrected += left
            value = settled.value
            guess = settled.guess and self.profile.candid
            lines.append(Line(what, before, show(value), guess))
        return Working(tuple(lines), value, corrected)

    def _ops(self) -> tuple[Op, ...]:
        """The steps to go through: the plan's, if one can be read, else its own reading."""
        plans = [sheet.plan for sheet in self.heard.sheets if sheet.plan is not None]
        if not plans:
            return self.problem.ops
        plan = plans[-1]
        if plan != self.problem.ops:
            notices = roll("notice", self.profile.name, self.heard.question)
            if notices < self.profile.care * 0.6:
                return self.problem.ops
        self._load = self._load * PLANNED_LOAD
        return plan

    def _shown(self, mode: Verb) -> Collection[str]:
        """The steps, in words, that the visible workings do."""
        if mode in (Verb.SOLVE, Verb.SECOND):
            return ()
        return {what for sheet in self.heard.sheets for what, _ in sheet.steps}

    def _attempt(self, index: int, op: Op, value: Value, share: float) -> Result:
        """This worker's own result of a step; `share` of its misunderstandings happen."""
        if op.kind in RELATIONS:
            return self._fact(index, op, value)
        right = apply(op, value)
        if right is None:
            return Result(None, guess=False)
        if self._misunderstands(index, op, self._load, share):
            return Result(misread(op, value, self._fixed[(index + 8) % ROLLS]), guess=False)
        if self._lapses(index, op):
            return Result(blur(right, self._loose[(index + 8) % ROLLS]), guess=False)
        return Result(right, guess=False)

    def _hazard(self, op: Op) -> float:
        return 1 - self.profile.skill[kinds()[op.kind].skill]

    def _misunderstands(self, index: int, op: Op, load: float, share: float = 1.0) -> bool:
        rate = self._hazard(op) * _bias(self.profile.name, op.kind)
        return self._fixed[index % 8] < SYSTEMATIC * (rate + load) * share

    def _lapses(self, index: int, op: Op) -> bool:
        rate = (1 - SYSTEMATIC) * (self._hazard(op) + self._load) + self._distraction
        return self._loose[index % 8] < rate

    def _fact(self, index: int, op: Op, value: Value) -> Result:
        """A hop: what it believes and what it reads are weighed; else it guesses."""
        subject = str(value)
        if RELATIONS[op.kind].subject != KINDS_OF.get(subject):
            return Result(None, guess=False)
        votes: Counter[str] = Counter()
        own = belief(self.profile.name, self.profile.knows, op.kind, subject)
        if own is not None:
            votes[str(own)] += 1
        load = self._load
        for sheet in self.heard.sheets:
            told = sheet.facts.get((op.kind, subject))
            claim = sheet.steps.get((phrase(op), subject))
            if told is None and claim is not None and not claim.guess:
                told = claim.after
            if told is not None:
                votes[told] += 1
                load = 0.0  # it stands there, and need not be kept in the head
        if not votes:
            pick = roll("guess", self.profile.name, op.kind, subject)
            return Result(mistaken(op.kind, subject, pick), guess=True)
        if self._misunderstands(index, op, load) or self._lapses(index, op):
            return Result(mistaken(op.kind, subject, self._fixed[index % 8 + 8]), guess=False)
        return Result(read_value(votes.most_common(1)[0][0]), guess=False)

    def _settle(
        self, index: int, op: Op, value: Value, own: Result, mode: Verb
    ) -> tuple[Result, bool]:
        """Own result against the results that are read; and whether the reading was left."""
        if mode in (Verb.SOLVE, Verb.SECOND):
            return own, False
        claims = self._claims(op, value, mode)
        if not claims:
            return own, True
        votes = Counter(show(read_value(claim)) for claim in claims)
        mine = None if own.value is None or own.guess else show(own.value)
        if mine is not None:
            votes[mine] += 1
        (best, count), *others = votes.most_common(2)
        if not others or (count > others[0][1]):
            return Result(read_value(best), guess=False), best != claims[-1]
        stands = Result(read_value(claims[-1]), guess=False)
        skims = self._loose[(index + 4) % 8 + 8] < SKIM * (1 - self.profile.care)
        if skims and mode is Verb.VERIFY:
            return stands, False
        settled = self._think_again(index, op, value, own) or stands
        return settled, settled.value is not None and show(settled.value) != claims[-1]

    def _claims(self, op: Op, value: Value, mode: Verb) -> list[str]:
        """What the visible replies say came out of this step."""
        key = (phrase(op), show(value))
        found = [c for sheet in self.heard.sheets if (c := sheet.steps.get(key)) is not None]
        firm = [claim.after for claim in found if not claim.guess]
        return firm[-1:] if mode is Verb.VERIFY else firm

    def _think_again(self, index: int, op: Op, value: Value, own: Result) -> Result | None:
        """The step once more, slowly: without lapse, perhaps better understood; None: in doubt."""
        if op.kind in RELATIONS:
            return own
        if self._load > CLEAR:
            return None
        if not self._misunderstands(index, op, SECOND_LOOK * self._load):
            return Result(apply(op, value), guess=False)
        sees = roll("sees", self.profile.name, self.heard.question, index)
        if sees < self.profile.checking:
            return Result(apply(op, value), guess=False)
        return own if sees >= 1 - STUBBORN * (1 - self.profile.checking) else None


@lru_cache(maxsize=16)
def _all_of(kind: str) -> list[str]:
    """Every thing of that kind about which something can be asked."""
    if not relations_of(kind):
        return []
    return [thing for thing, of in KINDS_OF.items() if of == kind]
