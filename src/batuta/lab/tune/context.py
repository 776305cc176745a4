"""The state that the stages of a tuning run share: settings, questions, runner and budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from batuta.core import Task, WorkerId
from batuta.engine.confidence import SampleSetting
from batuta.lab.tune.candidate_runner import CandidateRunner
from batuta.lab.tune.parts import QuestionParts
from batuta.lab.tune.spending import Allowance, bound_pool_costs
from batuta.lab.tune.stages import TuneStage, plannable_usd, stage_ends

ProgressListener = Callable[[TuneStage, str], None]
"""Called with a stage and a sentence about its progress or result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneSettings:
    """The settings of a tuning run."""

    allowance: Allowance
    labelled: bool = True
    """Whether the questions' families are the groups; otherwise similar texts form the groups."""
    groups: int = 8
    """Maximum number of groups of questions."""
    levels: int = 6
    """Maximum number of levels of ease within a group."""
    call_weight: float = 0.01
    """The price of a call: the gain in accuracy that justifies one more call."""
    mean_calls: float | None = None
    """Maximum mean calls per question of the nominee for ultra; None for no limit. The price of a
    call may rise above `call_weight` to keep this limit."""
    worth: float | None = None
    """Dollars that a correct answer is worth; None: dollars count only against the budget."""
    rewrites: bool = False
    """Whether subtasks are rewritten, which needs the package gepa."""
    lacks_rewriting: bool = False
    """Whether rewriting was requested, but gepa is not installed."""
    rewriter: WorkerId | None = None
    """The worker that rewrites subtasks; None for the strongest worker."""
    most_workers: int | None = None
    """Maximum number of models kept after calibration; None for all."""
    patterns: bool = False
    """Whether the server's patterns compete with the search's nominee."""
    only_proven: bool = False
    """Whether only systems with one of the verdicts in `decision.PROVEN` are recommended."""
    max_steps: int = 5
    """Maximum number of steps of a workflow."""
    seed: int = 0
    last: TuneStage = TuneStage.JUDGE
    """The last stage that is run."""
    samples: SampleSetting | None = None
    """The setting for asking questions again, to fit confidence; None to ask none again."""

    def sample_calls(self, parts: QuestionParts) -> int:
        """Return the maximum number of calls that ask questions again, for ultra and mini."""
        if self.samples is None:
            return 0
        return 2 * self.samples.count * len(parts.fitted)


@dataclass(slots=True, kw_only=True)
class TuneContext:
    """The state of a tuning run that its stages share."""

    parts: QuestionParts
    family: Callable[[Task], str]
    """Returns the family of a question, which is its label."""
    runner: CandidateRunner
    """Executes workflows; its meter counts the calls."""
    settings: TuneSettings
    used_minutes: Callable[[], float]
    """Returns the minutes that this process has spent on the tuning run."""
    report: ProgressListener = lambda _stage, _found: None
    ends: Mapping[TuneStage, float] = field(init=False)
    """The share of the budget that may be spent by the end of each stage."""
    _usd: Decimal | None = field(init=False)
    """Dollars that the stages may plan to spend; None without a limit in dollars."""

    def __post_init__(self) -> None:
        allowance = self.settings.allowance
        bounds = bound_pool_costs(self.runner.pool, self.parts.search, allowance.unknown)
        self._usd = plannable_usd(allowance, bounds.values())
        self.plan_stages(allowance.calls or 0)

    def plan_stages(self, calls: int) -> None:
        """Divide the budget among the stages; `calls` is the expected total, 0 if unknown."""
        self.ends = stage_ends(
            calls,
            judgement=len(self.parts.judgement),
            rewrites=self.settings.rewrites,
            last=self.settings.last,
            samples=self.settings.sample_calls(self.parts),
        )

    def spent_share(self, more: int = 0) -> float:
        """Return the share of the budget that will be spent after `more` further calls.

        It is the greatest of the shares of calls, dollars and minutes; more than 1 is possible.
        """
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

    def fits_budget(self, until: float) -> Callable[[int], bool]:
        """Return a function that tells whether further calls fit that share of the budget."""
        return lambda calls: self.spent_share(calls) <= until

    def expected_calls(self) -> int:
        """Estimate the number of calls that the whole budget allows, from the calls so far."""
        return int(self.runner.meter.calls / max(self.spent_share(), 1e-6))
