"""What the stages of a tuning share: settings, questions, the runner, and what may be spent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from batuta.core import Task, WorkerId
from batuta.lab.tune.candidate_runner import CandidateRunner
from batuta.lab.tune.parts import QuestionParts
from batuta.lab.tune.spending import Allowance, bound_pool_costs
from batuta.lab.tune.stages import TuneStage, plannable_usd, stage_ends

ProgressListener = Callable[[TuneStage, str], None]
"""Hears what a stage has found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneSettings:
    """How a tuning goes about it."""

    allowance: Allowance
    labelled: bool = True
    """Whether the questions' families are to be used."""
    groups: int = 8
    """Groups of questions at most."""
    levels: int = 6
    """Levels of ease in each."""
    call_weight: float = 0.01
    """Share right that a further call must gain."""
    mean_calls: float | None = None
    """Calls of a question on average that the nominee for ultra may make; None: as many as are
    worth it. To keep it a call may count for more than `call_weight`, never for less."""
    worth: float | None = None
    """Dollars that a right answer is worth; None: dollars count in the budget only."""
    rewrites: bool = False
    """Whether subtasks are rewritten; it needs the package gepa."""
    lacks_rewriting: bool = False
    """True if subtasks should be rewritten but that package is not installed."""
    rewriter: WorkerId | None = None
    """Who reflects on them; None: the strongest worker."""
    only_proven: bool = False
    """True if a system is recommended only if the judgement has proven it."""
    max_steps: int = 5
    seed: int = 0
    last: TuneStage = TuneStage.JUDGE
    """The stage after which to stop."""


@dataclass(slots=True, kw_only=True)
class TuneContext:
    """A tuning under way, as its stages see it."""

    parts: QuestionParts
    family: Callable[[Task], str]
    """A question's label."""
    runner: CandidateRunner
    """Who runs; its meter counts."""
    settings: TuneSettings
    used_minutes: Callable[[], float]
    """How long the process has worked."""
    report: ProgressListener = lambda _stage, _found: None
    ends: Mapping[TuneStage, float] = field(init=False)
    """The share of the budget that may be spent at the end of each stage."""

    _usd: Decimal | None = field(init=False)
    """Dollars that can be planned with."""

    def __post_init__(self) -> None:
        allowance = self.settings.allowance
        bounds = bound_pool_costs(self.runner.pool, self.parts.search, allowance.unknown)
        self._usd = plannable_usd(allowance, bounds.values())
        self.plan_stages(allowance.calls or 0)

    def plan_stages(self, calls: int) -> None:
        """Shares the budget out, if it is likely to allow so many calls."""
        judgement, rewrites = len(self.parts.judgement), self.settings.rewrites
        self.ends = stage_ends(
            calls, judgement=judgement, rewrites=rewrites, last=self.settings.last
        )

    def spent_share(self, more: int = 0) -> float:
        """The share of the budget that would be spent after so many more calls."""
        meter, allowance = self.runner.meter, self.settings.allowance
        calls = meter.calls + more
        shares = [0.0]
        if allowance.calls is not None:
            shares.append(calls / max(allowance.calls, 1))
        if self._usd is not None:
            each = meter.usd / max(meter.calls, 1)
            shares.append(float((meter.usd + more * each) / max(self._usd, each / 1000 or 1)))
        if allowance.minutes is not None:
            shares.append(self.used_minutes() / allowance.minutes)
        return max(shares)

    def has_money(self, until: float) -> Callable[[int], bool]:
        """Whether so many more calls fit that share of the budget."""
        return lambda calls: self.spent_share(calls) <= until

    def expected_calls(self) -> int:
        """How many calls the whole budget is likely to allow."""
        return int(self.runner.meter.calls / max(self.spent_share(), 1e-6))
