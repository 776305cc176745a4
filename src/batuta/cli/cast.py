"""What `batuta serve` plays with: read from the settings at the start, and again on SIGHUP."""

from __future__ import annotations

import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import anyio

from batuta.baselines import open_cascade
from batuta.clients import Http
from batuta.config import Ensemble, open_ensemble
from batuta.core import Limits
from batuta.errors import BatutaError
from batuta.gateway.baselines import baselines, untaught
from batuta.gateway.models import MINI_LIMITS, MOST_ROUNDS, Orchestra, Showcase, served_models
from batuta.solvers.history import read_history


@final
@dataclass(frozen=True, slots=True)
class Casting:
    """What the command line asked for."""

    pool: str | None
    conductor: str | None
    history: Path | None
    cascade: Path | None
    checker: str | None
    folders: tuple[Path, ...]

    async def choose(self, http: Http) -> Ensemble:
        """The pool and its conductor, as they are set now.

        Raises:
            ConfigError: the settings cannot be used.
        """
        return await open_ensemble(http, pool=self.pool, conductor=self.conductor)

    def orchestra(self, ensemble: Ensemble, **options: Any) -> Orchestra:
        """The models over the ensemble: the variants, the workers, the baselines.

        Args:
            ensemble: who plays.
            options: what an `Orchestra` needs beside its cast.

        Raises:
            BatutaError: the settings or the outcomes cannot be used.
        """
        limits, outcomes = _limits(ensemble), self.history or ensemble.history
        most = ensemble.most_rounds or MOST_ROUNDS
        mini = replace(MINI_LIMITS, unknown=limits.unknown)
        models = served_models(
            ensemble.pool, ensemble.conductor, mini=mini, ultra=limits, most_rounds=most
        )
        known = read_history(outcomes) if outcomes else None
        folder, checker = self.cascade or ensemble.cascade, self.checker or ensemble.checker
        cascade = open_cascade(folder) if folder else None
        methods = baselines(ensemble.pool, limits, known, cascade, checker)
        examples = _examples(ensemble)
        return Orchestra(
            ensemble.pool,
            ensemble.clients,
            (*models, *methods),
            absent=untaught(known, cascade),
            showcase=Showcase(ensemble.source, ensemble.simulated, examples, self.folders, known),
            health=ensemble.health,
            patience=ensemble.patience,
            policies=ensemble.policies,
            **options,
        )


def greeting(ensemble: Ensemble, orchestra: Orchestra, url: str) -> str:
    """What the server says when it is ready."""
    names = [model.name for model in orchestra.models]
    served = ", ".join(name for name in names if "/" not in name)
    methods = sum(name.startswith("baseline/") for name in names)
    return (
        f"{ensemble.source} · conductor {ensemble.conductor.name}\n"
        f"serving {served}, {len(ensemble.pool)} workers and {methods} baselines at {url}/v1\n"
        f"the web page: {url}/\n"
    )


async def recast_on_hangup(orchestra: Orchestra, again: Callable[[], Awaitable[Orchestra]]) -> None:
    """Reads the settings again when SIGHUP comes; those that cannot be used change nothing."""
    if sys.platform == "win32":
        return
    with anyio.open_signal_receiver(signal.SIGHUP) as signals:
        async for _ in signals:
            try:
                orchestra.recast(await again())
            except BatutaError as error:
                sys.stderr.write(f"batuta: the settings stay as they were: {error}\n")
            else:
                sys.stderr.write(f"the settings were read again: {len(orchestra.pool)} workers\n")


def _examples(ensemble: Ensemble) -> tuple[str, ...]:
    """Questions to begin with, where it is known what the workers can answer."""
    if not ensemble.simulated:
        return ()
    from batuta.rehearsal.tasks import tasks  # noqa: PLC0415 - only where it is shown

    return tuple(task.question for task in tasks(None, 5, seed=3, difficulty=4))


def _limits(ensemble: Ensemble) -> Limits:
    """The file's limits; a served run always has a deadline."""
    limits = ensemble.limits
    return limits if limits.seconds else replace(limits, seconds=15 * 60)
