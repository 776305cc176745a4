"""What came of a tuning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from batuta.core import Pool, WorkerId
from batuta.lab.tune.calibrate import WorkerCard
from batuta.lab.tune.expected_gain import ExpectedGain
from batuta.lab.tune.grouping import Grouping
from batuta.lab.tune.judge import Comparison, SystemFigures
from batuta.lab.tune.library import Candidate
from batuta.lab.tune.systems import SystemTable, TunedSystem


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteOutcome:
    """What rewriting the workflow that is used most came to."""

    before: Candidate
    after: Candidate
    reason: str
    kept: bool = False
    gain: float = 0.0
    """Share right that it gained on questions that the rewriting did not see."""
    questions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneResult:
    """What came of it."""

    cards: tuple[WorkerCard, ...]
    left_out: tuple[WorkerId, ...]
    """Workers that hardly ever answered."""
    grouping: Grouping
    pool: Pool
    """With what was measured."""
    systems: tuple[TunedSystem, ...] = ()
    """From the simplest to the finest."""
    table: SystemTable | None = None
    """What they were built from."""
    nominees: Mapping[str, TunedSystem] | None = None
    rewritten: RewriteOutcome | None = None
    """None: nothing was rewritten."""
    selection: tuple[SystemFigures, ...] = ()
    finalists: tuple[SystemFigures, ...] = ()
    judged: tuple[SystemFigures, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    expected: Mapping[tuple[str, str], ExpectedGain] = field(
        default_factory=dict[tuple[str, str], ExpectedGain]
    )
    """Pairs of systems to the expected gain of the first over the second, from all observations."""
    tried: int = 0
    """Workflows that were run in the search."""
    believed: float | None = None
    """Share right that the search expects of its finest system."""
    ended: str = ""
    """Why the search ended before its share of the budget was spent; empty: it did not."""
