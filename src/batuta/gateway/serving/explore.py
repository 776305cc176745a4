"""Exploration: runs an alternative on a share of the requests, to learn which one is better.

Off unless `[mini] explore` is set. An explored run is marked in its trace, in a header and on the
page. Its dollars are reserved from a daily budget before the run; what the run has not spent is
released afterwards.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from random import Random
from typing import final

import anyio

from batuta.conductors import single_worker
from batuta.conductors.bandit import ArmStats, choose_arm
from batuta.conductors.workflow_selector import WorkflowSelector
from batuta.core import Conductor, Limits, Pool, Question, Run, RunId
from batuta.core.run import Exploration
from batuta.errors import StoreError
from batuta.gateway.serving.cost_bound import bound_first_calls, bound_workflow
from batuta.gateway.serving.models import ServedModel
from batuta.store import Store
from batuta.store.exploration import run_nano
from batuta.store.ledger import Bucket, usd_cap_to_nano, usd_to_nano, utc_day

EXPLORED_HEADER = "x-batuta-explored"
MOST_ARMS = 8
"""Maximum number of workflows, or of single models, among the arms (ways to answer a question)."""
AS_SERVED = "as served"
"""The name of the default arm, the system itself, unless the default is a single workflow."""
_CACHE_SECONDS = 5.0
"""Seconds for which an arm's statistics are cached."""
_CACHED_SYSTEMS = 100
"""Maximum number of systems whose statistics are cached."""
_UNSAFE_IN_HEADER = re.compile(r"[^A-Za-z0-9_.,:/ ()>-]")
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Arm:
    """A way to answer a question: an arm of the bandit."""

    name: str
    conductor: Conductor
    usd: Decimal
    """The most that an explored run may spend: a bound on its workflow or on its first calls."""


@dataclass(slots=True, kw_only=True)
class ChosenArm:
    """The arm chosen for a request."""

    choice: Exploration
    conductor: Conductor
    bucket: Bucket | None = None
    """The daily budget that pays for the run; None if the run is not explored."""
    taken: int = 0
    """The reservation in the daily budget, in billionths of a dollar."""
    spent: int = 0
    """The run's cost in billionths of a dollar."""

    @property
    def headers(self) -> dict[str, str]:
        """The response header that names an explored arm; empty if the run is not explored."""
        if not self.choice.explored:
            return {}
        return {EXPLORED_HEADER: _UNSAFE_IN_HEADER.sub("?", self.choice.arm)[:200]}

    @property
    def usd(self) -> float | None:
        """Dollars that the run may cost; None: only its limits apply."""
        return None if self.bucket is None else self.taken / 1e9


@final
class Explorer:
    """Chooses an arm for each request of a model that explores."""

    def __init__(self, store: Store | None) -> None:
        self._store = store
        self._known: dict[str, tuple[float, Mapping[tuple[str, str], tuple[float, float]]]] = {}

    async def choose(
        self,
        served: ServedModel,
        question: Question,
        pool: Pool,
        *,
        limits: Limits,
        run_id: RunId,
        seed: int,
    ) -> ChosenArm | None:
        """Choose an arm.

        Return None if the model does not explore or has no conductor, the daily budget does not
        suffice, or there is no store or it fails.
        """
        explore, store = served.explore, self._store
        if explore is None or store is None or served.conductor is None:
            return None
        cell, arms = list_arms(served.conductor, question, pool, limits=limits)
        system = served.conductor.name
        try:
            known = await self._read(store, system)
            stats = [ArmStats(*known.get((cell, arm.name), (0.0, 0.0))) for arm in arms]
            drawn = choose_arm(stats, explore.share, Random(f"explore {run_id} {seed}"))
            arm = arms[drawn.index]
            chosen = ChosenArm(
                choice=Exploration(
                    system=system,
                    cell=cell,
                    arm=arm.name,
                    explored=drawn.explored,
                    propensity=drawn.propensity,
                ),
                conductor=arm.conductor,
            )
            if not drawn.explored:
                return chosen
            bucket = Bucket(
                f"explore:{served.name}", utc_day(time.time()), usd_cap_to_nano(explore.usd_per_day)
            )
            usd = arm.usd if limits.usd is None else min(arm.usd, Decimal(str(limits.usd)))
            nano = usd_to_nano(usd)
            if not await store.exploration.take(bucket, nano):
                return None
        except StoreError as error:
            _LOG.warning("nothing is explored now: %s", error)
            return None
        chosen.bucket, chosen.taken = bucket, nano
        return chosen

    async def settle(self, chosen: ChosenArm) -> None:
        """Release the unspent dollars, or take the excess; change nothing if the store fails."""
        if chosen.bucket is None or self._store is None:
            return
        with anyio.CancelScope(shield=True):
            try:
                await self._store.exploration.give_back(chosen.bucket, chosen.taken - chosen.spent)
            except StoreError as error:  # the whole reservation counts as spent
                _LOG.warning("an exploration's reservation could not be released: %s", error)

    async def _read(
        self, store: Store, system: str
    ) -> Mapping[tuple[str, str], tuple[float, float]]:
        due, known = self._known.get(system, (0.0, {}))
        if time.monotonic() >= due:
            known = await store.exploration.read(system)
            if len(self._known) >= _CACHED_SYSTEMS:
                self._known.clear()
            self._known[system] = (time.monotonic() + _CACHE_SECONDS, known)
        return known


def note_spent(chosen: ChosenArm, run: Run) -> None:
    """Record what the run cost."""
    chosen.spent = run_nano(run)


def mark_explored(chosen: ChosenArm, run: Run) -> Run:
    """Return the run with the record of how its arm was chosen."""
    return replace(run, header=replace(run.header, exploration=chosen.choice))


def list_arms(
    conductor: Conductor, question: Question, pool: Pool, *, limits: Limits
) -> tuple[str, list[Arm]]:
    """Return the kind of question and its arms, the first of which is the default.

    A workflow selector's arms are the best workflows of its library for the kind of question. The
    arms of any other system, or of a selector without such workflows, are the system itself and the
    models of the pool, each alone. `MOST_ARMS` limits the number of workflows or models.
    """
    if isinstance(conductor, WorkflowSelector):
        cell, ranked = conductor.list_candidates(question.text, pool, limits.steps)
        arms = [
            Arm(each.name, each, bound_workflow(question, each.workflows, pool, limits=limits))
            for each in ranked[:MOST_ARMS]
        ]
        if arms:
            return cell, arms
    most = bound_first_calls(question, pool, limits, direct=False).usd
    singles = [worker for worker in pool if worker.is_model]
    alone = [
        Arm(
            f"worker {worker.id}",
            single,
            bound_first_calls(question, pool.subset((worker.id,)), limits, direct=True).usd,
        )
        for worker in singles[:MOST_ARMS]
        for single in [single_worker(worker.id)]
    ]
    return "all", [Arm(AS_SERVED, conductor, most), *alone]


def summarise_arms(
    known: Mapping[tuple[str, str], tuple[float, float]],
) -> Sequence[tuple[str, str, ArmStats]]:
    """Return rows of a kind of question, an arm and its statistics; per kind, most judged first."""
    rows = [(cell, arm, ArmStats(*stats)) for (cell, arm), stats in known.items()]
    return sorted(rows, key=lambda row: (row[0], -row[2].judged))
