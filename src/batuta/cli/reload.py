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
from batuta.clients import HttpTransport
from batuta.config.load import LoadedConfig, load_config
from batuta.core import Limits
from batuta.errors import BatutaError
from batuta.gateway.serving.baselines import baseline_models, unavailable_baselines
from batuta.gateway.serving.models import (
    MAX_ROUNDS,
    MINI_LIMITS,
    PageContext,
    ServerState,
    served_models,
)
from batuta.solvers.history import read_history

SIMULATED = (
    "*** SIMULATION: these workers are programs, not language models; they answer only questions "
    "of their small world. For your own models: docs/configuration.md ***\n"
)
"""What a server says first where nobody is real."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What the command line asked for."""

    pool: str | None
    conductor: str | None
    history: Path | None
    cascade: Path | None
    checker: str | None
    folders: tuple[Path, ...]

    async def load_config(self, http: HttpTransport) -> LoadedConfig:
        """The pool and its conductor, as they are set now.

        Raises:
            ConfigError: the settings cannot be used.
        """
        return await load_config(http, pool=self.pool, conductor=self.conductor, rehearses=True)

    def build_state(self, config: LoadedConfig, **options: Any) -> ServerState:
        """The models over the ensemble: the variants, the workers, the baselines.

        Args:
            config: who plays.
            options: what an `ServerState` needs beside its cast.

        Raises:
            BatutaError: the settings or the outcomes cannot be used.
        """
        limits, outcomes = _served_limits(config), self.history or config.history
        most = config.max_rounds or MAX_ROUNDS
        mini = replace(MINI_LIMITS, unknown=limits.unknown)
        models = served_models(
            config.pool,
            config.conductor,
            mini_conductor=config.mini,
            mini=mini,
            ultra=limits,
            max_rounds=most,
        )
        known = read_history(outcomes) if outcomes else None
        folder, checker = self.cascade or config.cascade, self.checker or config.checker
        cascade = open_cascade(folder) if folder else None
        methods = baseline_models(config.pool, limits, known, cascade, checker=checker)
        examples = _example_questions(config)
        return ServerState(
            config.pool,
            config.clients,
            (*models, *methods),
            unavailable_models=unavailable_baselines(known, cascade),
            page_context=PageContext(
                source=config.source,
                simulated=config.simulated,
                examples=examples,
                folders=self.folders,
                history=known,
            ),
            health=config.health,
            timeout_policy=config.timeouts,
            guardrails=config.guardrails,
            moderation=config.moderation,
            **options,
        )


def startup_message(config: LoadedConfig, state: ServerState, url: str) -> str:
    """What the server says when it is ready."""
    names = [model.name for model in state.models]
    served = ", ".join(name for name in names if "/" not in name)
    methods = sum(name.startswith("baseline/") for name in names)
    banner = SIMULATED if config.simulated else ""
    return (
        f"{banner}{config.source} · conductor {config.conductor.name}\n"
        f"serving {served}, {len(config.pool)} workers and {methods} baselines at {url}/v1\n"
        f"the web page: {url}/\n"
    )


async def reload_on_hangup(
    state: ServerState, reload: Callable[[], Awaitable[ServerState]]
) -> None:
    """Reads the settings again when SIGHUP comes; those that cannot be used change nothing."""
    if sys.platform == "win32":
        return
    with anyio.open_signal_receiver(signal.SIGHUP) as signals:
        async for _ in signals:
            try:
                state.reload(await reload())
            except BatutaError as error:
                sys.stderr.write(f"batuta: the settings stay as they were: {error}\n")
            else:
                sys.stderr.write(f"the settings were read again: {len(state.pool)} workers\n")


def _example_questions(config: LoadedConfig) -> tuple[str, ...]:
    """Questions to begin with, where it is known what the workers can answer."""
    if not config.simulated:
        return ()
    from batuta.rehearsal.tasks import draw_tasks  # noqa: PLC0415 - only where it is shown

    return tuple(task.question for task in draw_tasks(None, 5, seed=3, difficulty=4))


def _served_limits(config: LoadedConfig) -> Limits:
    """The file's limits; a served run always has a deadline."""
    limits = config.limits
    return limits if limits.seconds else replace(limits, seconds=15 * 60)
