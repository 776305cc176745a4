"""The search for workflows: compares them on the same questions and changes one step at a time.

The search starts from the single workers of each group of questions. Every round takes some groups.
In each of their cells, workflows are drawn by Thompson sampling from the posterior of
`transitions`, among the workflows tried so far and those one change away from the best. A drawn
workflow runs on the next questions of the cell. The order of the questions is always the same, so
that every comparison is paired and workflows share equal calls. No workflow is dropped permanently,
but a workflow that is unlikely to be best is no longer drawn. The last part of the search tries no
new workflows. The best few of each group run on more questions, because a workflow can be deployed
in a group only after enough runs there.

Axes: s posterior draws, c candidates, l levels of ease.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import final

import numpy as np

from batuta.core import Task, WorkerId
from batuta.lab.tune.call_limit import find_call_weight
from batuta.lab.tune.candidate_runner import CandidateRunner
from batuta.lab.tune.library import (
    SOLVERS,
    Candidate,
    CandidateStep,
    StepRole,
    neighbouring_candidates,
    program_pairs,
)
from batuta.lab.tune.logistic_regression import SAMPLES
from batuta.lab.tune.search_settings import Arena, SearchSettings
from batuta.lab.tune.seen_residuals import SeenResiduals, SeenShares
from batuta.lab.tune.sparse_design import Matrix
from batuta.lab.tune.transitions import Cell, Observations, TransitionModel

ENOUGH_RUNS, FEWEST_RUNS = 20, 8
"""The most and the fewest runs that make a workflow deployable in a group. Within these bounds it
needs runs on a quarter of the group's questions, or on all if they are too few."""


@final
class Search:
    """A search for workflows, continued round by round while the budget lasts.

    Its runs raise the errors of `CandidateRunner.run_all`.
    """

    def __init__(
        self,
        arena: Arena,
        runner: CandidateRunner,
        workers: Sequence[WorkerId],
        settings: SearchSettings,
        max_steps: int,
        *,
        usd: Mapping[WorkerId, float],
        fits_budget: Callable[[int], bool] = lambda _: True,
        programs: Sequence[WorkerId] = (),
    ) -> None:
        """Start without outcomes; `usd` has the mean dollars of a call of each worker.

        `fits_budget` tells whether that many further calls fit the budget. `programs` are workers
        that only run the programs of other workers; none of them is in `workers`.
        """
        self.arena = arena
        self.seen = Observations()
        self.settings = settings
        self._runner = runner
        self._workers = tuple(workers)
        self._programs = tuple(programs)
        self._max_steps = max_steps
        self._usd = usd
        self._fits_budget = fits_budget
        self._rng = np.random.default_rng(settings.seed)
        self._round = 0
        self.call_weight = settings.call_weight
        """The price of a call in accuracy, which is raised to keep a limit on mean calls."""
        self._turns = dict.fromkeys(arena.groups, 0)
        self._run_counts: dict[tuple[Candidate, Cell], int] = {}
        self.model = TransitionModel(self.seen, arena.cell_of, arena.levels)
        self._for_all: Candidate | None = None
        self._residuals = SeenResiduals(self.seen, arena, self._model_shares)

    def take_over(self, tasks: Sequence[Task], candidates: Sequence[Candidate]) -> None:
        """Record the results of workflows that ran on these tasks before the search."""
        for task in tasks:
            for candidate in candidates:
                self._note(task, candidate)
        for cell, within in self.arena.cells.items():
            for candidate in candidates:
                known = (self._runner.find_result(task, candidate) is not None for task in within)
                self._run_counts[candidate, cell] = sum(known)

    async def screen(self, each: int, fits_budget: Callable[[int], bool]) -> bool:
        """Try every worker in every role, beside the best single workers of each group.

        Each workflow runs on `each` questions of a group. A worker that decides is tried on three
        answers if possible, because two answers say little about a vote. The best worker also
        breaks the ties of the next two workers. Return False if the budget does not allow it.
        """
        self._fit()
        wanted: dict[tuple[Candidate, Cell], int] = {}
        for group in self.arena.groups:
            singles = [one for one in self.tried_in(group) if len(one) == 1]
            best, *others = (one.steps[0] for one in self.rank(singles, group)[:SOLVERS])
            found = [Candidate((*others, best), stops=True)] if len(others) > 1 else []
            for worker in self._workers:
                for role in (StepRole.CHECK, StepRole.PLAN, StepRole.LOOK_UP):
                    step = CandidateStep(role, worker)
                    pair = (best, step) if role is StepRole.CHECK else (step, best)
                    found.append(Candidate(pair))
                if others:
                    decides = CandidateStep(StepRole.DECIDE, worker)
                    found.append(Candidate((best, *others, decides)))
            for one in found:
                if len(one) <= self._max_steps:
                    wanted |= self._plan_runs(one, group, each)
        return await self._run_batch(wanted, fits_budget)

    async def screen_programs(
        self, each: int, fits_budget: Callable[[int], bool], *, asked: bool
    ) -> bool:
        """Try every pair of a worker that writes programs and a worker that runs them.

        Neither worker answers correctly alone, so no change of a single step leads to such a pair.
        Each pair runs on `each` questions of a group; `asked` is as in `program_pairs`. Return
        False if the budget does not allow it.
        """
        pairs = program_pairs(self._workers, self._programs, asked=asked)
        wanted: dict[tuple[Candidate, Cell], int] = {}
        for pair in pairs:
            for group in self.arena.groups if len(pair) <= self._max_steps else ():
                wanted |= self._plan_runs(pair, group, each)
        return await self._run_batch(wanted, fits_budget)

    async def run_round(self) -> bool:
        """Run one round in every cell of some groups.

        Return False if no run is left or the budget does not allow the round.
        """
        self._fit()
        if self._round % self.settings.tune_every == 0:
            self.weigh_calls()
        self._round += 1
        drawn: list[tuple[Candidate, Cell]] = []
        turns = 0
        for group in self._next_groups():
            self._turns[group] += 1
            found = self._draw(group)
            drawn += found
            turns += bool(found)
            if turns == self.settings.groups_at_once:
                break
        batch = self.settings.batch
        wanted = {one: self._run_counts.get(one, 0) + batch for one in drawn}
        if not self.settings.untried:
            wanted |= self._promote_best()
        return bool(wanted) and await self._run_batch(wanted)

    def _promote_best(self) -> dict[tuple[Candidate, Cell], int]:
        """Return the runs that each group's best workflow still needs to be deployable there.

        The best workflow may have run only in other groups. The workflow that was best over all
        groups when exploration ended needs such runs too, because it will answer questions of new
        kinds.
        """
        tried = self.tried_anywhere()
        if self._for_all is None:
            self._for_all = self._best_overall(tried)
        wanted: dict[tuple[Candidate, Cell], int] = {}
        for group in self.arena.groups:
            for best in (self.rank(tried, group)[0], self._for_all):
                if not self.is_deployable(best, group):
                    wanted |= self._plan_runs(best, group, self._enough_runs(group))
        return wanted

    def _plan_runs(
        self, candidate: Candidate, group: int, many: int
    ) -> dict[tuple[Candidate, Cell], int]:
        """Return `many` runs on the group's questions, spread equally over its levels."""
        cells = [(group, level) for level in self._levels_of(group)]
        each = spread_evenly(many, [len(self.arena.cells[cell]) for cell in cells])
        return {(candidate, cell): each for cell in cells}

    def _best_overall(self, tried: Sequence[Candidate]) -> Candidate:
        weights = self.arena.weights
        merits = (weights[g] * self.merits(tried, g).mean(axis=1) for g in self.arena.groups)
        return tried[int(sum(merits, np.zeros(len(tried))).argmax())]

    def _next_groups(self) -> list[int]:
        """Return the groups in ascending order of their turns so far per question."""
        weights = self.arena.weights
        return sorted(self._turns, key=lambda group: (self._turns[group] / weights[group], group))

    def stop_exploring(self) -> None:
        """Try no new workflows from now on, but measure the best of each group more precisely."""
        self.settings = replace(self.settings, untried=0)

    def weigh_calls(self) -> None:
        """Choose the price of a call at which the best workflows keep the limit on mean calls.

        Without a limit the price is left unchanged.
        """
        most = self.settings.mean_calls
        if most is None:
            return
        rows: list[tuple[Matrix, Matrix, float]] = []
        everywhere = self.tried_anywhere()
        for group in self.arena.groups:
            worth_cl = self.worths(everywhere, group)
            calls_cl = self.count_calls(everywhere, group)
            for level in self._levels_of(group):
                count = len(self.arena.cells[group, level])
                rows.append((worth_cl[:, level], calls_cl[:, level], count))
        worths, calls, counts = zip(*rows, strict=True)
        self.call_weight = find_call_weight(
            np.stack(worths), np.stack(calls), np.array(counts, np.float64),
            most=most, least=self.settings.call_weight,
        )  # fmt: skip

    def _fit(self) -> None:
        tunes = self._round % self.settings.tune_every == 0
        seed = self.settings.seed * 10_007 + self._round
        self.model.fit(seed=seed, tunes=tunes)
        self._residuals.forget()

    async def _run_batch(
        self,
        wanted: Mapping[tuple[Candidate, Cell], int],
        fits_budget: Callable[[int], bool] | None = None,
    ) -> bool:
        """Run each workflow on the first questions of its cell, up to the given number.

        Return False, and record nothing, if the budget does not allow all of these runs.
        """
        planned = [
            (task, candidate, cell)
            for (candidate, cell), until in wanted.items()
            for task in self.arena.cells.get(cell, [])[:until]
        ]
        new = {(t.id, c): len(c) for t, c, _ in planned if self._runner.find_result(t, c) is None}
        if not (fits_budget or self._fits_budget)(sum(new.values())):
            return False
        if not await self._runner.run_all((task, candidate) for task, candidate, _ in planned):
            return False
        for task, candidate, _ in planned:
            self._note(task, candidate)
        for (candidate, cell), until in wanted.items():
            self._run_counts[candidate, cell] = min(until, len(self.arena.cells.get(cell, [])))
        return True

    def _note(self, task: Task, candidate: Candidate) -> None:
        """Record the outcomes of the workflow and of its intermediate answers on the question."""
        result = self._runner.find_result(task, candidate)
        if result is None:
            return
        if result.score is not None:
            self.seen.add(task.id, candidate, result.score)
            self.seen.follow(task.id, candidate, result.trail, agreed=result.agreed)
        for part, score in result.parts:
            self.seen.add(task.id, part, score, on_the_way=True)

    def _draw(self, group: int) -> list[tuple[Candidate, Cell]]:
        candidates = self._eligible(group)
        shares = self._shares_of(candidates, group)
        merit_scl = shares.draw(self._rng) - self.costs(candidates, group)
        leader_l = merit_scl.mean(axis=0).argmax(axis=0)
        found: dict[tuple[Candidate, Cell], None] = {}
        for draw in range(self.settings.draws):
            merit_cl = merit_scl[int(self._rng.integers(SAMPLES))].copy()
            for level in self._levels_of(group):
                if draw % 2:  # top-two Thompson sampling: every second draw excludes the leader
                    merit_cl[leader_l[level], level] = -np.inf
                cell = group, level
                for index in np.argsort(-merit_cl[:, level], kind="stable"):
                    one = candidates[int(index)]
                    if self._run_counts.get((one, cell), 0) < len(self.arena.cells[cell]):
                        found[one, cell] = None
                        break
        return list(found)

    def _levels_of(self, group: int) -> list[int]:
        """Return the levels of the group that have questions."""
        return [level for level in range(self.arena.levels) if (group, level) in self.arena.cells]

    def _shares_of(self, candidates: Sequence[Candidate], group: int) -> SeenShares:
        """Return each candidate's accuracy: the model's estimate, corrected by its own runs."""
        return self._residuals.correct(candidates, group, self._draw_shares(candidates, group))

    def _draw_shares(self, candidates: Sequence[Candidate], group: int) -> Matrix:
        """Draw each candidate's accuracy at each level from the model's posterior: (s, c, l)."""
        return self._fill_levels(self.model.draw_shares(candidates, group), group)

    def _model_shares(self, candidates: Sequence[Candidate], group: int) -> Matrix:
        """Return the model's expectation for each candidate at each level: (c, l)."""
        return self._draw_shares(candidates, group).mean(axis=0)

    def _fill_levels(self, at_levels: Matrix, group: int) -> Matrix:
        """Fill the levels without questions with the mean of the other levels."""
        present = self._levels_of(group)
        if len(present) in {0, self.arena.levels}:
            return at_levels
        filled = np.repeat(
            at_levels[..., present].mean(axis=-1, keepdims=True), self.arena.levels, -1
        )
        filled[..., present] = at_levels[..., present]
        return filled

    def count_calls(self, candidates: Sequence[Candidate], group: int) -> Matrix:
        """Return the expected calls of each candidate at each level: (c, l)."""
        return self._add_up_steps(candidates, group, dict.fromkeys(self._usd, 1.0))

    def _dollar_costs(self, candidates: Sequence[Candidate], group: int) -> Matrix:
        """Return the gain that would justify each candidate's dollars, at each level: (c, l)."""
        weight = self.settings.usd_weight
        if not weight:
            return np.zeros((len(candidates), self.arena.levels))
        each = {worker: weight * usd for worker, usd in self._usd.items()}
        return self._add_up_steps(candidates, group, each)

    def costs(
        self, candidates: Sequence[Candidate], group: int, call_weight: float | None = None
    ) -> Matrix:
        """Return the gain that would justify each candidate's calls and dollars: (c, l)."""
        weight = self.call_weight if call_weight is None else call_weight
        calls = self.count_calls(candidates, group)
        return weight * calls + self._dollar_costs(candidates, group)

    def _add_up_steps(
        self, candidates: Sequence[Candidate], group: int, each: Mapping[WorkerId, float]
    ) -> Matrix:
        """Sum a value per worker over the steps, weighted by the probability that a step runs."""
        rows: list[Matrix] = []
        for one in candidates:
            parts = [each[step.worker] for step in one.steps]
            first = one.first_round
            later = 1 - self.model.agreement(one, group) if one.stops else np.zeros(1)
            total = sum(parts[:first]) + later * sum(parts[first:])
            rows.append(total + np.zeros(self.arena.levels))
        return self._fill_levels(np.stack(rows), group)

    def tried_in(self, group: int) -> list[Candidate]:
        """Return every workflow that ran in the group, sorted."""
        return sorted({one for one, (where, _) in self._run_counts if where == group})

    def _eligible(self, group: int) -> list[Candidate]:
        """Return the most promising workflows tried in the group, and new ones near the best."""
        tried, settings = self.tried_in(group), self.settings
        merit = self.merits(tried, group)
        if not settings.untried:
            return self._finalists(tried, merit, group)
        best = _top_indices(merit.mean(axis=1), settings.parents)
        leaders = [tried[index] for index in dict.fromkeys((*best, *_winner_indices(merit)))]
        known = [tried[index] for index in _top_indices(merit.max(axis=1), settings.tried)]
        near = {
            other
            for one in leaders
            for other in neighbouring_candidates(one, self._workers)
            if len(other) <= self._max_steps
        }
        new = sorted(near - set(tried))
        some = self._rng.permutation(len(new))[: settings.looked_at]
        found = self._most_promising(
            [new[index] for index in sorted(some)], group, settings.untried
        )
        return list(dict.fromkeys([*leaders, *known, *found]))

    def _finalists(
        self, tried: Sequence[Candidate], merit_cl: Matrix, group: int
    ) -> list[Candidate]:
        """Return the best few workflows of the group, and any that is clearly better at one level.

        The remaining budget can separate four workflows, but not a dozen. The best few differ in
        roles or workers, because the budget cannot separate two wordings either.
        """
        first: dict[tuple[object, ...], int] = {}
        for index in _top_indices(merit_cl.mean(axis=1), len(tried)):
            one = tried[index]
            first.setdefault((one.stops, *((s.role, s.worker) for s in one.steps)), index)
        indices = list(first.values())[: self.settings.finalists]
        deviation_cl = self._shares_of(tried, group).deviation_cl
        for level, index in enumerate(_winner_indices(merit_cl)):
            lead = merit_cl[index, level] - merit_cl[indices, level].max()
            if lead > deviation_cl[index, level]:
                indices.append(index)
        return [tried[index] for index in dict.fromkeys(indices)]

    def _most_promising(
        self, candidates: list[Candidate], group: int, most: int
    ) -> list[Candidate]:
        """Return the candidates that are most likely to be best somewhere in the group."""
        if len(candidates) <= most:
            return candidates
        shares = self._shares_of(candidates, group)
        high_cl = shares.mean_cl + self.settings.optimism * shares.deviation_cl
        merit = (high_cl - self.costs(candidates, group)).max(axis=1)
        return [candidates[index] for index in np.argsort(-merit, kind="stable")[:most]]

    def rank(self, candidates: Sequence[Candidate], group: int) -> list[Candidate]:
        """Sort candidates by merit over the whole group, the best first."""
        merit = self.merits(candidates, group).mean(axis=1)
        return [candidates[index] for index in np.argsort(-merit, kind="stable")]

    def merits(
        self, candidates: Sequence[Candidate], group: int, call_weight: float | None = None
    ) -> Matrix:
        """Return each candidate's merit at each level: (c, l).

        The merit is a cautious estimate of accuracy, less the price of calls and dollars.
        `call_weight` replaces the search's price of a call.
        """
        share_cl = self._cautious_shares(candidates, group)
        return share_cl - self.costs(candidates, group, call_weight)

    def worths(self, candidates: Sequence[Candidate], group: int) -> Matrix:
        """Return each candidate's merit at each level, without the price of calls: (c, l)."""
        return self._cautious_shares(candidates, group) - self._dollar_costs(candidates, group)

    def _cautious_shares(self, candidates: Sequence[Candidate], group: int) -> Matrix:
        shares = self._shares_of(candidates, group)
        return shares.mean_cl - self.settings.caution * shares.deviation_cl

    def count_runs(self, candidate: Candidate, group: int) -> int:
        """Return the number of the group's questions on which the workflow itself ran."""
        return sum(
            self._run_counts.get((candidate, (group, level)), 0) for level in self._levels_of(group)
        )

    def is_deployable(self, candidate: Candidate, group: int) -> bool:
        """Return whether the workflow ran on enough questions of the group to be deployed there.

        A single worker is always deployable.
        """
        enough = self._enough_runs(group)
        return len(candidate) == 1 or self.count_runs(candidate, group) >= enough

    def _enough_runs(self, group: int) -> int:
        size = sum(len(self.arena.cells[group, level]) for level in self._levels_of(group))
        return min(ENOUGH_RUNS, max(size // 4, FEWEST_RUNS), size)

    def tried_anywhere(self) -> list[Candidate]:
        """Return every workflow that ran in the search, sorted."""
        return sorted({one for one, _ in self._run_counts})

    def winners(self, group: int) -> list[tuple[Candidate, float]]:
        """Return each level's best workflow in the group with its expected accuracy."""
        candidates = self.tried_in(group)
        share, merit = self.shares(candidates, group), self.merits(candidates, group)
        best = merit.argmax(axis=0)
        return [(candidates[index], float(share[index, at])) for at, index in enumerate(best)]

    def shares(self, candidates: Sequence[Candidate], group: int) -> Matrix:
        """Return the expected accuracy of each candidate at each level: (c, l)."""
        return self._shares_of(candidates, group).mean_cl


def spread_evenly(wanted: int, sizes: Sequence[int]) -> int:
    """Return the least number of questions per cell that gives `wanted` questions in total.

    The number may exceed the size of small cells, all of whose questions are used.
    """
    each = 0
    while sum(min(each, size) for size in sizes) < min(wanted, sum(sizes)):
        each += 1
    return each


def _top_indices(merit: Matrix, most: int) -> list[int]:
    """Return the indices of the greatest values, in descending order."""
    return [int(index) for index in np.argsort(-merit, kind="stable")[:most]]


def _winner_indices(merit: Matrix) -> list[int]:
    """Return the index of the greatest value of each column."""
    return [int(index) for index in np.argmax(merit, axis=0)]
