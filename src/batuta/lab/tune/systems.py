"""Builds systems, which assign a workflow to each question, from the search's results.

Axes: g groups, w workflows of the library, l levels of ease. A cell is a level of a group; c stands
for the cells of all groups and, last, a cell for questions of new kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from batuta.conductors.features import Floats
from batuta.conductors.workflow_selector.model import Ranks, WorkflowSelector
from batuta.core import Task
from batuta.lab.tune.call_limit import find_call_weight
from batuta.lab.tune.grouping import Grouping
from batuta.lab.tune.library import Candidate, write_continuation, write_workflow
from batuta.lab.tune.search import Search
from batuta.lab.tune.sparse_design import Matrix

ONE_FOR_ALL, BY_GROUP, BY_CELL = "one for all", "by group", "by group and ease"
_MORE_FOR_A_CALL = 0.01, 0.02, 0.04, 0.08, 0.16
"""Additions to the price of a call, with which workflows of fewer calls are found."""
_LESS_FOR_A_CALL = 0.0, 0.25, 0.5, 0.75
"""Shares of the price's excess over its minimum, with which workflows of more calls are found."""
_UNKNOWN = 100.0
"""The amount subtracted from the worth of a workflow in a group where it ran on too few questions,
so that the workflow is chosen there only if no other can be run."""
SYSTEM_NAMES = ONE_FOR_ALL, BY_GROUP, BY_CELL
"""The names of the systems, from the simplest to the finest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedSystem:
    """A selector of workflows, and the candidates behind its workflows."""

    name: str
    selector: WorkflowSelector
    library: tuple[Candidate, ...]
    """The candidates, in the order of the selector's workflows."""
    expected: float = 0.0
    """The accuracy that the search expects of the system, net of the price of calls and dollars."""
    call_weight: float = 0.0
    """The price of a call with which the table built the system; 0 if it was restricted later."""

    def assign(self, tasks: Sequence[Task]) -> dict[str, Candidate]:
        """Return the workflow that the system runs on each question, by the question's id."""
        orders = self.selector.orders([task.question for task in tasks])
        return {
            task.id: self.library[int(order[0])] for task, order in zip(tasks, orders, strict=True)
        }

    @property
    def workflows_in_use(self) -> tuple[Candidate, ...]:
        """The workflows that rank first in at least one cell of a group."""
        first = {int(index) for index in self.selector.rank_glw[:, :, 0].ravel()}
        return tuple(self.library[index] for index in sorted(first))


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemTable:
    """The search's results, from which systems are built."""

    library: tuple[Candidate, ...]
    worth_gwl: Matrix
    """The expected worth of each workflow in each cell: a cautious accuracy, less the price of
    dollars but not of calls. It is far below zero without enough runs in the group."""
    calls_gwl: Matrix
    """The expected calls of each workflow in each cell."""
    runs_gw: Matrix
    """The number of questions of each group on which each workflow ran."""
    weight_g: Matrix
    """Each group's share of the questions."""
    call_weight: float
    """The minimum price of a call, in accuracy."""
    grouping: Grouping
    ease_gl: Floats
    """The thresholds between the levels of ease of each group, ascending: (g, l - 1)."""

    def build(self, name: str, call_weight: float) -> TunedSystem:
        """Build the system of that name with that price of a call.

        In each cell the system ranks the library's workflows by merit, so that the next workflow
        runs if the first cannot.
        """
        merit_gwl = self.worth_gwl - call_weight * self.calls_gwl
        chosen_gwl = self._as_fine_as(name, merit_gwl)
        least_gwl = self.worth_gwl - self.call_weight * self.calls_gwl
        order_gwl = np.argsort(-chosen_gwl, axis=1, kind="stable")
        selector = WorkflowSelector(
            title="tuned",
            reader=self.grouping.reader,
            groups=self.grouping.names,
            workflows=tuple(write_workflow(one) for one in self.library),
            continuations=tuple(write_continuation(one) for one in self.library),
            rank_glw=np.ascontiguousarray(order_gwl.transpose(0, 2, 1)).astype(np.intp),
            safest_w=np.argsort(-self._over_all(merit_gwl), kind="stable").astype(np.intp),
            ease_gl=self.ease_gl,
        )
        return TunedSystem(
            name=name,
            selector=selector,
            library=self.library,
            expected=_expected_merit(chosen_gwl, least_gwl, self.weight_g),
            call_weight=call_weight,
        )

    def expect_merit(self, system: TunedSystem) -> float:
        """Return the accuracy expected of the system, net of the price of calls and dollars."""
        merit_gwl = self.worth_gwl - self.call_weight * self.calls_gwl
        first_gl = system.selector.rank_glw[:, :, 0]
        index_of = [self.library.index(one) for one in system.library]
        groups, levels = first_gl.shape
        merit_gl = np.array(
            [
                [merit_gwl[g, index_of[int(first_gl[g, at])], at] for at in range(levels)]
                for g in range(groups)
            ]
        )
        return float(np.average(merit_gl.mean(axis=1), weights=self.weight_g))

    def expect_single(self, one: Candidate) -> float:
        """Return `expect_merit` of the system that runs one workflow on all questions."""
        index = self.library.index(one)
        merit_gl = self.worth_gwl[:, index] - self.call_weight * self.calls_gwl[:, index]
        return float(np.average(merit_gl.mean(axis=1), weights=self.weight_g))

    def find_weight(self, name: str, count_c: Matrix, *, most: float, least: float) -> float:
        """Return the lowest price of a call, at least `least`, at which the system keeps a limit.

        If no price keeps it, only calls matter at the returned price. `most` is the limit on mean
        calls per question. `count_c` is as `count_cells` returns it.
        """
        return find_call_weight(
            self._by_cell(name, self.worth_gwl),
            self._by_cell(name, self.calls_gwl),
            count_c,
            most=most,
            least=least,
        )

    def at_most_calls(self) -> SystemTable:
        """Return the table with each workflow's maximum calls instead of its expected calls."""
        longest_w = np.array([len(one) for one in self.library], np.float64)
        calls_gwl = np.broadcast_to(longest_w[None, :, None], self.calls_gwl.shape)
        return replace(self, calls_gwl=calls_gwl)

    def count_cells(self, tasks: Sequence[Task]) -> Matrix:
        """Return the number of questions in each cell; those of new kinds come last: (c,)."""
        groups, _, levels = self.worth_gwl.shape
        cells = self.build(SYSTEM_NAMES[-1], 0.0).selector.find_cells([t.question for t in tasks])
        index = [groups * levels if c is None else c[0] * levels + c[1] for c in cells]
        return np.bincount(index, minlength=groups * levels + 1).astype(np.float64)

    def expect_calls(self, system: TunedSystem, tasks: Sequence[Task]) -> Matrix:
        """Return the system's expected calls on each of the questions, (n,)."""
        over_all = self._over_all(self.calls_gwl)
        assignment = system.assign(tasks)
        found: list[float] = []
        for task, cell in zip(
            tasks, system.selector.find_cells([task.question for task in tasks]), strict=True
        ):
            index = self.library.index(assignment[task.id])
            at = over_all[index] if cell is None else self.calls_gwl[cell[0], index, cell[1]]
            found.append(float(at))
        return np.array(found)

    def _by_cell(self, name: str, of_gwl: Matrix) -> Matrix:
        """Return the values by cell, with a last row for questions of new kinds: (c, w)."""
        fine_gwl = self._as_fine_as(name, of_gwl)
        rows_cw = fine_gwl.transpose(0, 2, 1).reshape(-1, len(self.library))
        return np.concatenate([rows_cw, self._over_all(of_gwl)[None]])

    def _over_all(self, of_gwl: Matrix) -> Matrix:
        return self.weight_g / self.weight_g.sum() @ of_gwl.mean(axis=2)

    def _as_fine_as(self, name: str, of_gwl: Matrix) -> Matrix:
        if name == ONE_FOR_ALL:
            return np.broadcast_to(self._over_all(of_gwl)[None, :, None], of_gwl.shape)
        mean_gwl = of_gwl.mean(axis=2, keepdims=True)
        return of_gwl if name == BY_CELL else np.broadcast_to(mean_gwl, of_gwl.shape)


def tabulate_systems(search: Search, grouping: Grouping, ease_gl: Floats) -> SystemTable:
    """Return the search's estimates for the workflows that are worth keeping.

    `ease_gl` has the thresholds between the levels of ease: (g, l - 1).
    """
    library = _choose_library(search)
    groups = range(len(grouping.names))
    runs_gw = np.array([[search.count_runs(one, group) for one in library] for group in groups])
    known_gw = np.array([[search.is_deployable(one, group) for one in library] for group in groups])
    worth_gwl = np.stack([search.worths(library, group) for group in groups])
    return SystemTable(
        library=library,
        worth_gwl=worth_gwl - _UNKNOWN * ~known_gw[:, :, None],
        runs_gw=runs_gw.astype(np.float64),
        calls_gwl=np.stack([search.count_calls(library, group) for group in groups]),
        weight_g=np.array([search.arena.weights.get(group, 0.0) for group in groups]),
        call_weight=search.settings.call_weight,
        grouping=grouping,
        ease_gl=ease_gl,
    )


def _expected_merit(chosen_by_gwl: Matrix, merit_gwl: Matrix, weights: Matrix) -> float:
    """Return the mean merit of the workflows that `chosen_by_gwl` ranks first in each cell."""
    first = chosen_by_gwl.argmax(axis=1)[:, None, :]
    by_group = np.take_along_axis(merit_gwl, first, axis=1).mean(axis=(1, 2))
    return float(np.average(by_group, weights=weights))


def restrict_to_singles(system: TunedSystem, name: str, table: SystemTable) -> TunedSystem:
    """Return the system restricted to single workers, as batuta-mini runs them."""
    kept = [index for index, one in enumerate(system.library) if len(one) == 1]
    number = {index: at for at, index in enumerate(kept)}
    library = tuple(system.library[index] for index in kept)

    def only(order: Ranks) -> list[int]:
        return [number[int(index)] for index in order if int(index) in number]

    known = system.selector
    rank = [[only(order) for order in row] for row in known.rank_glw]
    selector = replace(
        known,
        workflows=tuple(write_workflow(one) for one in library),
        continuations=tuple(write_continuation(one) for one in library),
        rank_glw=np.asarray(rank, np.intp),
        safest_w=np.asarray(only(known.safest_w), np.intp),
    )
    single = TunedSystem(name=name, selector=selector, library=library)
    return replace(single, expected=table.expect_merit(single))


def replace_workflow(system: TunedSystem, before: Candidate, after: Candidate) -> TunedSystem:
    """Return the system with the workflow `before` replaced by `after`, its rewording."""
    library = tuple(after if one == before else one for one in system.library)
    selector = replace(
        system.selector,
        workflows=tuple(write_workflow(one) for one in library),
        continuations=tuple(write_continuation(one) for one in library),
    )
    return replace(system, selector=selector, library=library)


def _choose_library(search: Search) -> tuple[Candidate, ...]:
    """Return every single worker, and the best workflows of each cell, of each group, and of all.

    A workflow must have run on enough questions of the group, and the best workflow of all groups
    on enough questions of every group. If the mean calls are limited, workflows that are best at
    other prices of a call are kept too, because the search's price is based on estimated calls.
    """
    tried = search.tried_anywhere()
    kept = {one for one in tried if len(one) == 1}
    weights = [search.call_weight]
    if search.settings.mean_calls is not None:
        least = search.settings.call_weight
        weights += [least + less * (search.call_weight - least) for less in _LESS_FOR_A_CALL]
        weights += [search.call_weight + more for more in _MORE_FOR_A_CALL]
    everywhere = [
        one for one in tried if all(search.is_deployable(one, g) for g in search.arena.groups)
    ]
    total_kw = np.zeros((len(weights), len(everywhere)))
    for group in search.arena.groups:
        known = [one for one in search.tried_in(group) if search.is_deployable(one, group)]
        for number, weight in enumerate(weights):
            merits = search.merits(known, group, weight)
            kept |= {known[int(index)] for index in merits.argmax(axis=0)}
            kept.add(known[int(merits.mean(axis=1).argmax())])
            of_all = search.merits(everywhere, group, weight).mean(axis=1)
            total_kw[number] += search.arena.weights[group] * of_all
    kept |= {everywhere[int(index)] for index in total_kw.argmax(axis=1)}
    return tuple(sorted(kept))
