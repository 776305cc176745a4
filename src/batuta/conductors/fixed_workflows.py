"""Hand-written workflows that do not depend on the question.

The engine runs up to `Limits.rounds` rounds and asks the conductor again before each further one
(Conductor paper, section 3.3). An `LLMConductor` then judges its own answer; `RecursiveConductor`
lets another conductor judge it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from batuta.core import (
    MAX_STEPS,
    AcceptedAnswer,
    CallListener,
    Conductor,
    Decision,
    MalformedPlan,
    Plan,
    PlanningContext,
    Pool,
    Reply,
    Round,
    Step,
    WorkerId,
    Workflow,
)
from batuta.core.conductor import NULL_LISTENER, needed_rounds
from batuta.core.workflow import Draft
from batuta.errors import ConfigError
from batuta.language import parse_workflow
from batuta.language.answer_extraction import final_answer

ROUNDS = 3
"""Maximum number of rounds of a continued workflow: both workflows, and one to accept the answer.
"""
_COMPARED_ANSWERS = 2
"""Number of a round's last answers that are compared."""

SOLVE = "Solve the task step by step and give the answer."
PLAN = "Plan how to solve the task: list the steps, do not carry them out."
FOLLOW_PLAN = "Solve the task by following the plan."
VERIFY = "Check the solution step by step, correct what is wrong, and give the final answer."
COMPARE = (
    "Compare the answers. Write one JSON object with three lists of short sentences: `agreements`, "
    "`contradictions` (say which answer is right, and why) and `gaps` that no answer fills."
)
FUSE = (
    "Write the best answer to the task from the answers and from what was found in comparing them."
)
CRITICISE = (
    "Criticise the answer: list what is wrong, unsupported or missing in it, the worst first. "
    "Do not write another answer."
)
REVISE = "Write the final answer: correct what the criticism is right about, and keep the rest."
DECIDE = "Compare the solutions and give the answer that most of them support."


@dataclass(frozen=True, slots=True)
class FixedConductor:
    """A conductor that plans the workflow that `build_workflow` returns for the pool."""

    name: str
    build_workflow: Callable[[Pool], Workflow]

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """Plan the workflow; accept the answer in a later round.

        If `build_workflow` raises a KeyError, the plan is malformed.
        """
        if context.previous:
            return AcceptedAnswer()
        try:
            return Plan(self.build_workflow(context.pool))
        except KeyError as error:
            missing = " ".join(map(str, error.args))
            return MalformedPlan(draft=Draft(), reason=f"the pool has no worker {missing}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuedWorkflow:
    """A conductor that plans a workflow, then its continuation unless the last two steps agree.

    If `Limits.rounds` is 1, the first workflow's answer is final.
    """

    name: str
    first: Workflow
    continuation: Workflow | None
    """The workflow that continues; None: the first workflow's answer is always accepted."""

    @property
    def needed_rounds(self) -> int:
        """Maximum number of rounds until the answer is accepted."""
        return 1 if self.continuation is None else ROUNDS

    @property
    def workflows(self) -> tuple[Workflow, ...]:
        """The workflows that may be run."""
        return (self.first,) if self.continuation is None else (self.first, self.continuation)

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """Plan the first workflow, then the continuation, or accept the answer."""
        return (
            continue_round(context.previous, self.continuation)
            if context.previous
            else Plan(self.first)
        )


def continue_round(rounds: Sequence[Round], continuation: Workflow | None) -> Decision:
    """Plan the continuation once, unless the last two steps agree; else accept the answer."""
    if continuation is None or len(rounds) > 1 or answers_agree(rounds[-1]):
        return AcceptedAnswer()
    return Plan(continuation)


def answers_agree(round_: Round) -> bool:
    """Return True if the round's last two steps give the same answer.

    Case, white space, and formatting marks around the answers are ignored.
    """
    ended = sorted(round_.steps, key=lambda step: step.index)[-_COMPARED_ANSWERS:]
    answers = [final_answer(s.result.text) for s in ended if isinstance(s.result, Reply)]
    normalised = {
        " ".join(text.split()).strip(" \t*_`\"'$.").casefold() for text in answers if text
    }
    complete = len(answers) == len(ended) == _COMPARED_ANSWERS and None not in answers
    return complete and len(normalised) == 1


def _known_worker_id(worker_id: str, pool: Pool) -> WorkerId:
    return pool[worker_id].id


def single_worker(worker_id: str) -> FixedConductor:
    """Return a conductor that asks that worker the unchanged question."""

    def write(pool: Pool) -> Workflow:
        return Workflow((Step(subtask="", worker=_known_worker_id(worker_id, pool)),))

    return FixedConductor(f"single/{worker_id}", write)


def best_single_worker() -> FixedConductor:
    """Return a conductor that asks the pool's best worker the unchanged question."""
    return FixedConductor(
        "best", lambda pool: Workflow((Step(subtask="", worker=pool.ranked()[0].id),))
    )


def sequential_chain(subtasks: Sequence[str], worker_ids: Sequence[str] = ()) -> FixedConductor:
    """Return a conductor that plans a chain of subtasks, each of which reads all earlier steps.

    `worker_ids` has one worker for each subtask; if it is empty, the pool's best worker does all.
    """

    def write(pool: Pool) -> Workflow:
        workers = list(worker_ids) or [pool.ranked()[0].id] * len(subtasks)
        steps = zip(subtasks, workers, strict=True)
        return Workflow(
            tuple(
                Step(subtask=s, worker=_known_worker_id(w, pool), access=tuple(range(i)))
                for i, (s, w) in enumerate(steps)
            )
        )

    return FixedConductor("chain", write)


def worker_chain(worker_ids: Sequence[str]) -> FixedConductor:
    """Return a conductor that plans a chain of workers, at least one.

    The first worker gets the question, and each later worker checks the answer. A later worker that
    runs code runs the program of an earlier one.
    """
    chain = tuple(worker_ids)

    def write(pool: Pool) -> Workflow:
        first, *later = (_known_worker_id(worker, pool) for worker in chain)
        checks = (
            Step(subtask=VERIFY, worker=worker, access=tuple(range(index)))
            for index, worker in enumerate(later, 1)
        )
        return Workflow((Step(subtask="", worker=first), *checks))

    return FixedConductor(f"chain/{'>'.join(chain)}", write)


_PANEL = 3
"""Maximum number of workers in a panel."""


def plan_solve_verify() -> FixedConductor:
    """Return a conductor that has the best worker plan, follow the plan, and verify the answer."""
    chain = sequential_chain((PLAN, FOLLOW_PLAN, VERIFY))
    return FixedConductor("plan-solve-verify", chain.build_workflow)


def panel_fusion() -> FixedConductor:
    """Return a conductor that plans a panel: the best workers answer in parallel.

    The best worker then compares their answers, and writes the final one. The panel has at most
    three workers.
    """

    def write(pool: Pool) -> Workflow:
        ranked = [worker.id for worker in pool.ranked()]
        answers = tuple(Step(subtask="", worker=worker) for worker in ranked[:_PANEL])
        seen = tuple(range(len(answers)))
        judge = Step(subtask=COMPARE, worker=ranked[0], access=seen)
        writer = Step(subtask=FUSE, worker=ranked[0], access=(*seen, len(seen)))
        return Workflow((*answers, judge, writer))

    return FixedConductor("fusion", write)


def revised_by_critique() -> FixedConductor:
    """Return a conductor that plans an answer, its critique and its revision.

    The best worker answers and revises. The second best criticises, or the best if it is alone.
    """

    def write(pool: Pool) -> Workflow:
        author, *others = (worker.id for worker in pool.ranked())
        return Workflow(
            (
                Step(subtask="", worker=author),
                Step(subtask=CRITICISE, worker=others[0] if others else author, access=(0,)),
                Step(subtask=REVISE, worker=author, access=(0, 1)),
            )
        )

    return FixedConductor("critique", write)


def named_workflow(name: str, workflow: Workflow) -> FixedConductor:
    """Return a conductor that plans that workflow, for pools that have its workers."""

    def write(pool: Pool) -> Workflow:
        for step in workflow.steps:
            _known_worker_id(step.worker, pool)
        return workflow

    return FixedConductor(name, write)


def parallel_vote(voters: int = 3) -> FixedConductor:
    """Return a conductor that plans a vote: independent solutions, then the best worker decides.

    If there are fewer workers than voters, some vote more than once.

    Raises:
        ValueError: fewer than one voter.
    """
    if voters < 1:
        raise ValueError(f"a vote needs at least one voter, not {voters}")

    def write(pool: Pool) -> Workflow:
        ranked = [worker.id for worker in pool.ranked()]
        votes = [Step(subtask=SOLVE, worker=ranked[i % len(ranked)]) for i in range(voters)]
        return Workflow(
            (*votes, Step(subtask=DECIDE, worker=ranked[0], access=tuple(range(voters))))
        )

    return FixedConductor(f"vote@{voters}", write)


MAX_FILE_CHARACTERS = 100_000
"""Maximum number of characters of a workflow file."""


def read_workflow_conductor(path: Path, pool: Pool, max_steps: int = MAX_STEPS) -> FixedConductor:
    """Return a conductor that plans the workflow in that file for every question.

    The conductor's name ends with a digest of the workflow, so that results of an earlier version
    of the file are kept apart.

    Raises:
        ConfigError: the file cannot be read or is too long.
        WorkflowError: the file does not contain a valid workflow for that pool.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"{path} cannot be read: {reason}") from None
    if len(text) > MAX_FILE_CHARACTERS:
        raise ConfigError(f"{path} is longer than {MAX_FILE_CHARACTERS} characters")
    flow = parse_workflow(text, pool, max_steps=max_steps)
    assert not isinstance(flow, AcceptedAnswer)  # noqa: S101 - only a later round may be empty
    digest = blake2b(repr(flow).encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return named_workflow(f"workflow/{path.stem}@{digest}", flow)


@dataclass(frozen=True, slots=True)
class RecursiveConductor:
    """A conductor of two: `first` plans the first round, `corrector` all later rounds.

    The corrector accepts the answer or plans a correction.
    """

    first: Conductor
    corrector: Conductor

    @property
    def name(self) -> str:
        """The names of both conductors."""
        return f"{self.first.name}+{self.corrector.name}"

    @property
    def needed_rounds(self) -> int:
        """Number of rounds: 2, or more if either conductor needs more."""
        return max(2, needed_rounds(self.first), needed_rounds(self.corrector))

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """Ask the conductor of this round."""
        conductor = self.corrector if context.previous else self.first
        return await conductor.plan(context, listener)
