"""Self-reflection: one worker drafts, criticises and revises its own solution.

The method is algorithm 1 of Madaan et al., "Self-Refine: Iterative Refinement with Self-Feedback"
(arXiv 2303.17651), in the form of the Conductor paper's baseline (arXiv 2512.04388): at most five
turns of the same worker at temperature 0.7, if the question sets none, which end as soon as the
feedback finds nothing wrong.

Deviations:
- A turn is a call: draft, feedback, revision, feedback, revision. A revision sees only the last
  solution and its feedback, not the whole history.
- The prompts are zero-shot. The feedback prompt asks for a verdict in words first. If the verdict
  cannot be read, the solution is revised.
- The engine's prompt asks the last step of every round, even the feedback, for the final answer;
  the answer returned is still the last draft or revision, never the feedback.
- No tests are executed; Reflexion (arXiv 2303.11366) executes tests for code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from batuta.core import (
    AcceptedAnswer,
    CallListener,
    Decision,
    Plan,
    PlanningContext,
    Question,
    Reply,
    Run,
    Step,
    WorkerId,
    Workflow,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.engine.solver import SolverContext, round_replies, run_conductor, with_final_reply

FEEDBACK = (
    "Check the solution step by step. Say first whether it is right or wrong; if it is wrong, say "
    "which step is wrong and why."
)
REVISE = "Improve the solution where the feedback found it wrong, and give the final answer."
_SAYS_RIGHT = re.compile(
    r"^\W*(?:(?:my |the )?verdict\W+(?:is\W+)?)?(?:yes\W+)?"
    r"(?:(?:(?:the|this|that|your) (?:solution|answer|draft)(?: above)?|it) is )?"
    r"(?:entirely |completely |fully )?(?:right|correct)\b"
    r"(?=[*_ ]*(?:$|[\n.,;:!)–—-]|because\b|since\b|as\b|and\b))",
    re.IGNORECASE,
)
"""Matches the verdict "correct" at the beginning of the feedback, but not "Correct step 2"."""


@dataclass(frozen=True, slots=True)
class _ReflectionConductor:
    """Plans the best worker's turns, two a round, until none is left or no mistake is found."""

    name: str
    turns: int

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """Plan a solution and its feedback, or only a solution if one turn remains.

        Accept the answer if no turn remains, the last feedback found nothing wrong, or a call of
        the last round failed.
        """
        left = self.turns - sum(len(round_.steps) for round_ in context.previous)
        if not left or (context.previous and _is_finished(context)):
            return AcceptedAnswer()
        return Plan(
            _turn_workflow(context.pool.ranked()[0].id, left, revise=bool(context.previous))
        )


def _turn_workflow(worker: WorkerId, left: int, *, revise: bool) -> Workflow:
    solution = (
        Step(subtask=REVISE, worker=worker, previous=True)
        if revise
        else Step(subtask="", worker=worker)
    )
    feedback = Step(subtask=FEEDBACK, worker=worker, access=(0,))
    return Workflow((solution, feedback) if left > 1 else (solution,))


def _is_finished(context: PlanningContext) -> bool:
    """Return whether the last feedback finds nothing wrong, or a call of the last round failed."""
    solution, feedback = (context.previous[-1].step(index) for index in (0, 1))
    if not (solution and isinstance(solution.result, Reply)):
        return True
    return (
        not feedback
        or not isinstance(feedback.result, Reply)
        or says_solution_is_right(feedback.result)
    )


def says_solution_is_right(feedback: Reply) -> bool:
    """Return whether the feedback begins with the verdict that the solution is correct."""
    return _SAYS_RIGHT.match(feedback.text) is not None


@dataclass(frozen=True, slots=True)
class SelfReflection:
    """Lets the pool's best worker criticise and revise its own solution."""

    calls: int = 5
    """Maximum number of turns, each of one call."""

    @property
    def name(self) -> str:
        """The method and its maximum number of turns."""
        return f"self-reflection/{self.calls}"

    async def answer(self, question: Question, context: SolverContext, seed: int) -> Run:
        """Run the turns; the answer is the last draft or revision."""
        who = context.pool.ranked()[0].id
        alone = context.restrict_to(who).with_sampling(who)
        rounds = self.calls // 2 + 1
        conductor = _ReflectionConductor(self.name, self.calls)
        run = await run_conductor(question, conductor, alone, seed, max_steps=2, max_rounds=rounds)
        solutions = [round_replies(run, number).get(0) for number in range(len(run.rounds))]
        return with_final_reply(run, next((s for s in reversed(solutions) if s), None))
