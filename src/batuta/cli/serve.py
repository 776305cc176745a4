"""`batuta serve`: the chat API over the pool."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import anyio
import typer

from batuta.cli.ask import Conductor, Pool
from batuta.clients import Http
from batuta.config import Ensemble, jobs_target, open_ensemble, store_target
from batuta.core import Limits


def command(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 8765,
    pool: Pool = None,
    conductor: Conductor = None,
    history: Annotated[
        Path | None,
        typer.Option(help="Outcomes of the workers (JSONL), for the baselines that learn."),
    ] = None,
    runs_dir: Annotated[
        list[Path] | None,
        typer.Option(help="Training runs and reports that the web page shows; may be repeated."),
    ] = None,
) -> None:
    """Serve batuta-mini, batuta-ultra, workers and baselines: an OpenAI-compatible API, a page."""
    from batuta.gateway import LOOP  # noqa: PLC0415 - see `_serve`

    folders = tuple(runs_dir or ())
    anyio.run(_serve, host, port, pool, conductor, history, folders, backend_options=LOOP)


async def _serve(
    host: str,
    port: int,
    pool: str | None,
    conductor: str | None,
    history: Path | None,
    folders: tuple[Path, ...],
) -> None:
    # A server is loaded only when one is wanted: it is most of the start-up time.
    from batuta.gateway.baselines import baselines, untaught  # noqa: PLC0415
    from batuta.gateway.models import (  # noqa: PLC0415
        MOST_ROUNDS,
        Orchestra,
        Showcase,
        served_models,
    )
    from batuta.gateway.serve import serve  # noqa: PLC0415
    from batuta.jobs import open_jobs  # noqa: PLC0415
    from batuta.solvers.history import read_history  # noqa: PLC0415
    from batuta.store import Store  # noqa: PLC0415

    async with (
        Http() as http,
        Store.open(store_target()) as store,
        open_jobs(jobs_target()) as jobs,
    ):
        ensemble = await open_ensemble(http, pool=pool, conductor=conductor)
        limits, outcomes = _limits(ensemble), history or ensemble.history
        most = ensemble.most_rounds or MOST_ROUNDS
        models = served_models(ensemble.pool, ensemble.conductor, ultra=limits, most_rounds=most)
        known = read_history(outcomes) if outcomes else None
        methods = baselines(ensemble.pool, limits, known)
        orchestra = Orchestra(
            ensemble.pool,
            ensemble.clients,
            (*models, *methods),
            store=store,
            jobs=jobs,
            absent={} if known else untaught(),
            showcase=Showcase(
                ensemble.source, ensemble.simulated, _examples(ensemble), folders, known
            ),
            health=ensemble.health,
            patience=ensemble.patience,
            policies=ensemble.policies,
        )

        def ready(url: str) -> None:
            names = ", ".join(model.name for model in models[:2])
            sys.stderr.write(
                f"{ensemble.source} · conductor {ensemble.conductor.name}\n"
                f"serving {names}, {len(ensemble.pool)} workers and {len(methods)} baselines "
                f"at {url}/v1\n"
                f"the web page: {url}/\n"
            )

        await serve(orchestra, host, port, ready=ready)


def _examples(ensemble: Ensemble) -> tuple[str, ...]:
    """Questions to begin with, where it is known what the workers can answer."""
    if not ensemble.simulated:
        return ()
    from batuta.rehearsal.tasks import tasks  # noqa: PLC0415 - see `_serve`

    return tuple(task.question for task in tasks(None, 5, seed=3, difficulty=4))


def _limits(ensemble: Ensemble) -> Limits:
    """The file's limits; a served run always has a deadline."""
    limits = ensemble.limits
    return limits if limits.seconds else replace(limits, seconds=15 * 60)
