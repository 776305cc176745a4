"""The model of a simulated worker, which computes step by step and makes errors at set rates.

There are two kinds of errors. A *misunderstanding* is drawn from the worker, the question and the
step alone, so the worker repeats it even when it verifies its own solution. A *random error* is
drawn from the whole prompt and the seed. Nothing here is compared with the correct answer to the
question: a verifier compares its own result with a result that it reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple

from batuta.lab.worlds.knowledge_base import FACTS, KINDS_OF, RELATIONS, mistaken_fact, relations_of
from batuta.lab.worlds.problem import (
    Problem,
    ProblemStep,
    StepValue,
    apply_step,
    format_value,
    misread_step,
    perturb_value,
    phrase_step,
    read_value,
    step_kinds,
)
from batuta.lab.worlds.profiles import WorkerProfile
from batuta.lab.worlds.prompt_parser import ParsedPrompt
from batuta.lab.worlds.seeded_random import NUMBERS_PER_DIGEST, uniform_number, uniform_numbers
from batuta.language.instructions import InstructionKind

SYSTEMATIC_ERROR_SHARE = 0.88
"""Share of a worker's errors that are misunderstandings; the others are random errors."""
ERROR_PER_EXTRA_STEP = 0.085
"""The load: the error rate that each step beyond the worker's span adds to every step."""
LOAD_LEFT_WITH_PLAN = 0.3
"""Factor of the load if the worker reads a plan."""
OVERPLANNING_RATES = (0.36, 0.26, 0.12)
"""Probability that a plan for a question of one, two or three steps repeats a step."""
DISTRACTION_RATE = 0.03
"""Rate of random errors in a step per thousand characters of others' text, for a care of 0."""
LOAD_LEFT_ON_RETRY = 0.3
"""Factor of the load when a worker reconsiders one disputed step."""
MAX_LOAD_TO_RETRY = 0.12
"""Load above which a worker accepts the result that it reads in a disputed step, except a hop."""
FALSE_BELIEF_SHARE = 0.02
"""Share of a worker's known facts that it believes to be something else."""
SKIM_RATE = 0.25
"""Probability that a verifier with a care of 0 overlooks a difference."""
ERROR_SHARE_IN_SHOWN_STEPS = 0.15
"""Factor of a checker's misunderstandings in steps that it reads, once it has departed from a
result that it reads."""
STUBBORN_SHARE = 0.4
"""Share of a worker's unnoticed misunderstandings in which it insists on its own result; otherwise
it accepts the result that it reads."""


class WorkedStep(NamedTuple):
    """A step as a worker writes it: its phrase, the values around it, and whether it is a guess."""

    what: str
    before: str
    after: str
    guess: bool


class WorkedSolution(NamedTuple):
    """A written solution."""

    lines: tuple[WorkedStep, ...]
    value: StepValue | None
    """The final value; None if a step could not be done."""
    corrected_steps: int
    """Number of steps in which the worker departed from what it read, or read no result."""


class SimulatedStepResult(NamedTuple):
    """The result of an attempt at a step; its value is None if the step cannot be done."""

    value: StepValue | None
    guess: bool = False


@lru_cache(maxsize=16_384)
def believed_fact(worker: str, knows: float, relation: str, subject: str) -> str | int | None:
    """Return what a worker believes a fact to be; None if the worker does not know the fact."""
    known, false, pick, *_ = uniform_numbers("belief", worker, relation, subject)
    truth = FACTS.get((relation, subject))
    if truth is None or known >= knows:
        return None
    return mistaken_fact(relation, subject, pick) if false < FALSE_BELIEF_SHARE else truth


@lru_cache(maxsize=65_536)
def _systematic_error_numbers(worker: str, question: str) -> tuple[float, ...]:
    return uniform_numbers("misunderstanding", worker, question)


@lru_cache(maxsize=1024)
def _error_bias(worker: str, kind: str) -> float:
    """Return the factor of a worker's misunderstandings of that kind of step; 1 on average."""
    return 0.4 + 1.2 * uniform_number("bias", worker, kind)


class WorkerModel:
    """Simulates one worker on one prompt."""

    __slots__ = (
        "_distraction",
        "_load",
        "_random_numbers",
        "_systematic_numbers",
        "problem",
        "profile",
        "prompt",
    )

    def __init__(
        self, profile: WorkerProfile, problem: Problem, prompt: ParsedPrompt, seed: int
    ) -> None:
        self.profile = profile
        self.problem = problem
        self.prompt = prompt
        self._systematic_numbers = _systematic_error_numbers(profile.name, prompt.question)
        self._random_numbers = uniform_numbers("lapse", profile.name, seed, prompt.text)
        self._load = ERROR_PER_EXTRA_STEP * max(0, problem.difficulty - profile.span)
        self._distraction = DISTRACTION_RATE * prompt.read_chars / 1000 * (1 - profile.care)

    def make_plan(self) -> tuple[ProblemStep, ...]:
        """Return the steps of the question as this worker understands them."""
        ops = list(self.problem.ops)
        hazard = (1 - self.profile.planning) * len(ops) / 3
        error, pick, at, extra, *_ = uniform_numbers(
            "plan", self.profile.name, self.prompt.question
        )
        index = int(at * len(ops))
        if len(ops) <= len(OVERPLANNING_RATES) and extra < OVERPLANNING_RATES[len(ops) - 1]:
            return (*ops[: index + 1], *ops[index:])
        if error >= hazard:
            return tuple(ops)
        alike = step_kinds()[ops[index].kind].confusable_with
        if alike:
            ops[index] = ProblemStep(alike[int(pick * len(alike))], ops[index].args)
        elif ops[index].args:
            ops[index] = ProblemStep(
                ops[index].kind, (ops[index].args[0] + 1, *ops[index].args[1:])
            )
        elif len(ops) > 1:
            del ops[index]
        return tuple(ops)

    def look_up(self) -> tuple[tuple[str, str, str], ...]:
        """Return the facts of the chain as the worker knows them: (relation, subject, object).

        Behind an unknown fact, the next relation is looked up for all things of that kind.
        """
        found: list[tuple[str, str, str]] = []
        subjects: list[str] = [str(self.problem.start)]
        for op in self.problem.ops:
            if op.kind not in RELATIONS:
                break
            objects: list[str] = []
            all_known = True
            for subject in subjects:
                known = self._recall_fact(op.kind, subject)
                all_known = all_known and known is not None
                if known is not None:
                    found.append((op.kind, subject, str(known)))
                    objects.append(str(known))
            subjects = objects if all_known else _things_of_kind(RELATIONS[op.kind].object)
        return tuple(dict.fromkeys(found))

    def _recall_fact(self, relation: str, subject: str) -> str | int | None:
        """Return the worker's belief, else a fact in the prompt, else perhaps an invention."""
        own = believed_fact(self.profile.name, self.profile.knows, relation, subject)
        facts = (reply.facts.get((relation, subject)) for reply in self.prompt.replies)
        if own is None:
            own = next((fact for fact in facts if fact is not None), None)
        if own is None and self.profile.invents and subject in KINDS_OF:
            invented, pick, *_ = uniform_numbers("invent", self.profile.name, relation, subject)
            if invented < self.profile.invents:
                return mistaken_fact(relation, subject, pick)
        return own

    def solve_in_mode(self, mode: InstructionKind) -> WorkedSolution:
        """Return the worker's solution; the mode is to solve, verify, repair or compare."""
        ops = self._choose_steps()
        value: StepValue = self.problem.start
        lines: list[WorkedStep] = []
        corrected = 0
        shown = self._shown_steps(mode)
        for index, op in enumerate(ops):
            what, before = phrase_step(op), format_value(value)
            own = self._attempt(
                index, op, value, ERROR_SHARE_IN_SHOWN_STEPS if corrected and what in shown else 1.0
            )
            settled, left = self._reconcile(index, op, value=value, own=own, mode=mode)
            if settled.value is None:
                return WorkedSolution(tuple(lines), None, corrected)
            corrected += left
            value = settled.value
            guess = settled.guess and self.profile.candid
            lines.append(WorkedStep(what, before, format_value(value), guess))
        return WorkedSolution(tuple(lines), value, corrected)

    def _choose_steps(self) -> tuple[ProblemStep, ...]:
        """Return the steps of the last plan in the prompt; without a usable plan, the problem's."""
        plans = [reply.plan for reply in self.prompt.replies if reply.plan is not None]
        if not plans:
            return self.problem.ops
        plan = plans[-1]
        if plan != self.problem.ops:
            notices = uniform_number("notice", self.profile.name, self.prompt.question)
            if notices < self.profile.care * 0.6:
                return self.problem.ops
        self._load = self._load * LOAD_LEFT_WITH_PLAN
        return plan

    def _shown_steps(self, mode: InstructionKind) -> Collection[str]:
        """Return the phrases of the steps in the prompt's solutions; none in the mode to solve."""
        if mode is InstructionKind.SOLVE:
            return ()
        return {what for reply in self.prompt.replies for what, _ in reply.steps}

    def _attempt(
        self, index: int, op: ProblemStep, value: StepValue, share: float
    ) -> SimulatedStepResult:
        """Return this worker's own result of a step; `share` is the factor of misunderstandings."""
        if op.kind in RELATIONS:
            return self._follow_relation(index, op, value)
        right = apply_step(op, value)
        if right is None:
            return SimulatedStepResult(None)
        if self._makes_systematic_error(index, op, self._load, share):
            pick = self._systematic_numbers[(index + 8) % NUMBERS_PER_DIGEST]
            return SimulatedStepResult(misread_step(op, value, pick))
        if self._makes_random_error(index, op):
            pick = self._random_numbers[(index + 8) % NUMBERS_PER_DIGEST]
            return SimulatedStepResult(perturb_value(right, pick))
        return SimulatedStepResult(right)

    def _hazard(self, op: ProblemStep) -> float:
        return 1 - self.profile.skill[step_kinds()[op.kind].skill]

    def _makes_systematic_error(
        self, index: int, op: ProblemStep, load: float, share: float = 1.0
    ) -> bool:
        rate = self._hazard(op) * _error_bias(self.profile.name, op.kind)
        return self._systematic_numbers[index % 8] < SYSTEMATIC_ERROR_SHARE * (rate + load) * share

    def _makes_random_error(self, index: int, op: ProblemStep) -> bool:
        rate = (1 - SYSTEMATIC_ERROR_SHARE) * (self._hazard(op) + self._load) + self._distraction
        return self._random_numbers[index % 8] < rate

    def _follow_relation(
        self, index: int, op: ProblemStep, value: StepValue
    ) -> SimulatedStepResult:
        """Return the result of a hop: a vote of the worker's belief and the facts in the prompt.

        Without a vote the result is a guess.
        """
        subject = str(value)
        if RELATIONS[op.kind].subject != KINDS_OF.get(subject):
            return SimulatedStepResult(None)
        votes: Counter[str] = Counter()
        own = believed_fact(self.profile.name, self.profile.knows, op.kind, subject)
        if own is not None:
            votes[str(own)] += 1
        load = self._load
        for reply in self.prompt.replies:
            fact = reply.facts.get((op.kind, subject))
            claim = reply.steps.get((phrase_step(op), subject))
            if fact is None and claim is not None and not claim.guess:
                fact = claim.after
            if fact is not None:
                votes[fact] += 1
                load = 0.0  # a fact in the prompt removes the load
        if not votes:
            pick = uniform_number("guess", self.profile.name, op.kind, subject)
            return SimulatedStepResult(mistaken_fact(op.kind, subject, pick), guess=True)
        if self._makes_systematic_error(index, op, load) or self._makes_random_error(index, op):
            pick = self._systematic_numbers[index % 8 + 8]
            return SimulatedStepResult(mistaken_fact(op.kind, subject, pick))
        return SimulatedStepResult(read_value(votes.most_common(1)[0][0]))

    def _reconcile(
        self,
        index: int,
        op: ProblemStep,
        value: StepValue,
        own: SimulatedStepResult,
        *,
        mode: InstructionKind,
    ) -> tuple[SimulatedStepResult, bool]:
        """Choose between the worker's own result and the results in the prompt.

        Returns:
            The choice, and whether it departs from the last result in the prompt; also True if a
            mode other than to solve finds no result.
        """
        if mode is InstructionKind.SOLVE:
            return own, False
        claims = self._claimed_results(op, value, mode)
        if not claims:
            return own, True
        votes = Counter(format_value(read_value(claim)) for claim in claims)
        mine = None if own.value is None or own.guess else format_value(own.value)
        if mine is not None:
            votes[mine] += 1
        (best, count), *others = votes.most_common(2)
        if not others or count > others[0][1]:
            return SimulatedStepResult(read_value(best)), best != claims[-1]
        accepted = SimulatedStepResult(read_value(claims[-1]))
        skims = self._random_numbers[(index + 4) % 8 + 8] < SKIM_RATE * (1 - self.profile.care)
        if skims and mode is InstructionKind.VERIFY:
            return accepted, False
        settled = self._think_again(index, op, value, own) or accepted
        return settled, settled.value is not None and format_value(settled.value) != claims[-1]

    def _claimed_results(
        self, op: ProblemStep, value: StepValue, mode: InstructionKind
    ) -> list[str]:
        """Return the results of this step in the prompt's replies, except guesses.

        A verifier reads only the last one.
        """
        key = (phrase_step(op), format_value(value))
        found = [c for reply in self.prompt.replies if (c := reply.steps.get(key)) is not None]
        firm = [claim.after for claim in found if not claim.guess]
        return firm[-1:] if mode is InstructionKind.VERIFY else firm

    def _think_again(
        self, index: int, op: ProblemStep, value: StepValue, own: SimulatedStepResult
    ) -> SimulatedStepResult | None:
        """Return the result after reconsidering the step; None if the worker is unsure.

        The result of a hop stays. Other steps have no random errors here, and the worker may notice
        its misunderstanding.
        """
        if op.kind in RELATIONS:
            return own
        if self._load > MAX_LOAD_TO_RETRY:
            return None
        if not self._makes_systematic_error(index, op, LOAD_LEFT_ON_RETRY * self._load):
            return SimulatedStepResult(apply_step(op, value))
        sees = uniform_number("sees", self.profile.name, self.prompt.question, index)
        if sees < self.profile.checking:
            return SimulatedStepResult(apply_step(op, value))
        return own if sees >= 1 - STUBBORN_SHARE * (1 - self.profile.checking) else None


@lru_cache(maxsize=16)
def _things_of_kind(kind: str) -> list[str]:
    """Return every thing of that kind; none if the kind has no relations."""
    if not relations_of(kind):
        return []
    return [thing for thing, of in KINDS_OF.items() if of == kind]
