"""One tuning from its questions to its recommendation: calibrate, search, select, judge.

All decisions follow from the replies and the settings alone; a tuning that was killed begins
again, reads from its journal what it has paid for, and comes to the same end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from batuta.baselines import SelfConsistency
from batuta.core import Pool, Task, WorkerId
from batuta.errors import ConfigError
from batuta.solvers.workflow_selector import fit_ease
from batuta.solvers.workflow_selector.reader import Floats, Places
from batuta.tune.calibrate import WorkerCard, mean_scores, measure_workers, measured_pool
from batuta.tune.grouping import Grouping, ease_bounds, group_questions
from batuta.tune.judge import (
    Assignment,
    Comparison,
    SystemFigures,
    compare_nominees,
    describe_system,
    scores_of,
)
from batuta.tune.library import Candidate
from batuta.tune.parts import QuestionParts
from batuta.tune.player import Player
from batuta.tune.search import Arena, Search, SearchSettings
from batuta.tune.spending import Allowance
from batuta.tune.stages import (
    BEST_SINGLE,
    CALIBRATION,
    MINI,
    SELF_CONSISTENCY,
    ULTRA,
    TuneStage,
    choose_samples,
    count_calls,
    describe_progress,
    expected_accuracy,
    stage_ends,
)
from batuta.tune.systems import TunedSystem, build_systems, restrict_to_singles

_ALWAYS = frozenset({ULTRA, MINI, BEST_SINGLE})
_SCREENED, _EXPLORED = 0.4, 0.72
"""The shares of calibration and search after which two parts of the search end."""
_CALIBRATED = 30
"""Questions of each group on which every worker is measured at most."""
_CALLS_A_CELL = 250
"""Calls that a level of ease of a group must be able to have, to be looked at apart."""
_SCREENING = 2
"""Questions of each cell on which every role of every worker is tried."""
_AT_ONCE = 10
"""Questions that are judged before the budget is looked at again."""
_SEARCH_ROUNDS, _MOST_DRAWS, _CALLS_A_PLAY = 60, 8, 1.7
"""Rounds that the search is to have; draws of one at most; new calls that a play usually makes."""
_TOLD = 0.05
"""Share of the budget after which the search says again how it does."""
_FAILED = 0.8
"""Share of calls without a score from which on a worker is left out."""

Tell = Callable[[TuneStage, str], None]
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
    call_weight: float = 0.037
    """Share right that a further call must gain."""
    worth: float | None = None
    """Dollars that a right answer is worth; None: dollars count in the budget only."""
    max_steps: int = 5
    seed: int = 0
    last: TuneStage = TuneStage.JUDGE
    """The stage after which to stop."""


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
    nominees: Mapping[str, TunedSystem] | None = None
    selection: tuple[SystemFigures, ...] = ()
    finalists: tuple[SystemFigures, ...] = ()
    judged: tuple[SystemFigures, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    tried: int = 0
    """Workflows that were played in the search."""
    believed: float | None = None
    """Share right that the search expects of its finest system."""
    ended: str = ""
    """Why the search ended before its share of the budget was spent; empty: it did not."""


@final
class Tuning:
    """A tuning under way."""

    def __init__(
        self,
        parts: QuestionParts,
        family: Callable[[Task], str],
        player: Player,
        settings: TuneSettings,
        *,
        used_minutes: Callable[[], float],
        tell: Tell = lambda _stage, _found: None,
    ) -> None:
        """Prepares it; nothing is called.

        Args:
            parts: the questions.
            family: a question's label.
            player: who runs; its meter counts.
            settings: how to go about it.
            used_minutes: how long the process has worked.
            tell: hears what is found.
        """
        self._parts = parts
        self._family = family
        self._player = player
        self._settings = settings
        self._used_minutes = used_minutes
        self._tell = tell
        self._ends = stage_ends(settings.allowance.calls or 0)

    async def run(self) -> TuneResult:
        """All stages up to the last that is wanted.

        Raises:
            ConfigError: no worker answers, or the budget is too small to begin.
        """
        grouping = group_questions(
            self._parts.search,
            self._family,
            labelled=self._settings.labelled,
            most=self._settings.groups,
            seed=self._settings.seed,
        )
        tasks, group_n = await self._calibrate(grouping)
        self._ends = stage_ends(self._expected_calls())
        cards = measure_workers(self._player, tasks, group_n, len(grouping.names))
        usable, left_out = self._usable(cards)
        pool = measured_pool(self._player.pool, cards, grouping.names)
        result = TuneResult(cards=cards, left_out=left_out, grouping=grouping, pool=pool)
        if self._settings.last is TuneStage.CALIBRATE:
            return result
        search, ease_gl, grouping = await self._search(grouping, tasks, usable, cards)
        systems = build_systems(search, grouping, ease_gl, "tuned")
        result = replace(
            result,
            grouping=grouping,
            systems=systems,
            tried=len(search.tried_anywhere()),
            believed=expected_accuracy(search),
        )
        if self._settings.last is TuneStage.SEARCH:
            return result
        result = await self._select(result)
        return result if self._settings.last is TuneStage.SELECT else await self._judge(result)

    # -- the budget ------------------------------------------------------------------------

    def spent_share(self, more: int = 0) -> float:
        """The share of the budget that would be spent after so many more calls."""
        meter, allowance = self._player.meter, self._settings.allowance
        calls = meter.calls + more
        shares = [0.0]
        if allowance.calls is not None:
            shares.append(calls / max(allowance.calls, 1))
        if allowance.usd is not None:
            each = meter.usd / max(meter.calls, 1)
            shares.append(float((meter.usd + more * each) / max(allowance.usd, each / 1000 or 1)))
        if allowance.minutes is not None:
            shares.append(self._used_minutes() / allowance.minutes)
        return max(shares)

    def _has_money(self, until: float) -> Callable[[int], bool]:
        return lambda calls: self.spent_share(calls) <= until

    # -- calibrate -------------------------------------------------------------------------

    async def _calibrate(self, grouping: Grouping) -> tuple[list[Task], Places]:
        """Every worker alone on the first questions of every group, while there is money."""
        group_n, _, _ = grouping.reader([task.question for task in self._parts.search])
        by_group = [np.flatnonzero(group_n == g) for g in range(len(grouping.names))]
        chosen: list[int] = []
        singles = [Candidate.single(worker.id) for worker in self._player.pool]
        has_money = self._has_money(CALIBRATION)
        for turn in range(_CALIBRATED):
            now = [int(places[turn]) for places in by_group if turn < len(places)]
            if not now or (turn and not has_money(len(now) * len(singles))):
                break
            asked = [self._parts.search[place] for place in now]
            if not await self._player.play_all((t, one) for t in asked for one in singles):
                break
            chosen += now
        if not chosen:
            raise ConfigError(
                "the budget does not suffice to ask every worker one question of every group: "
                f"that takes {len(by_group) * len(singles)} calls"
            )
        self._tell(TuneStage.CALIBRATE, f"{len(chosen)} questions to {len(singles)} workers")
        return [self._parts.search[place] for place in chosen], group_n[chosen]

    def _usable(
        self, cards: Sequence[WorkerCard]
    ) -> tuple[tuple[WorkerId, ...], tuple[WorkerId, ...]]:
        """Who goes on, and who is left out because it hardly ever answers.

        Raises:
            ConfigError: nobody goes on.
        """
        failing = [
            card.worker
            for card in cards
            if card.failed >= _FAILED * (card.failed + card.overall.questions)
        ]
        usable = tuple(card.worker for card in cards if card.worker not in failing)
        if not usable:
            raise ConfigError(
                "no worker gave answers that could be graded; try batuta pool check, and the "
                "questions' graders"
            )
        return usable, tuple(failing)

    # -- search ----------------------------------------------------------------------------

    async def _search(
        self,
        grouping: Grouping,
        calibrated: Sequence[Task],
        workers: Sequence[WorkerId],
        cards: Sequence[WorkerCard],
    ) -> tuple[Search, Floats, Grouping]:
        texts = [task.question for task in calibrated]
        right_n = mean_scores(self._player, calibrated, workers)
        reader = replace(grouping.reader, ease_f=fit_ease(grouping.reader, texts, right_n))
        grouping = replace(grouping, reader=reader)
        arena, ease_gl = self._arena(grouping)
        usd = {card.worker: card.usd or 0.0 for card in cards}
        search = Search(
            arena,
            self._player,
            workers=workers,
            settings=SearchSettings(
                call_weight=self._settings.call_weight,
                usd_weight=1 / self._settings.worth if self._settings.worth else 0.0,
                seed=self._settings.seed,
                draws=self._draws(arena),
            ),
            max_steps=self._settings.max_steps,
            usd=usd,
            has_money=self._has_money(self._ends[TuneStage.SEARCH]),
        )
        search.take_over(calibrated, [Candidate.single(worker) for worker in workers])
        await self._race(search)
        return search, ease_gl, grouping

    def _arena(self, grouping: Grouping) -> tuple[Arena, Floats]:
        """The questions of the search by cell."""
        tasks, groups = self._parts.search, len(grouping.names)
        group_n, ease_n, _ = grouping.reader([task.question for task in tasks])
        levels = min(self._settings.levels, len(tasks) // (4 * groups))
        levels = max(min(levels, self._expected_calls() // (_CALLS_A_CELL * groups)), 1)
        ease_gl = ease_bounds(group_n, ease_n, groups, levels)
        level_n = (ease_n[:, None] >= ease_gl[group_n]).sum(axis=1)
        cells: dict[tuple[int, int], list[Task]] = {}
        for task, group, level in zip(tasks, group_n, level_n, strict=True):
            cells.setdefault((int(group), int(level)), []).append(task)
        there = np.bincount(group_n, minlength=groups) / len(tasks)
        weights = {group: float(there[group]) for group in range(groups) if there[group]}
        return Arena(levels=levels, cells=cells, weights=weights), ease_gl

    def _draws(self, arena: Arena) -> int:
        """Workflows drawn in each cell and round, so that there are enough rounds to learn."""
        usual = SearchSettings()
        there = len(arena.cells) / len(arena.groups) * min(usual.groups_at_once, len(arena.groups))
        calls = self._expected_calls() / _SEARCH_ROUNDS
        return max(2, min(_MOST_DRAWS, round(calls / (usual.batch * there * _CALLS_A_PLAY))))

    def _expected_calls(self) -> int:
        """How many calls the whole budget is likely to allow."""
        return int(self._player.meter.calls / max(self.spent_share(), 1e-6))

    async def _race(self, search: Search) -> None:
        each, whole = _SCREENING, self._ends[TuneStage.SEARCH]
        while each and not await search.screen(each, self._has_money(_SCREENED * whole)):
            each -= 1
        told = 0.0
        while await search.run_round():
            share = self.spent_share()
            if share >= _EXPLORED * whole:
                search.stop_exploring()
            if share - told >= _TOLD:
                told = share
                self._tell(TuneStage.SEARCH, describe_progress(search))
        self._tell(TuneStage.SEARCH, describe_progress(search))

    # -- select ----------------------------------------------------------------------------

    async def _select(self, result: TuneResult) -> TuneResult:
        """How fine a selector is worth having; then who is nominated."""
        middle = (self._ends[TuneStage.SEARCH] + self._ends[TuneStage.SELECT]) / 2
        plays: dict[str, Assignment] = {
            one.name: one.assign(self._parts.selection) for one in result.systems
        }
        selection = await self._measure(self._parts.selection, plays, middle)
        chosen = self._finest(result.systems, plays, self._parts.selection)
        singles = restrict_to_singles(chosen, MINI)
        best = Candidate.single(result.pool.ranked()[0].id)
        entrants = {
            ULTRA: chosen,
            "one workflow for all": result.systems[0],
            MINI: singles,
        }
        finals: dict[str, Assignment] = {
            name: one.assign(self._parts.finalists) for name, one in entrants.items()
        }
        finals[BEST_SINGLE] = {task.id: best for task in self._parts.finalists}
        finalists = await self._measure(self._parts.finalists, finals, self._ends[TuneStage.SELECT])
        merit = {one.name: self._merit(one) for one in finalists}
        nominees = {ULTRA: chosen, MINI: singles}
        if merit["one workflow for all"] > merit[ULTRA]:
            nominees[ULTRA] = replace(result.systems[0], name=ULTRA)
        self._tell(TuneStage.SELECT, f"{chosen.name}; {len(chosen.played)} workflows in use")
        return replace(result, selection=selection, finalists=finalists, nominees=nominees)

    def _merit(self, one: SystemFigures) -> float:
        worth = one.usd / self._settings.worth if self._settings.worth else 0.0
        return (one.share or 0.0) - self._settings.call_weight * one.calls - worth

    def _finest(
        self, systems: Sequence[TunedSystem], plays: Mapping[str, Assignment], tasks: Sequence[Task]
    ) -> TunedSystem:
        """The finest, unless a simpler one is ahead by more than its standard error."""
        chosen = systems[-1]
        for simpler in reversed(systems[:-1]):
            gains = [
                gain
                for task in tasks
                if (gain := self._gain(task, plays[simpler.name], plays[chosen.name])) is not None
            ]
            if len(gains) > 1:
                error = float(np.std(gains)) / np.sqrt(len(gains))
                if float(np.mean(gains)) > error:
                    chosen = simpler
        return chosen

    def _gain(self, task: Task, ours: Assignment, theirs: Assignment) -> float | None:
        """By how much the first is better on the question, its calls counted."""
        one = self._player.known(task, ours[task.id])
        other = self._player.known(task, theirs[task.id])
        if one is None or other is None or one.score is None or other.score is None:
            return None
        return one.score - other.score - self._settings.call_weight * (one.calls - other.calls)

    async def _measure(
        self, tasks: Sequence[Task], plays: Mapping[str, Assignment], until: float
    ) -> tuple[SystemFigures, ...]:
        """The figures of the systems on as many of the questions as there is money for."""
        has_money = self._has_money(until)
        measured: list[Task] = []
        for start in range(0, len(tasks), _AT_ONCE):
            batch = tasks[start : start + _AT_ONCE]
            planned = [(task, play[task.id]) for task in batch for play in plays.values()]
            new = {
                (task.id, entry if isinstance(entry, Candidate) else entry.name): count_calls(entry)
                for task, entry in planned
                if self._player.known(task, entry) is None
            }
            if not has_money(sum(new.values())) or not await self._player.play_all(planned):
                break
            measured += batch
        return tuple(
            describe_system(name, self._player, measured, play) for name, play in plays.items()
        )

    # -- judge -----------------------------------------------------------------------------

    async def _judge(self, result: TuneResult) -> TuneResult:
        """The nominees against their opponents, on questions not looked at before."""
        assert result.nominees is not None  # noqa: S101 - selected before
        tasks = self._parts.judgement
        best = Candidate.single(result.pool.ranked()[0].id)
        figures = {one.name: one for one in result.finalists}
        samples = choose_samples(figures)
        voting = SelfConsistency(samples)
        plays: dict[str, Assignment] = {
            ULTRA: result.nominees[ULTRA].assign(tasks),
            MINI: result.nominees[MINI].assign(tasks),
            BEST_SINGLE: {task.id: best for task in tasks},
            f"{SELF_CONSISTENCY}@{samples}": {task.id: voting for task in tasks},
        }
        self._player.rank_by(result.pool)
        opponent = await self._opponent(plays)
        plays = {name: play for name, play in plays.items() if name in _ALWAYS or name == opponent}
        judged = await self._measure(tasks, plays, self._ends[TuneStage.JUDGE])
        known = {one.name: one for one in judged}
        scores = {name: scores_of(self._player, tasks, play) for name, play in plays.items()}
        pairs = [(known[ULTRA], known[opponent]), (known[MINI], known[BEST_SINGLE])]
        comparisons = compare_nominees(pairs, scores)
        for one in comparisons:
            self._tell(TuneStage.JUDGE, f"{one.nominee}: {one.verdict} (opponent: {one.opponent})")
        return replace(result, judged=judged, comparisons=comparisons)

    async def _opponent(self, plays: Mapping[str, Assignment]) -> str:
        """The stronger of the best single worker and its self-consistency, on the finalists."""
        names = [name for name in plays if name not in {ULTRA, MINI}]
        tasks = self._parts.finalists
        entries = {name: next(iter(plays[name].values())) for name in names}
        again: dict[str, Assignment] = {
            name: {task.id: entries[name] for task in tasks} for name in names
        }
        until = self._ends[TuneStage.SELECT] + 0.03
        figures = await self._measure(tasks, again, until)
        return max(figures, key=lambda one: (one.share or 0.0, -one.usd)).name
