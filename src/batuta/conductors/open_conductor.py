"""Opens a conductor over a pool from its name, or from the folder of a trained one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from batuta.conductors.fixed_workflows import (
    best_single_worker,
    panel_fusion,
    parallel_vote,
    plan_solve_verify,
    read_workflow_conductor,
    revised_by_critique,
    single_worker,
    worker_chain,
)
from batuta.conductors.llm_conductor import LLMConductor
from batuta.conductors.prompted import ConductorOptions, prompted_conductor
from batuta.conductors.research import Research, slide_writer
from batuta.conductors.selector import is_selector, open_selector
from batuta.conductors.sessions.lead import LeadAndHands
from batuta.conductors.sessions.patterns import Advise, Escalate, Gate
from batuta.conductors.workflow_selector import is_workflow_selector, open_workflow_selector
from batuta.core import Client, Conductor, Pool, WorkerId
from batuta.core.suggestions import suggest_names
from batuta.embedded.policy import ConductorCard, is_policy, open_policy
from batuta.errors import ConfigError, WorkflowError

PROMPTED = "prompted/"
"""The prefix of a prompted conductor's name."""
FIXED: Mapping[str, Callable[[], Conductor]] = {
    "advise": Advise,
    "alone": best_single_worker,
    "best": best_single_worker,
    "critique": revised_by_critique,
    "escalate": Escalate,
    "fusion": panel_fusion,
    "plan-solve-verify": plan_solve_verify,
    "research": Research,
    "slides": slide_writer,
    "vote": parallel_vote,
}
"""Conductors that need no model of their own."""
_CONSULTING: Mapping[str, Callable[[Mapping[WorkerId, Client]], Conductor]] = {
    "gate": lambda clients: Gate(clients=clients),
    "lead-and-hands": lambda clients: LeadAndHands(clients=clients),
}
"""Conductors that ask workers of the pool themselves, to judge or to plan."""
WORKFLOW_SUFFIX = ".txt"
"""The suffix of a file with one workflow."""
_SINGLE = "single/"
_CHAIN = "chain/"
"""The prefix of a chain's name, followed by workers' ids separated by `>`."""


def open_trained(place: Path) -> LLMConductor:
    """Open the conductor trained into that folder or GGUF file, which runs in this process.

    Raises:
        ConfigError: the folder or file cannot be used.
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
    """Open the conductor of that name or folder.

    Args:
        name: a worker's id, whose model is prompted; one of `FIXED`; `gate`;
            `lead-and-hands`; `single/<id>`; `chain/<id>><id>`, workers in a row; the folder of a
            trained conductor or selector; a trained conductor's GGUF file; or a file `*.txt` with
            one workflow.
        pool: the workers that it conducts.
        clients: the workers' clients.
        options: the options of a prompted conductor.

    Raises:
        ConfigError: there is no such conductor, or its folder cannot be used.
    """
    place = Path(name)
    opened = _open_place(place, pool) if place.exists() else None
    if opened is not None:
        return opened
    if name in FIXED:
        return FIXED[name]()
    if name in _CONSULTING:
        return _CONSULTING[name](clients)
    if name.startswith(_SINGLE) and name.removeprefix(_SINGLE) in pool:
        return single_worker(name.removeprefix(_SINGLE))
    chain = _chain_workers(name)
    if chain and all(one in pool for one in chain):
        return worker_chain(chain)
    if name not in pool:
        known = suggest_names(name, (*FIXED, *_CONSULTING, *(worker.id for worker in pool)))
        raise ConfigError(f"there is no conductor {name!r} and no folder of a trained one; {known}")
    worker = pool[name]
    return prompted_conductor(f"{PROMPTED}{worker.id}", worker, clients[worker.id], options)


def _open_place(place: Path, pool: Pool) -> Conductor | None:
    """Open what was trained into that folder or file; return None if it is nothing known.

    Raises:
        ConfigError: the folder or file cannot be used.
    """
    if place.is_dir() and is_selector(place):
        return open_selector(place)
    if place.is_dir() and is_workflow_selector(place):
        return open_workflow_selector(place)
    if is_policy(place):
        ConductorCard.read(place).check_pool(worker.id for worker in pool)
        return open_trained(place)
    if place.is_file() and place.suffix == WORKFLOW_SUFFIX:
        return _open_workflow(place, pool)
    return None


def _open_workflow(place: Path, pool: Pool) -> Conductor:
    """Open the workflow of that file."""
    try:
        return read_workflow_conductor(place, pool)
    except WorkflowError as error:
        raise ConfigError(f"{place} holds no workflow over this pool: {error}") from None


def _chain_workers(name: str) -> tuple[str, ...]:
    """Return the workers in a chain's name; none if the name is not a chain's."""
    if not name.startswith(_CHAIN):
        return ()
    return tuple(one.strip() for one in name.removeprefix(_CHAIN).split(">"))
