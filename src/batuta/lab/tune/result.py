"""The result of a tuning run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from batuta.core import Pool, WorkerId
from batuta.lab.tune.calibrate import WorkerCard
from batuta.lab.tune.expected_gain import ExpectedGain
from batuta.lab.tune.grouping import Grouping
from batuta.lab.tune.judge import Comparison, SystemFigures
from batuta.lab.tune.library import Candidate
from batuta.lab.tune.pattern_solver import PatternSolver
from batuta.lab.tune.systems import SystemTable, TunedSystem
from batuta.lab.tune.team import Team


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteOutcome:
    """The result of rewriting the most used workflow."""

    before: Candidate
    after: Candidate
    """The rewritten workflow; equal to `before` if no wording was better."""
    reason: str
    """The reason to keep or to reject the rewritten workflow."""
    kept: bool = False
    """Whether the rewritten workflow replaces the original workflow."""
    gain: float = 0.0
    """The gain in accuracy on questions that the rewriting did not see."""
    questions: int = 0
    """The number of these questions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneResult:
    """The result of a tuning run; each stage adds its part."""

    cards: tuple[WorkerCard, ...]
    left_out: tuple[WorkerId, ...]
    """Workers that were left out because few of their answers have a score."""
    grouping: Grouping
    pool: Pool
    """The pool with the measured strengths, skills and seconds."""
    team: Team | None = None
    """The team that was kept after calibration; None if no limit on models applies."""
    systems: tuple[TunedSystem, ...] = ()
    """The systems, from the simplest to the finest."""
    table: SystemTable | None = None
    """The table from which the systems were built; None before the search."""
    nominees: Mapping[str, TunedSystem] | None = None
    """The systems nominated for ultra and mini, by these names; None before the selection."""
    pattern: PatternSolver | None = None
    """The pattern that is nominated for ultra instead of the search's nominee, or None."""
    rewritten: RewriteOutcome | None = None
    """The outcome of the rewriting; None if it was skipped."""
    selection: tuple[SystemFigures, ...] = ()
    """The figures of the systems on the questions of the selection."""
    finalists: tuple[SystemFigures, ...] = ()
    """The figures of the finalists, and of a nominated pattern, on the finalists' questions."""
    judged: tuple[SystemFigures, ...] = ()
    """The figures of the nominees and opponents on the questions of the judgement."""
    comparisons: tuple[Comparison, ...] = ()
    expected: Mapping[tuple[str, str], ExpectedGain] = field(
        default_factory=dict[tuple[str, str], ExpectedGain]
    )
    """The expected gain of the first system of each pair over the second system."""
    tried: int = 0
    """The number of workflows that ran in the search."""
    expected_accuracy: float | None = None
    """The mean accuracy that the search expects of the best workflow of each cell."""

    @property
    def settings_pool(self) -> Pool:
        """The pool of the recommended settings; workers set aside have their cards' strength."""
        shares = {card.worker: card.overall.share for card in self.cards}
        aside = {one: shares[one] for one in self.set_aside}
        stated = {one.id: aside.get(one.id, one.strength) for one in self.pool}
        known = {one: None if share is None else round(share, 3) for one, share in stated.items()}
        return Pool(tuple(replace(one, strength=known[one.id]) for one in self.pool))

    @property
    def set_aside(self) -> tuple[WorkerId, ...]:
        """The workers that were left out or passed over after calibration."""
        return self.left_out + (() if self.team is None else self.team.passed_over)
