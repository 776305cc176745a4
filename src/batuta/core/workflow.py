"""A workflow: who does what, and who may read whose answer."""

from __future__ import annotations

from dataclasses import dataclass

from batuta.core.worker import WorkerId

MAX_STEPS = 5
"""Steps a workflow may have (Conductor paper, section 3)."""
MAX_ROUNDS = 3
"""Workflows that may be run for one question, each of which reads the answer before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call of one worker."""

    subtask: str
    """The instruction; if it is empty and nothing is read, the worker gets the question itself,
    unwrapped."""
    worker: WorkerId
    access: tuple[int, ...] = ()
    """Earlier steps whose subtask and reply it reads, ascending."""
    previous: bool = False
    """True in a corrective round if the step reads every step before it and the previous round
    ("all")."""
    continues: bool = False
    """True in a corrective round if its worker goes on from its own reply of the round before: it
    is told the subtask behind that reply, so that its provider's cache holds all before it."""


@dataclass(frozen=True, slots=True)
class Workflow:
    """A workflow has at least one step; a step reads earlier steps only; the last one answers."""

    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        if not self.steps:
            raise ValueError("a workflow needs at least one step")
        for index, step in enumerate(self.steps):
            if list(step.access) != sorted(set(step.access)):
                raise ValueError(f"access of step {index} is not ascending: {step.access}")
            if any(not 0 <= earlier < index for earlier in step.access):
                raise ValueError(f"access of step {index} does not look back: {step.access}")
            if step.previous and len(step.access) != index:
                raise ValueError(f"step {index} reads the previous round but not all of this one")

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def levels(self) -> tuple[int, ...]:
        """Numbers of steps that must end one after another before each step starts."""
        levels: list[int] = []
        for step in self.steps:
            levels.append(1 + max((levels[i] for i in step.access), default=-1))
        return tuple(levels)

    @property
    def depth(self) -> int:
        """Steps on the longest chain."""
        return 1 + max(self.levels)

    @property
    def width(self) -> int:
        """Steps on the fullest level: what can run at the same time."""
        levels = self.levels
        return max(levels.count(level) for level in set(levels))
