"""The stage of judgement: compares the nominees in up to four looks at the held-out questions.

A test after every question that stops at a small p-value would err in far more than 5 of 100
judgements. Four looks, after equal numbers of questions, keep the rate of 5 in 100 with the levels
of O'Brien and Fleming (1979, Biometrics 35): early looks require much smaller p-values than the
last look.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from batuta.core import Task
from batuta.lab.baselines import SelfConsistency
from batuta.lab.tune.context import TuneContext
from batuta.lab.tune.expected_gain import ExpectedGain, expect_gain
from batuta.lab.tune.judge import (
    Assignment,
    Comparison,
    SystemFigures,
    Verdict,
    compare_nominees,
    describe_system,
    scores_of,
)
from batuta.lab.tune.library import Candidate
from batuta.lab.tune.measuring import paired_gains, run_systems
from batuta.lab.tune.result import TuneResult
from batuta.lab.tune.stages import (
    BEST_SINGLE,
    MINI,
    SELF_CONSISTENCY,
    ULTRA,
    TuneStage,
    choose_samples,
)

LEVELS = (0.0000516, 0.0042, 0.0194, 0.0430)
"""The two-sided level of each look; the error rate of all looks together is 0.05 (Jennison and
Turnbull 1999, table 2.3)."""


def divide_into_looks(questions: int) -> Iterator[tuple[int, float]]:
    """Yield the total number of questions at each look, and the level of the look.

    Looks without new questions are left out.
    """
    steps = len(LEVELS)
    before = 0
    for number, level in enumerate(LEVELS, start=1):
        until = questions * number // steps
        if until > before:
            yield until, level
        before = until


_PROVEN = frozenset({Verdict.BETTER, Verdict.WORSE, Verdict.CHEAPER})
"""Verdicts that end a comparison before the last look."""
_HOPELESS = 0.02
"""The probability of a gain below which a nominee is no longer judged."""
_FEWEST, _STEP = 20, 10
"""The number of questions on which self-consistency is first compared with one sample, and the
number of questions that are added while the result is unclear."""
_UNLIKELY, _LIKELY = 0.3, 0.9
"""Self-consistency is clearly weaker below the first probability of a gain, and clearly stronger
above the second."""
_OPPONENT_SHARE = 0.25
"""The share of the judgement's budget that the choice of the opponent may take."""
Pair = tuple[str, str]
"""The names of two systems that are compared."""


@dataclass(slots=True, kw_only=True)
class _Judgement:
    """A judgement in progress."""

    context: TuneContext
    assignments: Mapping[str, Assignment]
    pairs: Sequence[Pair]
    leads: Mapping[Pair, float]
    """The gain that the search expects of the first system of each pair over the second system."""
    known: Sequence[Task]
    """The questions of selection and finalists, which also count towards the expected gains."""
    done: dict[str, list[Task]] = field(default_factory=dict[str, list[Task]])
    """The questions of the judgement that each system has run."""
    settled: dict[Pair, Comparison] = field(default_factory=dict[Pair, Comparison])
    """The comparisons of the pairs that are already decided."""

    def figures(self, name: str) -> SystemFigures:
        """Return a system's figures on the questions of the judgement that it has run."""
        tasks = self.done.get(name, [])
        return describe_system(name, self.context.runner, tasks, self.assignments[name])

    def compare(self, level: float) -> dict[Pair, Comparison]:
        """Compare every pair on the questions that both ran, except for pairs already decided."""
        runner = self.context.runner
        scores = {
            name: scores_of(runner, self.done.get(name, []), self.assignments[name])
            for name in self.assignments
        }
        figures = {name: self.figures(name) for name in self.assignments}
        found = compare_nominees([(figures[a], figures[b]) for a, b in self.pairs], scores, level)
        return dict(zip(self.pairs, found, strict=True)) | self.settled

    def expect(self, pair: Pair) -> ExpectedGain:
        """Return the expected gain of a pair's first system, from all questions that both ran."""
        one, other = (self.assignments[name] for name in pair)
        tasks = [*self.known, *self.done.get(pair[0], [])]
        return expect_gain(paired_gains(self.context, tasks, one, other), self.leads.get(pair, 0.0))

    async def run(self, tasks: Sequence[Task]) -> bool:
        """Run the systems of undecided pairs; return False if the budget does not allow this."""
        names = {name for pair in self.pairs if pair not in self.settled for name in pair}
        unsettled = {name: self.assignments[name] for name in self.assignments if name in names}
        until = self.context.ends[TuneStage.JUDGE]
        measured = await run_systems(self.context, tasks, unsettled, until)
        for name in unsettled:
            self.done[name] = measured
        return len(measured) == len(tasks)

    def settle(self, level: float) -> None:
        """Decide the pairs that are proven at this level or have hardly any chance of a gain."""
        for pair, comparison in self.compare(level).items():
            is_hopeless = self.expect(pair).probability < _HOPELESS
            if comparison.verdict in _PROVEN or is_hopeless:
                self.settled[pair] = comparison

    async def judge(self, tasks: Sequence[Task]) -> tuple[Comparison, ...]:
        """Compare the pairs in up to four looks, and stop when all pairs are decided."""
        for until, level in divide_into_looks(len(tasks)):
            if not await self.run(tasks[:until]):
                break
            if level < LEVELS[-1]:
                self.settle(level)
            if len(self.settled) == len(self.pairs):
                break
        found = self.compare(LEVELS[-1])
        return tuple(found[pair] for pair in self.pairs)


async def judge_nominees(context: TuneContext, result: TuneResult) -> TuneResult:
    """Compare the nominees with their opponents on the held-out questions.

    The runner's best worker becomes the strongest worker of the result's pool.

    Raises:
        ExceptionGroup, StoreError, WorkerLostError: as `CandidateRunner.run_all` raises them.
    """
    assert result.nominees is not None and result.table is not None  # noqa: S101, PT018 - selected
    known = (*context.parts.selection, *context.parts.finalists)
    tasks = (*known, *context.parts.judgement)
    best = Candidate.single(result.pool.ranked()[0].id)
    context.runner.rank_by(result.pool)
    figures = {one.name: one for one in result.finalists}
    ultra: Assignment = result.nominees[ULTRA].assign(tasks)
    if (pattern := result.pattern) is not None:
        ultra, figures[ULTRA] = {task.id: pattern for task in tasks}, figures[pattern.name]
    ids = [task.id for task in tasks]
    self_consistency = SelfConsistency(choose_samples(figures))
    single: Assignment = dict.fromkeys(ids, best)
    voting: Assignment = dict.fromkeys(ids, self_consistency)
    assignments: dict[str, Assignment] = {
        ULTRA: ultra,
        MINI: result.nominees[MINI].assign(tasks),
        BEST_SINGLE: single,
    }
    opponent = BEST_SINGLE
    if await _gains_by_voting(context, single, voting):
        opponent = self_consistency.name
        assignments[opponent] = voting
    pairs: list[Pair] = [(ULTRA, opponent), (MINI, BEST_SINGLE)]
    if assignments[MINI] != assignments[BEST_SINGLE] and assignments[MINI] != assignments[ULTRA]:
        pairs.append((ULTRA, MINI))
    expected = {name: one.expected for name, one in result.nominees.items()}
    expected[BEST_SINGLE] = result.table.expect_single(best)
    if pattern is not None:
        expected[ULTRA] = expected[BEST_SINGLE]  # the search has no estimate of a pattern
    wanted = [(ULTRA, BEST_SINGLE), (MINI, BEST_SINGLE), (ULTRA, MINI)]
    judgement = _Judgement(
        context=context,
        assignments=assignments,
        pairs=pairs,
        leads={pair: expected[pair[0]] - expected[pair[1]] for pair in wanted},
        known=known,
    )
    comparisons = await judgement.judge(context.parts.judgement)
    for one in comparisons:
        context.report(TuneStage.JUDGE, f"{one.nominee}: {one.verdict} (opponent: {one.opponent})")
    if opponent != BEST_SINGLE:
        wanted.append((opponent, BEST_SINGLE))
    return replace(
        result,
        judged=tuple(judgement.figures(name) for name in assignments),
        comparisons=comparisons,
        expected={pair: judgement.expect(pair) for pair in wanted},
    )


async def _gains_by_voting(
    context: TuneContext, single: Assignment, self_consistency: Assignment
) -> bool:
    """Return whether self-consistency is a stronger opponent than one sample.

    Questions are added only while the answer is unclear, because each sample costs a call.
    """
    begin, end = context.ends[TuneStage.REWRITE], context.ends[TuneStage.JUDGE]
    until = begin + _OPPONENT_SHARE * (end - begin)
    rivals = {BEST_SINGLE: single, SELF_CONSISTENCY: self_consistency}
    tasks, gain = context.parts.finalists, 0.0
    for many in range(min(_FEWEST, len(tasks)), len(tasks) + 1, _STEP):
        measured = await run_systems(context, tasks[:many], rivals, until)
        ours = scores_of(context.runner, measured, self_consistency)
        theirs = scores_of(context.runner, measured, single)
        gains = [ours[key] - theirs[key] for key in sorted(ours.keys() & theirs.keys())]
        found = expect_gain(gains, 0.0)
        gain = found.mean
        if not (any(gains) and _UNLIKELY < found.probability < _LIKELY and len(measured) == many):
            break
    return gain > 0
