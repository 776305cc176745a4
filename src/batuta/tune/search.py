"""The search: workflows race on the same questions, grown one change at a time.

Each group of questions begins with its single workers. In every round, in every cell, workflows
are drawn by Thompson sampling from the posterior of `surrogate`: those that were tried and those
one change away from the best; they play the next questions of the cell, always in the same order,
so that every comparison is paired and workflows share the calls that they have in common.
Nothing is dropped for good; what is unlikely to be best is no longer drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import final

import numpy as np

from batuta.core import Task, WorkerId
from batuta.tune.library import Candidate, CandidateStep, StepRole, is_part, neighbouring_candidates
from batuta.tune.player import Player
from batuta.tune.surrogate import Cell, Matrix, Observations, Surrogate

_PAIRED = 10
"""Questions that two workflows must share before one is said to earn no more than the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """How the search goes about it."""

    call_weight: float = 0.04
    """Share right that a further call must gain."""
    usd_weight: float = 0.0
    """Share right that a further dollar a question must gain."""
    batch: int = 4
    """Questions that a drawn workflow plays in a cell."""
    groups_at_once: int = 2
    """Groups that have their turn in one round."""
    draws: int = 2
    """Workflows drawn in each cell and round."""
    optimism: float = 1.0
    """Standard deviations that are added to what is expected of a workflow never tried."""
    parents: int = 2
    """The best workflows of a group whose neighbours are looked at."""
    looked_at: int = 120
    """Workflows near the best that were never tried and are looked at in a round, at random."""
    untried: int = 60
    """Workflows that were never tried and may be drawn, in each group."""
    tried: int = 40
    """Workflows that were tried and may be drawn again, in each group."""
    tune_every: int = 16
    """Rounds after which the variances are chosen anew."""
    seed: int = 0


@dataclass(slots=True, kw_only=True)
class Arena:
    """The questions of the search, by cell and in the order in which they are played."""

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


@final
class Search:
    """A search that goes on for as long as there is money."""

    def __init__(
        self,
        arena: Arena,
        player: Player,
        workers: Sequence[WorkerId],
        settings: SearchSettings,
        max_steps: int,
        *,
        usd: Mapping[WorkerId, float],
        has_money: Callable[[int], bool] = lambda _: True,
    ) -> None:
        """Begins with nothing known.

        Args:
            arena: the questions.
            player: who runs.
            workers: who may be in a workflow.
            settings: how to go about it.
            max_steps: of a workflow.
            usd: what a call of each worker costs, in dollars.
            has_money: whether so many calls may be made.
        """
        self.arena = arena
        self.seen = Observations()
        self.settings = settings
        self._player = player
        self._workers = tuple(workers)
        self._max_steps = max_steps
        self._usd = usd
        self._has_money = has_money
        self._rng = np.random.default_rng(settings.seed)
        self._round = 0
        self._turns = dict.fromkeys(arena.groups, 0)
        self._played: dict[tuple[Candidate, Cell], int] = {}
        self.surrogate: Surrogate | None = None

    def take_over(self, tasks: Sequence[Task], candidates: Sequence[Candidate]) -> None:
        """Counts what was played before the questions had cells."""
        for task in tasks:
            for candidate in candidates:
                played = self._player.known(task, candidate)
                if played is not None and played.score is not None:
                    self.seen.add(task.id, candidate, played.score)
        for cell, there in self.arena.cells.items():
            for candidate in candidates:
                known = (self._player.known(task, candidate) is not None for task in there)
                self._played[candidate, cell] = sum(known)

    async def screen(self, each: int, has_money: Callable[[int], bool]) -> bool:
        """Every worker in every role beside each group's best single worker, if there is money."""
        self._fit()
        wanted: dict[tuple[Candidate, Cell], int] = {}
        for group in self.arena.groups:
            best = self.rank(self._tried(group), group)[0].steps[0]
            for worker in self._workers:
                for role in (StepRole.CHECK, StepRole.PLAN, StepRole.LOOK_UP):
                    step = CandidateStep(role, worker)
                    pair = (best, step) if role is StepRole.CHECK else (step, best)
                    for level in range(self.arena.levels):
                        wanted[Candidate(pair), (group, level)] = each
        return await self._play(wanted, has_money)

    async def run_round(self) -> bool:
        """One round in every cell of some groups; False if there is nothing to play or no money."""
        self._fit()
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
        wanted = {one: self._played.get(one, 0) + batch for one in drawn}
        return bool(wanted) and await self._play(wanted)

    def _next_groups(self) -> list[int]:
        """The groups, those first that have had fewest turns for their share of questions."""
        weights = self.arena.weights
        return sorted(self._turns, key=lambda group: (self._turns[group] / weights[group], group))

    def stop_exploring(self) -> None:
        """From now on only workflows that were tried are played, to be surer of the best."""
        self.settings = replace(self.settings, untried=0)

    def _fit(self) -> None:
        tunes = self._round % self.settings.tune_every == 0
        first = self.surrogate is None
        self.surrogate = Surrogate(self.seen, self.arena.of, self.arena.levels, self.surrogate)
        self.surrogate.fit(8 if first else 3, tunes=tunes)

    async def _play(
        self,
        wanted: Mapping[tuple[Candidate, Cell], int],
        has_money: Callable[[int], bool] | None = None,
    ) -> bool:
        """Plays each workflow on that many questions of its cell, counted from the first."""
        planned = [
            (task, candidate, cell)
            for (candidate, cell), until in wanted.items()
            for task in self.arena.cells.get(cell, [])[:until]
        ]
        new = {(t.id, c): len(c) for t, c, _ in planned if self._player.known(t, c) is None}
        if not (has_money or self._has_money)(sum(new.values())):
            return False
        if not await self._player.play_all((task, candidate) for task, candidate, _ in planned):
            return False
        for task, candidate, _ in planned:
            played = self._player.known(task, candidate)
            if played is not None and played.score is not None:
                self.seen.add(task.id, candidate, played.score)
        for (candidate, cell), until in wanted.items():
            self._played[candidate, cell] = min(until, len(self.arena.cells.get(cell, [])))
        return True

    def _draw(self, group: int) -> list[tuple[Candidate, Cell]]:
        """Whom to try in each cell of the group."""
        assert self.surrogate is not None  # noqa: S101 - fitted before
        candidates = self._eligible(group)
        mean, covariance = self.surrogate.predict(candidates, group)
        levels = self.arena.levels
        cost = np.repeat([self.cost(one) for one in candidates], levels)
        open_ = np.array(
            [
                self._played.get((one, (group, level)), 0)
                < len(self.arena.cells.get((group, level), []))
                for one in candidates
                for level in range(levels)
            ]
        )
        expected = self.surrogate.share(mean, np.diag(covariance)) - cost
        lower = np.linalg.cholesky(covariance + 1e-6 * np.eye(len(mean)))
        found: dict[tuple[Candidate, Cell], None] = {}
        for draw in range(self.settings.draws):
            logit = mean + lower @ self._rng.standard_normal(len(mean))
            sample = self.surrogate.share(logit) - cost
            for level in range(levels):
                at = sample[level::levels]
                best = int(at.argmax())
                if draw % 2 and len(at) > 1:  # top-two: the best of those that are not the best
                    leader = int(expected[level::levels].argmax())
                    at = at.copy()
                    at[leader] = -np.inf
                    best = int(at.argmax())
                if open_[best * levels + level]:
                    found[candidates[best], (group, level)] = None
        return list(found)

    def cost(self, candidate: Candidate) -> float:
        """What the workflow's calls must gain to be worth making."""
        dollars = sum(self._usd[step.worker] for step in candidate.steps)
        return self.settings.call_weight * len(candidate) + self.settings.usd_weight * dollars

    def _tried(self, group: int) -> list[Candidate]:
        return sorted({one for one, (where, _) in self._played if where == group})

    def _eligible(self, group: int) -> list[Candidate]:
        """The likeliest of the workflows tried in the group, and of some near the best."""
        tried, settings = self._tried(group), self.settings
        merit = self._quick_merits(tried, group)
        best = _order_places(merit.mean(axis=1), settings.parents)
        leaders = [tried[place] for place in dict.fromkeys((*best, *_winning_places(merit)))]
        known = [tried[place] for place in _order_places(merit.max(axis=1), settings.tried)]
        if not settings.untried:
            return list(dict.fromkeys([*leaders, *known]))
        near = {
            other
            for one in leaders
            for other in neighbouring_candidates(one, self._workers)
            if len(other) <= self._max_steps
        }
        new = sorted(near - set(tried))
        some = self._rng.permutation(len(new))[: settings.looked_at]
        found = self._likeliest([new[place] for place in sorted(some)], group, settings.untried)
        return list(dict.fromkeys([*leaders, *known, *found]))

    def _quick_merits(self, candidates: Sequence[Candidate], group: int) -> Matrix:
        """As `merits`, the doubt left aside."""
        assert self.surrogate is not None  # noqa: S101 - fitted before
        share = self.surrogate.share(self.surrogate.predict_mean(candidates, group))
        costs = np.array([self.cost(one) for one in candidates])
        return share.reshape(len(candidates), -1) - costs[:, None]

    def _likeliest(self, candidates: list[Candidate], group: int, most: int) -> list[Candidate]:
        """Those that may be best somewhere in the group."""
        assert self.surrogate is not None  # noqa: S101 - fitted before
        if len(candidates) <= most:
            return candidates
        mean, deviation = self.surrogate.predict_each(candidates, group)
        high = self.surrogate.share(mean + self.settings.optimism * deviation)
        cost = np.array([self.cost(one) for one in candidates])
        merit = (high.reshape(len(candidates), -1) - cost[:, None]).max(axis=1)
        return [candidates[place] for place in np.argsort(-merit, kind="stable")[:most]]

    def rank(self, candidates: Sequence[Candidate], group: int) -> list[Candidate]:
        """Best first, over the whole group, its calls counted."""
        merit = self.merits(candidates, group).mean(axis=1)
        return [candidates[place] for place in np.argsort(-merit, kind="stable")]

    def merits(self, candidates: Sequence[Candidate], group: int) -> Matrix:
        """The share right expected of each candidate at each level, less what its calls cost."""
        costs = np.array([self.cost(one) for one in candidates])
        return self.shares(candidates, group) - costs[:, None]

    def tried_anywhere(self) -> list[Candidate]:
        """Every workflow that was played in the search."""
        return sorted({one for one, _ in self._played})

    def winners(
        self, group: int, among: Sequence[Candidate] | None = None
    ) -> list[tuple[Candidate, float]]:
        """For each level of the group its best workflow and the share right expected of it."""
        assert self.surrogate is not None  # noqa: S101 - fitted before
        candidates = list(among or self._tried(group))
        share, merit = self.shares(candidates, group), self.merits(candidates, group)
        best = merit.argmax(axis=0)
        return [(candidates[place], float(share[place, at])) for at, place in enumerate(best)]

    def shorten(self, candidate: Candidate, group: int, level: int) -> Candidate:
        """The workflow without the steps that, on the same questions, do not earn what they cost.

        Compared with every shorter workflow that has a part of its steps and was tried in the
        group, on the questions of this level and its neighbours that both have played.
        """
        near = [
            task.id
            for at in (level - 1, level, level + 1)
            for task in self.arena.cells.get((group, at), [])
        ]
        for shorter in sorted(self._tried(group), key=len):
            if not is_part(shorter, candidate):
                continue
            gains = self._gains(candidate, shorter, near)
            wanted = self.cost(candidate) - self.cost(shorter)
            if len(gains) >= _PAIRED and float(np.mean(gains)) <= wanted:
                return shorter
        return candidate

    def _gains(self, one: Candidate, other: Candidate, questions: Sequence[str]) -> list[float]:
        """By how much the first scored more, on each question that both have played."""
        scores, places = self.seen.scores, self.seen.places
        if one not in places or other not in places:
            return []
        pairs = [(scores.get((q, places[one])), scores.get((q, places[other]))) for q in questions]
        return [a - b for a, b in pairs if a is not None and b is not None]

    def shares(self, candidates: Sequence[Candidate], group: int) -> Matrix:
        """The share right expected of each candidate at each level; doubt counts against it."""
        assert self.surrogate is not None  # noqa: S101 - fitted before
        mean, deviation = self.surrogate.predict_each(candidates, group)
        share = self.surrogate.share(mean, deviation**2)
        return share.reshape(len(candidates), -1)


def _order_places(merit: Matrix, most: int) -> list[int]:
    """The places of the greatest, the greatest first."""
    return [int(place) for place in np.argsort(-merit, kind="stable")[:most]]


def _winning_places(merit: Matrix) -> list[int]:
    """For each column the place of its greatest."""
    return [int(place) for place in np.argmax(merit, axis=0)]
