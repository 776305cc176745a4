"""From a conductor's name, or the folder of a trained one, to a conductor over a pool."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from batuta.conductors.fixed_workflows import (
    best_single_worker,
    panel_fusion,
    parallel_vote,
    plan_solve_verify,
    revised_by_critique,
    single_worker,
    worker_chain,
)
from batuta.conductors.llm_conductor import LLMConductor
from batuta.conductors.prompted import ConductorOptions, prompted_conductor
from batuta.conductors.selector import is_selector, open_selector
from batuta.conductors.workflow_selector import is_workflow_selector, open_workflow_selector
from batuta.core import Client, Conductor, Pool, WorkerId
from batuta.core.suggestions import suggest_names
from batuta.embedded.policy import ConductorCard, is_policy, open_policy
from batuta.errors import ConfigError

PROMPTED = "prompted/"
"""What the name of a conductor that is prompted begins with."""
FIXED = {
    "best": best_single_worker,
    "critique": revised_by_critique,
    "fusion": panel_fusion,
    "plan-solve-verify": plan_solve_verify,
    "vote": parallel_vote,
}
"""Conductors that write the same workflow for every question."""
_SINGLE = "single/"
_CHAIN = "chain/"
"""Before the ids of workers in a row, `>` between them."""


def open_trained(place: Path) -> LLMConductor:
    """The conductor that was trained into that folder or GGUF file, computed in this process.

    Raises:
        ConfigError: it cannot be used.
    """
    model, card, name = open_policy(place)
    card.check_prompt()
    return LLMConductor(
        name=name,
        client=model,
        rendering=card.rendering,
        sampling=card.sampling,
        rounds=card.rounds,
    )


def open_conductor(
    name: str, pool: Pool, clients: Mapping[WorkerId, Client], options: ConductorOptions
) -> Conductor:
    """The conductor of that name, or of that folder.

    Args:
        name: a worker's id, whose model is prompted; one of `FIXED`; `single/<id>`;
            `chain/<id>><id>`, workers in a row; the folder of a trained conductor or selector; or a
            trained conductor's GGUF file.
        pool: whom it conducts.
        clients: how the workers are called.
        options: of a prompted conductor.

    Raises:
        ConfigError: there is none, or its folder cannot be used.
    """
    place = Path(name)
    opened = _open_place(place, pool) if place.exists() else None
    if opened is not None:
        return opened
    if name in FIXED:
        return FIXED[name]()
    if name.startswith(_SINGLE) and name.removeprefix(_SINGLE) in pool:
        return single_worker(name.removeprefix(_SINGLE))
    row = _chain_workers(name)
    if row and all(one in pool for one in row):
        return worker_chain(row)
    if name not in pool:
        known = suggest_names(name, (*FIXED, *(worker.id for worker in pool)))
        raise ConfigError(f"there is no conductor {name!r} and no folder of a trained one; {known}")
    worker = pool[name]
    return prompted_conductor(f"{PROMPTED}{worker.id}", worker, clients[worker.id], options)


def _open_place(place: Path, pool: Pool) -> Conductor | None:
    """What was trained into that folder or file; None: nothing.

    Raises:
        ConfigError: it cannot be used.
    """
    if place.is_dir() and is_selector(place):
        return open_selector(place)
    if place.is_dir() and is_workflow_selector(place):
        return open_workflow_selector(place)
    if is_policy(place):
        ConductorCard.read(place).check_pool(worker.id for worker in pool)
        return open_trained(place)
    return None


def _chain_workers(name: str) -> tuple[str, ...]:
    """The workers that a chain's name means; none, if it is no chain's name."""
    if not name.startswith(_CHAIN):
        return ()
    return tuple(one.strip() for one in name.removeprefix(_CHAIN).split(">"))
