"""The settings of a search, and the questions that it uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from batuta.core import Task
from batuta.lab.tune.transitions import Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """The settings of a search."""

    call_weight: float = 0.01
    """The price of a call: the gain in accuracy that justifies one more call. To keep `mean_calls`,
    the search raises its price above this one."""
    mean_calls: float | None = None
    """Maximum mean calls per question of the best workflows; None for no limit."""
    usd_weight: float = 0.0
    """The gain in accuracy that justifies one more dollar per question."""
    batch: int = 2
    """The number of further questions on which a drawn workflow runs in a cell. It is small, so
    that the outcomes steer the next draws."""
    groups_at_once: int = 3
    """Maximum number of groups in one round."""
    draws: int = 2
    """The number of draws in each cell and round; each draws one workflow."""
    optimism: float = 1.0
    """The number of standard deviations added to the expected accuracy of an untried workflow."""
    caution: float = 0.5
    """The number of standard deviations subtracted from the expected accuracy when workflows are
    ranked."""
    parents: int = 2
    """The number of a group's best workflows whose neighbours are considered, besides the best
    workflow of each level."""
    looked_at: int = 120
    """Maximum number of random untried neighbours that are considered in a group and round."""
    untried: int = 60
    """Maximum number of untried workflows that may be drawn in each group; 0 ends exploration."""
    tried: int = 40
    """Maximum number of tried workflows that may be drawn again in each group."""
    finalists: int = 4
    """Maximum number of workflows of each group that still run after exploration has ended. A
    workflow that is clearly better at one level runs too."""
    tune_every: int = 16
    """The number of rounds between updates of the spread of the questions' effects and of the price
    of a call."""
    seed: int = 0


@dataclass(slots=True, kw_only=True)
class Arena:
    """The questions of the search, by cell and in the order in which they run."""

    levels: int
    """The number of levels of ease of each group."""
    cells: dict[Cell, list[Task]]
    """The questions of each cell; cells without questions are missing."""
    weights: Mapping[int, float]
    """Each group's share of the questions."""
    cell_of: dict[str, Cell] = field(init=False)
    """The cell of each question, by the question's id."""

    def __post_init__(self) -> None:
        self.cell_of = {task.id: cell for cell, tasks in self.cells.items() for task in tasks}

    @property
    def groups(self) -> tuple[int, ...]:
        """The numbers of the groups that have questions."""
        return tuple(sorted({group for group, _ in self.cells}))
