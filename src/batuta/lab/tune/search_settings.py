"""How a search goes about it, and on which questions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from batuta.core import Task
from batuta.lab.tune.transitions import Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """How the search goes about it."""

    call_weight: float = 0.01
    """Share right that a further call must gain."""
    mean_calls: float | None = None
    """Calls of a question on average at most; None: as many as are worth it."""
    usd_weight: float = 0.0
    """Share right that a further dollar a question must gain."""
    batch: int = 2
    """Questions that a drawn workflow runs on in a cell: few, so that what they say steers the
    next draws."""
    groups_at_once: int = 3
    """Groups that have their turn in one round."""
    draws: int = 2
    """Workflows drawn in each cell and round."""
    optimism: float = 1.0
    """Standard deviations that are added to what is expected of a workflow never tried."""
    caution: float = 0.5
    """Standard deviations that are taken from what is expected of a workflow, to choose it."""
    parents: int = 2
    """The best workflows of a group whose neighbours are looked at."""
    looked_at: int = 120
    """Workflows near the best that were never tried and are looked at in a round, at random."""
    untried: int = 60
    """Workflows that were never tried and may be drawn, in each group."""
    tried: int = 40
    """Workflows that were tried and may be drawn again, in each group."""
    finalists: int = 4
    """Workflows of each group that are still run when no new ones are tried any more."""
    tune_every: int = 16
    """Rounds after which the variances are chosen anew."""
    seed: int = 0


@dataclass(slots=True, kw_only=True)
class Arena:
    """The questions of the search, by cell and in the order in which they are run."""

    levels: int
    cells: dict[Cell, list[Task]]
    weights: Mapping[int, float]
    """Share of the questions that each group has."""
    of: dict[str, Cell] = field(init=False)

    def __post_init__(self) -> None:
        self.of = {task.id: cell for cell, tasks in self.cells.items() for task in tasks}

    @property
    def groups(self) -> tuple[int, ...]:
        """The groups."""
        return tuple(sorted({group for group, _ in self.cells}))
