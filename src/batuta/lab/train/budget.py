"""The dollar limit of a training, `pool.max_usd`, which also holds across resumptions.

The maximum cost of a call is reserved before the call. Each process has an equal part of the
remaining money, and a file of the calls that it has paid. A refused call says nothing about the
quality of its workflow, so the policy does not learn from that batch and the training ends.
"""

from __future__ import annotations

import os
from decimal import Decimal
from pathlib import Path
from typing import ClassVar, final

from batuta.clients.providers import Identity, client_identity
from batuta.core import CallListener, Client, Failure, Grade, Reply, Request, Run, Worker
from batuta.core.conductor import NULL_LISTENER
from batuta.core.formatting import format_usd
from batuta.errors import BatutaError, ClientError, ConfigError, LimitReachedError
from batuta.lab.train.settings import TrainSettings
from batuta.lab.tune.spending import Allowance, BudgetedClient, PaidCalls, TuneBudget

REFUSED = "the training's budget does not suffice for another call"


class CallRefusedError(ClientError):
    """The training's budget forbids a call."""

    code: ClassVar[str] = "budget_spent"

    def __init__(self) -> None:
        super().__init__(REFUSED)


class BudgetSpentError(BatutaError):
    """The training's budget is spent; the message says what is kept and how to resume."""


@final
class TrainingBudget:
    """One process's part of a training's budget, less the dollars spent by earlier runs."""

    def __init__(self, settings: TrainSettings, folder: Path) -> None:
        """Read the dollars that all processes have paid so far.

        Raises:
            ConfigError: the budget cannot be enforced, as `budget_problem` says.
            StoreError: a list of paid calls cannot be read.
            ValueError: the settings have no budget.
        """
        most = settings.pool.max_usd
        if most is None:
            raise ValueError("there is no budget in the settings")
        if problem := budget_problem(settings):
            raise ConfigError(problem)
        self.max_usd = most
        rank = int(os.environ.get("RANK", "0"))
        processes = int(os.environ.get("WORLD_SIZE", "1"))
        self._paid = PaidCalls(_paid_file(folder, rank))
        own = self._paid.sum_up()[1]
        self._others = paid_so_far(folder) - own
        left = max(most - own - self._others, Decimal(0))
        self._budget = TuneBudget(Allowance(usd=own + left / processes), self._paid)

    @property
    def usd(self) -> Decimal:
        """Dollars spent by this process, and by the others before this object was created."""
        return self._budget.usd + self._others

    def limit_client(self, client: Client, worker: Worker) -> Client:
        """Return a client that counts its calls against the budget."""
        return _LimitedClient(BudgetedClient(client, worker, self._budget))

    def close(self) -> None:
        """Close the list of paid calls."""
        self._paid.__exit__(None, None, None)


@final
class _LimitedClient:
    """A client that raises `CallRefusedError` for a call that the training's budget forbids."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __repr__(self) -> str:
        return f"Limited({self._client!r})"

    @property
    def identity(self) -> Identity:
        """The identity of the wrapped client."""
        return client_identity(self._client)

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Return the reply of the wrapped client.

        Raises:
            CallRefusedError: the budget does not suffice.
        """
        try:
            return await self._client.complete(request, listener)
        except LimitReachedError:
            raise CallRefusedError from None


def budget_problem(settings: TrainSettings) -> str | None:
    """Return a sentence that says why the budget cannot be enforced, or None."""
    pool = settings.pool
    if pool.max_usd is None:
        return None
    if pool.journal is False:
        return "pool.max_usd needs pool.journal: without a journal a resumed training pays again"
    if pool.executor != "local":
        return (
            f"pool.max_usd is counted by the processes that train, and pool.executor = "
            f'"{pool.executor}" calls workers in other processes: use "local", or unset max_usd'
        )
    return None


def paid_so_far(folder: Path) -> Decimal:
    """Return the dollars that all processes of the trainings in that folder have paid.

    Raises:
        StoreError: a list of paid calls cannot be read.
    """
    total = Decimal(0)
    for file in paid_files(folder):
        with PaidCalls(file) as paid:
            total += paid.sum_up()[1]
    return total


def paid_files(folder: Path) -> list[Path]:
    """Return the lists of paid calls that processes of a training have left in that folder."""
    return sorted(folder.glob(_paid_file(folder, "*").name))


def _paid_file(folder: Path, rank: int | str) -> Path:
    return folder / f"paid-{rank}.db"


def is_refused(run: Run, grade: Grade | None) -> bool:
    """Return whether the budget refused a call of the run, or the judge's call about its answer."""
    if grade is not None and grade.reason == REFUSED:
        return True
    results = (step.result for step in run.steps)
    return any(isinstance(r, Failure) and r.code == CallRefusedError.code for r in results)


def describe_spending(budget: TrainingBudget) -> str:
    """Return a sentence that says how much of the budget is spent."""
    return (
        f"pool.max_usd = {format_usd(budget.max_usd)} does not suffice for another call "
        f"({format_usd(budget.usd)} spent)"
    )
