"""From what the search believes to systems: which workflow for which question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from batuta.core import Task
from batuta.solvers.workflow_selector.model import Ranks, WorkflowSelector
from batuta.solvers.workflow_selector.reader import Floats
from batuta.tune.grouping import Grouping
from batuta.tune.library import Candidate, write_continuation, write_workflow
from batuta.tune.search import Search
from batuta.tune.sparse_design import Matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedSystem:
    """A selector, and the candidates that its workflows are."""

    name: str
    selector: WorkflowSelector
    library: tuple[Candidate, ...]
    expected: float = 0.0
    """The share right that the search expects of it, less what its calls must gain."""

    def assign(self, tasks: Sequence[Task]) -> dict[str, Candidate]:
        """What it runs on each question."""
        orders = self.selector.orders([task.question for task in tasks])
        return {
            task.id: self.library[int(order[0])] for task, order in zip(tasks, orders, strict=True)
        }

    @property
    def workflows_in_use(self) -> tuple[Candidate, ...]:
        """The workflows that it runs somewhere."""
        first = {int(place) for place in self.selector.rank_glw[:, :, 0].ravel()}
        return tuple(self.library[place] for place in sorted(first))


def build_systems(
    search: Search, grouping: Grouping, ease_gl: Floats, title: str
) -> tuple[TunedSystem, ...]:
    """From the simplest to the finest: one workflow for all, one a group, one a group and ease.

    Each has the library's workflows in order of merit, so that where the first cannot be run
    the next one is.
    """
    library = _choose_library(search)
    levels = search.arena.levels
    merit_gwl = _group_merits(search, library, len(grouping.names), levels)
    weights = np.array([search.arena.weights.get(g, 0.0) for g in range(len(grouping.names))])
    overall = np.tensordot(weights / weights.sum(), merit_gwl.mean(axis=2), axes=1)
    by_group = np.broadcast_to(merit_gwl.mean(axis=2, keepdims=True), merit_gwl.shape)
    for_all = np.broadcast_to(overall[None, :, None], merit_gwl.shape)
    merits: Mapping[str, Matrix] = {
        "one for all": for_all,
        "by group": by_group,
        "by group and ease": merit_gwl,
    }
    return tuple(
        TunedSystem(
            name=name,
            library=library,
            expected=_expected_merit(merit, merit_gwl, weights),
            selector=_selector_of(
                merit, overall, grouping=grouping, ease_gl=ease_gl, library=library, title=title
            ),
        )
        for name, merit in merits.items()
    )


def _expected_merit(chosen_by_gwl: Matrix, merit_gwl: Matrix, weights: Matrix) -> float:
    """What the search expects of those that the first matrix ranks first."""
    first = chosen_by_gwl.argmax(axis=1)[:, None, :]
    by_group = np.take_along_axis(merit_gwl, first, axis=1).mean(axis=(1, 2))
    return float(np.average(by_group, weights=weights))


def restrict_to_singles(system: TunedSystem, name: str) -> TunedSystem:
    """The same choosing among single workers only, as batuta-mini does it."""
    kept = [place for place, one in enumerate(system.library) if len(one) == 1]
    number = {place: at for at, place in enumerate(kept)}
    library = tuple(system.library[place] for place in kept)

    def only(order: Ranks) -> list[int]:
        return [number[int(place)] for place in order if int(place) in number]

    known = system.selector
    rank = [[only(order) for order in row] for row in known.rank_glw]
    selector = WorkflowSelector(
        title=known.title,
        reader=known.reader,
        groups=known.groups,
        workflows=tuple(write_workflow(one) for one in library),
        continuations=tuple(write_continuation(one) for one in library),
        rank_glw=np.asarray(rank, np.intp),
        safest_w=np.asarray(only(known.safest_w), np.intp),
        ease_gl=known.ease_gl,
        about=known.about,
    )
    return TunedSystem(name=name, selector=selector, library=library)


def replace_workflow(system: TunedSystem, before: Candidate, after: Candidate) -> TunedSystem:
    """The same choosing, one workflow of it in other words."""
    library = tuple(after if one == before else one for one in system.library)
    known = system.selector
    selector = WorkflowSelector(
        title=known.title,
        reader=known.reader,
        groups=known.groups,
        workflows=tuple(write_workflow(one) for one in library),
        continuations=tuple(write_continuation(one) for one in library),
        rank_glw=known.rank_glw,
        safest_w=known.safest_w,
        ease_gl=known.ease_gl,
        about=known.about,
    )
    return TunedSystem(name=system.name, selector=selector, library=library)


def with_about(system: TunedSystem, about: Mapping[str, Any]) -> WorkflowSelector:
    """The selector, its card saying that besides."""
    known = system.selector
    return WorkflowSelector(
        title=known.title,
        reader=known.reader,
        groups=known.groups,
        workflows=known.workflows,
        continuations=known.continuations,
        rank_glw=known.rank_glw,
        safest_w=known.safest_w,
        ease_gl=known.ease_gl,
        about=about,
    )


def _choose_library(search: Search) -> tuple[Candidate, ...]:
    """Every cell's winner and every single worker; the others are not worth keeping."""
    tried = search.tried_anywhere()
    kept = {one for one in tried if len(one) == 1}
    total = np.zeros(len(tried))
    for group in search.arena.groups:
        kept |= {one for one, _ in search.winners(group)}
        merit = search.merits(tried, group).mean(axis=1)
        kept.add(tried[int(merit.argmax())])
        total += search.arena.weights[group] * merit
    kept.add(tried[int(total.argmax())])
    return tuple(sorted(kept))


def _group_merits(search: Search, library: Sequence[Candidate], groups: int, levels: int) -> Matrix:
    merit_gwl = np.zeros((groups, len(library), levels))
    for group in range(groups):
        merit_gwl[group] = search.merits(library, group)
    return merit_gwl


def _selector_of(
    merit_gwl: Matrix,
    overall: Matrix,
    grouping: Grouping,
    ease_gl: Floats,
    *,
    library: Sequence[Candidate],
    title: str,
) -> WorkflowSelector:
    order = np.argsort(-merit_gwl, axis=1, kind="stable")
    return WorkflowSelector(
        title=title,
        reader=grouping.reader,
        groups=grouping.names,
        workflows=tuple(write_workflow(one) for one in library),
        continuations=tuple(write_continuation(one) for one in library),
        rank_glw=np.ascontiguousarray(order.transpose(0, 2, 1)).astype(np.intp),
        safest_w=np.argsort(-overall, kind="stable").astype(np.intp),
        ease_gl=ease_gl,
    )
