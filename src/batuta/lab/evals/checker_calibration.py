"""Calibrates a checker: measures its rates on answers with known grades."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import anyio
import numpy as np

from batuta.core import (
    AcceptedAnswer,
    CallListener,
    Decision,
    Plan,
    PlanningContext,
    Question,
    Step,
    Task,
    WorkerId,
    Workflow,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.core.solver import RunTests
from batuta.engine.solver import round_replies, run_conductor
from batuta.lab.baselines import SolverContext
from batuta.lab.baselines.checker import Checker, fit_checker
from batuta.lab.baselines.self_reflection import says_solution_is_right
from batuta.lab.evals.grading import AnswerGrader
from batuta.lab.learners.history import History
from batuta.lab.tasks.graders import grade_answer

CHECKS = 40
"""Maximum number of answers that are checked; a worker as checker takes two calls for each."""


@dataclass(frozen=True, slots=True)
class _DraftThenCheck:
    """The conductor of one check: a worker answers, and the checker reads the answer."""

    worker: WorkerId
    check: Step
    name: str = "draft and check"

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """Plan the answer, then its check; then accept."""
        if not context.previous:
            return Plan(Workflow((Step(subtask="", worker=self.worker),)))
        return Plan(Workflow((self.check,))) if len(context.previous) == 1 else AcceptedAnswer()


async def calibrate_checker(
    checker: Checker,
    tasks: Sequence[Task],
    context: SolverContext,
    grade: AnswerGrader,
    *,
    seed: int = 0,
    concurrency: int = 16,
) -> tuple[Checker | None, int]:
    """Return the checker with measured rates, and the number of checks by which they were measured.

    The checker is None if its worker is not in the pool, if there is no other worker, or if its
    verdicts are uninformative. The other workers answer in rotation, so that there are wrong
    answers too. Failed or ungraded checks are left out.
    """
    who = checker.pick_worker(context.pool)
    others = [worker.id for worker in context.pool if worker.id != who]
    if who is None or not others:
        return None, 0
    verdicts: list[tuple[bool, bool]] = []
    limiter = anyio.CapacityLimiter(concurrency)

    async def check(number: int, task: Task) -> None:
        async with limiter:
            conductor = _DraftThenCheck(others[number % len(others)], checker.check_step(who))
            run = await run_conductor(
                Question.of(task.question),
                conductor,
                context=context,
                seed=seed + number,
                max_steps=1,
                max_rounds=3,  # draft, check, and the round that accepts
            )
            draft, verdict = (next(iter(round_replies(run, r).values()), None) for r in (0, 1))
            if draft is None or verdict is None:
                return
            found = await grade_answer(grade, task, draft.text)
            if found.score is not None:
                verdicts.append((found.score >= 0.5, says_solution_is_right(verdict)))  # noqa: PLR2004

    async with anyio.create_task_group() as group:
        for number, task in enumerate(tasks[:CHECKS]):
            group.start_soon(check, number, task)
    return fit_checker(checker, verdicts), len(verdicts)


async def calibrate_tests(
    believed: Checker, history: History, run_tests: RunTests
) -> Checker | None:
    """Return a checker with the measured rates of the tests that questions show.

    No worker is called: the programs in the history's answers are executed. The result is None if
    the tests are uninformative. `believed` has the rates assumed before the measurement.
    """
    verdicts: list[tuple[bool, bool]] = []
    workers = range(len(history.workers))
    for row, question in enumerate(history.questions):
        for m in workers if history.answers is not None else ():
            answer, score = (history.answers or ())[row][m], history.scores_qm[row, m]
            if answer is None or np.isnan(score) or len(verdicts) >= CHECKS:
                continue
            passed = await run_tests(question, f"```python\n{answer}\n```")
            if passed is not None:
                verdicts.append((bool(score >= 0.5), passed))  # noqa: PLR2004
    return fit_checker(believed, verdicts)
