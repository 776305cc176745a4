"""MASRouter's collaboration modes as workflows, and the roles that agents play in them.

Yue et al., "MasRouter: Learning to Route LLMs for Multi-Agent Systems" (arXiv 2502.11133), section
4.2 and appendix. The wording is ours. A debate has one exchange of arguments; every mode is cut to
the steps that are allowed, and is a plain answer where they do not suffice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from batuta.core import Step, WorkerId, Workflow


class Mode(StrEnum):
    """How agents work together."""

    IO = "io"
    """One answers the bare question."""
    COT = "cot"
    """One answers step by step."""
    CHAIN = "chain"
    """Each reads the one before it."""
    FULL = "full"
    """Each reads all before it."""
    DEBATE = "debate"
    """All answer, then all answer again with everything before their eyes."""
    REFLECTION = "reflection"
    """The first answers; the others criticise, and it revises after each."""


MODES = tuple(Mode)
ROLES = (
    "Solve the question as a mathematician: write down what is given, then calculate.",
    "Solve the question as a programmer: as an algorithm whose every step is carried out.",
    "Solve the question as an expert of its field: recall the facts that decide it.",
    "Solve the question by a plan: write the plan first, then carry it out.",
    "Solve the question without the mistake that is easily made here: name it first.",
    "Solve the question as a critic: trust no step that you have not checked.",
)
STEPWISE = "Solve the question step by step."
RECONSIDER = "Compare the solutions, say which is right and why, and give your final answer."
CRITICISE = "Criticise the solution: say which step is wrong and why, or that it is right."
REVISE = "Revise the solution by the criticism and give the final answer."
_PAIR = 2


@dataclass(frozen=True, slots=True)
class Agent:
    """Who plays which role."""

    role: int
    """Its place in `ROLES`."""
    worker: WorkerId


def workflow(mode: Mode, agents: Sequence[Agent], most: int) -> Workflow:
    """What the agents do in that mode, in at most that many steps; at least one agent."""
    steps = _WRITTEN[mode](agents, most)
    return Workflow(tuple(steps or [Step("", agents[0].worker)]))


def _cot(agents: Sequence[Agent], _: int) -> list[Step]:
    return [Step(STEPWISE, agents[0].worker)]


def _chain(agents: Sequence[Agent], most: int) -> list[Step]:
    return [
        Step(ROLES[agent.role], agent.worker, (index - 1,) if index else ())
        for index, agent in enumerate(agents[:most])
    ]


def _full(agents: Sequence[Agent], most: int) -> list[Step]:
    return [
        Step(ROLES[agent.role], agent.worker, tuple(range(index)))
        for index, agent in enumerate(agents[:most])
    ]


def _debate(agents: Sequence[Agent], most: int) -> list[Step]:
    size = min(len(agents), most // _PAIR)
    if size < _PAIR:
        return _chain(agents, most)
    opening = [Step(ROLES[agent.role], agent.worker) for agent in agents[:size]]
    said = tuple(range(size))
    closing = [Step(RECONSIDER, agent.worker, said) for agent in agents[: size - 1]]
    last = Step(RECONSIDER, agents[size - 1].worker, tuple(range(2 * size - 1)))
    return [*opening, *closing, last]


def _reflection(agents: Sequence[Agent], most: int) -> list[Step]:
    first, *others = agents
    critics = (others or [first])[: (most - 1) // _PAIR]
    steps = [Step(ROLES[first.role], first.worker)]
    for critic in critics:
        solution = len(steps) - 1
        steps.append(Step(CRITICISE, critic.worker, (solution,)))
        steps.append(Step(REVISE, first.worker, (solution, solution + 1)))
    return steps


_WRITTEN: dict[Mode, Callable[[Sequence[Agent], int], list[Step]]] = {
    Mode.IO: lambda _, __: [],
    Mode.COT: _cot,
    Mode.CHAIN: _chain,
    Mode.FULL: _full,
    Mode.DEBATE: _debate,
    Mode.REFLECTION: _reflection,
}
