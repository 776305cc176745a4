"""Self-reflection: one worker drafts, criticises its draft, revises it, and so on.

Madaan et al., "Self-Refine: Iterative Refinement with Self-Feedback" (arXiv 2303.17651), algorithm
1, in the form of the Conductor paper's baseline (arXiv 2512.04388): at most five turns of the same
worker at temperature 0.7, ended as soon as the feedback finds nothing wrong.

Deviations
- A turn is a call: draft, feedback, revision, feedback, revision. A revision sees the solution
  before it and its feedback, not the whole history.
- The prompts are zero-shot. Each feedback opens with a verdict in words; where none can be read,
  the revision goes on.
- The engine reminds the last step of every round that its reply is the final answer, the feedback
  too; the answer that is returned is nevertheless the last draft or revision, never the feedback.
- No tests are run; for code that would be Reflexion (arXiv 2303.11366).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from batuta.baselines.solver import Players, play, said, settled_on
from batuta.core import (
    Accepted,
    Brief,
    Decision,
    Listener,
    Plan,
    Question,
    Reply,
    Run,
    Step,
    WorkerId,
    Workflow,
)
from batuta.core.conductor import SILENT

FEEDBACK = (
    "Check the solution step by step. Say first whether it is right or wrong; if it is wrong, say "
    "which step is wrong and why."
)
REVISE = "Improve the solution where the feedback found it wrong, and give the final answer."
_RIGHT = re.compile(
    r"^\W*(?:(?:my |the )?verdict\W+(?:is\W+)?)?(?:yes\W+)?"
    r"(?:(?:(?:the|this|that|your) (?:solution|answer|draft)(?: above)?|it) is )?"
    r"(?:entirely |completely |fully )?(?:right|correct)\b"
    r"(?=[*_ ]*(?:$|[\n.,;:!)–—-]|because\b|since\b|as\b|and\b))",
    re.IGNORECASE,
)
"""A verdict that opens the feedback and says right; "Correct step 2" is none."""


@dataclass(frozen=True, slots=True)
class _Reflecting:
    """Writes the turns of the pool's best worker, two a round, until the feedback is content."""

    name: str
    turns: int

    async def plan(self, brief: Brief, listener: Listener = SILENT) -> Decision:
        """A solution and its feedback; the last turn is a solution alone."""
        left = self.turns - sum(len(played.steps) for played in brief.previous)
        if not left or (brief.previous and _content(brief)):
            return Accepted()
        return Plan(_turns(brief.pool.ranked()[0].id, left, revise=bool(brief.previous)))


def _turns(worker: WorkerId, left: int, *, revise: bool) -> Workflow:
    solution = Step(REVISE, worker, previous=True) if revise else Step("", worker)
    more_than_one = left > 1
    return Workflow((solution, Step(FEEDBACK, worker, (0,))) if more_than_one else (solution,))


def _content(brief: Brief) -> bool:
    """Whether nothing is left to revise: the feedback says so, or a call failed."""
    solution, feedback = (brief.previous[-1].step(index) for index in (0, 1))
    if not (solution and isinstance(solution.result, Reply)):
        return True
    return not feedback or not isinstance(feedback.result, Reply) or finds_right(feedback.result)


def finds_right(feedback: Reply) -> bool:
    """Whether the feedback opens by saying that the solution is right."""
    return _RIGHT.match(feedback.text) is not None


@dataclass(frozen=True, slots=True)
class SelfReflection:
    """The pool's best worker, and itself again."""

    calls: int = 5
    """Turns at most."""

    @property
    def name(self) -> str:
        """The method and its turns."""
        return f"self-reflection/{self.calls}"

    async def answer(self, question: Question, players: Players, seed: int) -> Run:
        """One turn after another; the last solution."""
        who = players.pool.ranked()[0].id
        alone = players.only(who).sampling(who)
        rounds = self.calls // 2 + 1
        conductor = _Reflecting(self.name, self.calls)
        run = await play(question, conductor, alone, seed, steps=2, rounds=rounds)
        solutions = [said(run, number).get(0) for number in range(len(run.rounds))]
        return settled_on(run, next((s for s in reversed(solutions) if s), None))
