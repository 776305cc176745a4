"""MASRouter's collaboration modes as workflows, and the roles of the agents.

Yue et al., "MasRouter: Learning to Route LLMs for Multi-Agent Systems" (arXiv 2502.11133), section
4.2 and appendix. The wording is ours. A debate has one exchange of arguments; every mode is cut to
the allowed steps, and becomes a plain answer if they do not suffice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from batuta.core import Step, WorkerId, Workflow


class CollaborationMode(StrEnum):
    """The way in which agents work together."""

    IO = "io"
    """One agent answers the bare question."""
    COT = "cot"
    """One agent answers step by step."""
    CHAIN = "chain"
    """Each agent reads the one before it."""
    FULL = "full"
    """Each agent reads all before it."""
    DEBATE = "debate"
    """All agents answer, then all answer again after reading everything so far."""
    REFLECTION = "reflection"
    """The first agent answers; the others criticise, and it revises after each."""


MODES = tuple(CollaborationMode)
ROLES = (
    "Solve the question as a mathematician: write down what is given, then calculate.",
    "Solve the question as a programmer: as an algorithm whose every step is carried out.",
    "Solve the question as an expert of its field: recall the facts that decide it.",
    "Solve the question by a plan: write the plan first, then carry it out.",
    "Solve the question without the mistake that is easily made here: name it first.",
    "Solve the question as a critic: trust no step that you have not checked.",
)
SOLVE_STEPWISE = "Solve the question step by step."
RECONSIDER = "Compare the solutions, say which is right and why, and give your final answer."
CRITICIZE = "Criticise the solution: say which step is wrong and why, or that it is right."
REVISE = "Revise the solution by the criticism and give the final answer."
_PAIR = 2


@dataclass(frozen=True, slots=True)
class RoleAgent:
    """A worker in a role."""

    role: int
    """The index of the role in `ROLES`."""
    worker: WorkerId


def build_mode_workflow(
    mode: CollaborationMode, agents: Sequence[RoleAgent], max_steps: int
) -> Workflow:
    """Return the workflow of at least one agent in that mode, with at most `max_steps` steps."""
    steps = _STEP_BUILDERS[mode](agents, max_steps)
    return Workflow(tuple(steps or [Step(subtask="", worker=agents[0].worker)]))


def _cot_steps(agents: Sequence[RoleAgent], _: int) -> list[Step]:
    return [Step(subtask=SOLVE_STEPWISE, worker=agents[0].worker)]


def _chain_steps(agents: Sequence[RoleAgent], max_steps: int) -> list[Step]:
    return [
        Step(subtask=ROLES[agent.role], worker=agent.worker, access=(index - 1,) if index else ())
        for index, agent in enumerate(agents[:max_steps])
    ]


def _full_steps(agents: Sequence[RoleAgent], max_steps: int) -> list[Step]:
    return [
        Step(subtask=ROLES[agent.role], worker=agent.worker, access=tuple(range(index)))
        for index, agent in enumerate(agents[:max_steps])
    ]


def _debate_steps(agents: Sequence[RoleAgent], max_steps: int) -> list[Step]:
    size = min(len(agents), max_steps // _PAIR)
    if size < _PAIR:
        return _chain_steps(agents, max_steps)
    opening = [Step(subtask=ROLES[agent.role], worker=agent.worker) for agent in agents[:size]]
    openings = tuple(range(size))
    closing = [
        Step(subtask=RECONSIDER, worker=agent.worker, access=openings)
        for agent in agents[: size - 1]
    ]
    last = Step(
        subtask=RECONSIDER, worker=agents[size - 1].worker, access=tuple(range(2 * size - 1))
    )
    return [*opening, *closing, last]


def _reflection_steps(agents: Sequence[RoleAgent], max_steps: int) -> list[Step]:
    first, *others = agents
    critics = (others or [first])[: (max_steps - 1) // _PAIR]
    steps = [Step(subtask=ROLES[first.role], worker=first.worker)]
    for critic in critics:
        solution = len(steps) - 1
        steps.append(Step(subtask=CRITICIZE, worker=critic.worker, access=(solution,)))
        steps.append(Step(subtask=REVISE, worker=first.worker, access=(solution, solution + 1)))
    return steps


_STEP_BUILDERS: dict[CollaborationMode, Callable[[Sequence[RoleAgent], int], list[Step]]] = {
    CollaborationMode.IO: lambda _, __: [],
    CollaborationMode.COT: _cot_steps,
    CollaborationMode.CHAIN: _chain_steps,
    CollaborationMode.FULL: _full_steps,
    CollaborationMode.DEBATE: _debate_steps,
    CollaborationMode.REFLECTION: _reflection_steps,
}
