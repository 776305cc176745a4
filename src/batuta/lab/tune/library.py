"""The library of workflows, and each workflow's neighbours, which differ by a small change. Pure.

A candidate gives each step's role, worker and wording; access lists follow from the roles.
Preparations (plans, look-ups) come first, and solvers read them. Several solvers need a step that
decides among their answers, unless the third solver only breaks a tie. Checks come last, and each
check reads all steps before it. A solver without preparations is usually asked only the question,
so that a longer workflow shares the calls of a shorter workflow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from hashlib import blake2b
from itertools import combinations
from typing import Self

from batuta.conductors.fixed_workflows import DECIDE, PLAN, VERIFY
from batuta.core import MAX_STEPS, Step, WorkerId, Workflow

SOLVERS = 3
"""Maximum number of workers that solve independently in one workflow."""
PREPARATIONS = 2
"""Maximum number of preparations in one workflow."""
CHECKS = 2
"""Maximum number of checks in one workflow."""
_COMPARED = 2
"""The number of answers that are compared before further steps run."""


class StepRole(StrEnum):
    """The purpose of a step, in the order of the roles in a workflow."""

    PLAN = "plan"
    LOOK_UP = "look up"
    SOLVE = "solve"
    DECIDE = "decide"
    CHECK = "check"


WORDINGS: dict[StepRole, tuple[str, ...]] = {
    StepRole.PLAN: (
        PLAN,
        "Outline the solution: name every step and what could go wrong in it. Do not solve it.",
    ),
    StepRole.LOOK_UP: (
        "Look up the facts that the task needs and state what you know. Do not solve the task.",
    ),
    StepRole.SOLVE: (
        "Use what stands above to solve the task step by step, and give the final answer.",
    ),
    StepRole.DECIDE: (
        DECIDE,
        "Compare the solutions, find the mistake where they differ, and give the final answer.",
    ),
    StepRole.CHECK: (VERIFY, "Verify the solution step by step, and give the final answer."),
}
"""The wordings of each role's subtask; the search tries the first wording first."""
WRITE_PROGRAM = (
    "Write a Python program, in one code block, that solves the task and prints the final answer "
    "alone. Do not solve the task yourself."
)
"""The subtask of a worker that writes a program, which another worker runs."""
_ORDER = {role: index for index, role in enumerate(StepRole)}
_MARK = "'"
PREPARING_ROLES = (StepRole.PLAN, StepRole.LOOK_UP)
"""The roles of steps that prepare an answer and give none."""


@dataclass(frozen=True, slots=True, order=True)
class CandidateStep:
    """One step of a candidate."""

    role: StepRole
    worker: WorkerId
    wording: int = 0
    """The index of the subtask in the role's `WORDINGS`."""
    _: KW_ONLY
    text: str = ""
    """A subtask that replaces the wording; empty if the wording is used."""


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """A workflow of the library.

    Raises:
        ValueError: the library has no such workflow.
    """

    steps: tuple[CandidateStep, ...]
    stops: bool = False
    """Whether the first two answers are compared. If they agree, the answer is final and the later
    steps do not run."""
    _hash: int = field(init=False, repr=False, compare=False)
    """The hash, cached because a search looks up candidates millions of times. It differs between
    processes."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.steps, self.stops)))
        known = is_candidate(self.steps) and (not self.stops or can_stop(self.steps))
        if not (known or (self.stops and is_tie_break(self.steps))):
            raise ValueError(f"no workflow of the library has the steps {self.steps}")

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[Candidate], tuple[tuple[CandidateStep, ...], bool]]:
        return Candidate, (self.steps, self.stops)

    @classmethod
    def single(cls, worker: WorkerId) -> Self:
        """Return the candidate in which one worker answers alone."""
        return cls((CandidateStep(StepRole.SOLVE, worker),))

    def __len__(self) -> int:
        return len(self.steps)

    def __str__(self) -> str:
        """Return the candidate as `plan piano > solve cello > check viola`, or a worker alone.

        A step with the second wording is written `check' viola`, a step with a rewritten subtask
        `check*1f2e viola`. Steps that run only if the first two answers differ come after `|`.
        """
        if len(self) == 1 and not self.steps[0].text:
            return self.steps[0].worker
        names = [f"{_name_role(step)} {step.worker}" for step in self.steps]
        first = self.first_round
        parts = (names[:first], names[first:]) if self.stops else (names,)
        return " | ".join(" > ".join(part) for part in parts)

    @property
    def first_round(self) -> int:
        """The number of steps before the workflow may stop, or of all steps if it never does."""
        preparations = sum(step.role in PREPARING_ROLES for step in self.steps)
        return preparations + _COMPARED if self.stops else len(self.steps)

    def without_look(self) -> Candidate:
        """Return the workflow as one round, which never stops early.

        A tie-break gets a last step that decides among the three answers.
        """
        if not (self.stops and is_tie_break(self.steps)):
            return Candidate(self.steps)
        decides = CandidateStep(StepRole.DECIDE, self.steps[-1].worker)
        return Candidate((*self.steps, decides))

    def of_role(self, role: StepRole) -> tuple[CandidateStep, ...]:
        """Return the steps of that role."""
        return tuple(step for step in self.steps if step.role is role)


def _name_role(step: CandidateStep) -> str:
    if not step.text:
        return f"{step.role}{_MARK * step.wording}"
    digest = blake2b(step.text.encode("utf-8", "replace"), digest_size=2).hexdigest()
    return f"{step.role}*{digest}"


def subtask_of(candidate: Candidate, index: int) -> str:
    """Return the subtask of the step at that index; empty if the step gets only the question."""
    step = candidate.steps[index]
    preparations = any(other.role in PREPARING_ROLES for other in candidate.steps)
    if step.text or (step.role is StepRole.SOLVE and not preparations):
        return step.text
    return WORDINGS[step.role][step.wording]


def is_candidate(steps: Sequence[CandidateStep]) -> bool:
    """Return whether the library has a workflow that always runs all these steps."""
    ranks = [_ORDER[step.role] for step in steps]
    count = [ranks.count(rank) for rank in range(len(_ORDER))]
    preparations = count[0] + count[1]
    decides = count[3] == (1 if count[2] > 1 else 0)
    helping = [(step.role, step.worker) for step in steps if step.role is not StepRole.SOLVE]
    distinct = len(set(helping)) == len(helping)
    few = preparations <= PREPARATIONS and 1 <= count[2] <= SOLVERS and count[4] <= CHECKS
    return ranks == sorted(ranks) and decides and distinct and few and len(steps) <= MAX_STEPS


def is_tie_break(steps: Sequence[CandidateStep]) -> bool:
    """Return whether two workers solve independently, and a third if their answers differ."""
    alone = all(step.role is StepRole.SOLVE for step in steps)
    return alone and len(steps) == len({step.worker for step in steps}) == _COMPARED + 1


def can_stop(steps: Sequence[CandidateStep]) -> bool:
    """Return whether further steps follow two answers whose agreement is informative.

    Two solvers that read one plan make the same errors, and so does one worker that is asked twice,
    so that the agreement of such answers is not informative.
    """
    preparations = sum(step.role in PREPARING_ROLES for step in steps)
    compared = steps[preparations : preparations + _COMPARED]
    both_solve = all(step.role is StepRole.SOLVE for step in compared)
    one_worker = len({step.worker for step in compared}) < _COMPARED
    goes_on = len(steps) > preparations + _COMPARED
    return goes_on and not (both_solve and (preparations or one_worker))


def parts_of(candidate: Candidate) -> Iterator[tuple[Candidate, int]]:
    """Yield the shorter workflows within a candidate, each with the index of its last step.

    They end with each solver, with the decision, or with a check, but not with the last step, and
    lie in the first round. Their prompts differ by at most one sentence from those of the shorter
    workflow run alone.
    """
    steps = candidate.steps
    preparations = tuple(step for step in steps if step.role in PREPARING_ROLES)
    for index, step in enumerate(steps[: min(candidate.first_round, len(steps) - 1)]):
        if step.role in PREPARING_ROLES:
            continue
        alone = step.role is StepRole.SOLVE
        part = (*preparations, step) if alone else steps[: index + 1]
        yield Candidate(part), index


def write_workflow(candidate: Candidate) -> Workflow:
    """Return the candidate's workflow, or its first round if it may stop after two answers."""
    steps: list[Step] = []
    preparations = sum(step.role in PREPARING_ROLES for step in candidate.steps)
    solved = preparations + len(candidate.of_role(StepRole.SOLVE))
    for index, step in enumerate(candidate.steps[: candidate.first_round]):
        subtask = subtask_of(candidate, index)
        if step.role in PREPARING_ROLES:
            access: tuple[int, ...] = ()
        elif step.role is StepRole.SOLVE:
            access = tuple(range(preparations))
        elif step.role is StepRole.DECIDE:
            access = tuple(range(preparations, solved))
        else:
            access = tuple(range(index))
        steps.append(Step(subtask=subtask, worker=step.worker, access=access))
    return Workflow(tuple(steps))


def write_continuation(candidate: Candidate) -> Workflow | None:
    """Return the workflow to run if the first two answers differ; None without a comparison."""
    steps: list[Step] = []
    for index, step in enumerate(candidate.steps[candidate.first_round :]):
        if step.role is StepRole.SOLVE:
            steps.append(Step(subtask=step.text, worker=step.worker))
        else:
            steps.append(
                Step(
                    subtask=step.text or WORDINGS[step.role][step.wording],
                    worker=step.worker,
                    access=tuple(range(index)),
                    previous=True,
                )
            )
    return Workflow(tuple(steps)) if steps else None


def program_pairs(
    writers: Sequence[WorkerId], programs: Sequence[WorkerId], *, asked: bool
) -> Iterator[Candidate]:
    """Yield each pair of a worker that writes a program and a worker that runs the program.

    If `asked`, the writer gets only the question, else the instruction to write a program.
    """
    instruction = "" if asked else WRITE_PROGRAM
    roles = (StepRole.SOLVE, StepRole.CHECK) if asked else (StepRole.PLAN, StepRole.SOLVE)
    for program in programs:
        for writer in writers:
            first = CandidateStep(roles[0], writer, text=instruction)
            yield Candidate((first, CandidateStep(roles[1], program)))


def neighbouring_candidates(
    candidate: Candidate, workers: Sequence[WorkerId]
) -> Iterator[Candidate]:
    """Yield every workflow of the library that differs from the candidate by a small change."""
    found = {candidate}
    for steps in (candidate.steps, *_step_edits(candidate.steps, workers)):
        ordered = tuple(sorted(steps, key=lambda step: _ORDER[step.role]))
        for stops in _ways_to_run(ordered):
            if (edited := Candidate(ordered, stops)) not in found:
                found.add(edited)
                yield edited


def _ways_to_run(steps: tuple[CandidateStep, ...]) -> tuple[bool, ...]:
    """Return the valid values of `stops` for these steps."""
    if is_tie_break(steps):
        return (True,)
    if not is_candidate(steps):
        return ()
    return (False, True) if can_stop(steps) else (False,)


def _step_edits(
    steps: tuple[CandidateStep, ...], workers: Sequence[WorkerId]
) -> Iterator[tuple[CandidateStep, ...]]:
    yield from _replace_one_step(steps, workers)
    yield from _remove_one_step(steps)
    yield from _break_ties(steps, workers)
    for worker in workers:
        for role in (StepRole.CHECK, *PREPARING_ROLES):
            yield (*steps, CandidateStep(role, worker))
        yield from _add_solver(steps, worker, workers)


def _replace_one_step(
    steps: tuple[CandidateStep, ...], workers: Sequence[WorkerId]
) -> Iterator[tuple[CandidateStep, ...]]:
    for index, step in enumerate(steps):
        rest = steps[:index], steps[index + 1 :]
        for worker in workers:
            other = CandidateStep(step.role, worker, step.wording, text=step.text)
            yield (*rest[0], other, *rest[1])
        for wording in range(len(WORDINGS[step.role])):
            yield (*rest[0], CandidateStep(step.role, step.worker, wording), *rest[1])


def _remove_one_step(steps: tuple[CandidateStep, ...]) -> Iterator[tuple[CandidateStep, ...]]:
    """Yield the steps without one step, each time also without the decision."""
    for index in range(len(steps)):
        left = (*steps[:index], *steps[index + 1 :])
        yield left
        yield tuple(step for step in left if step.role is not StepRole.DECIDE)


def _break_ties(
    steps: tuple[CandidateStep, ...], workers: Sequence[WorkerId]
) -> Iterator[tuple[CandidateStep, ...]]:
    """Yield, for a single worker, the tie-breaks in which it comes last.

    A tie-break is yielded with each of its other two workers last.
    """
    if is_tie_break(steps):
        yield (*steps[1:], steps[0])
        yield (steps[0], steps[2], steps[1])
    if len(steps) == 1:
        for one, other in combinations(workers, _COMPARED):
            before = (CandidateStep(StepRole.SOLVE, who) for who in (one, other))
            yield (*before, *steps)


def _add_solver(
    steps: tuple[CandidateStep, ...], worker: WorkerId, workers: Sequence[WorkerId]
) -> Iterator[tuple[CandidateStep, ...]]:
    """Yield the steps with a further solver and, if they have none, a decision.

    With a new decision, the steps are also yielded without their checks.
    """
    if any(step.role is StepRole.DECIDE for step in steps):
        yield (*steps, CandidateStep(StepRole.SOLVE, worker))
        return
    for other in workers:
        both = (CandidateStep(StepRole.SOLVE, worker), CandidateStep(StepRole.DECIDE, other))
        yield (*steps, *both)
        yield (*(step for step in steps if step.role is not StepRole.CHECK), *both)
