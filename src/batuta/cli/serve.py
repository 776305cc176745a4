"""`batuta serve`: the chat API over the pool."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from batuta.cli.ask import Conductor, Pool
from batuta.clients import Http
from batuta.config import data_folder, jobs_target, store_target
from batuta.settings import LogForm

if TYPE_CHECKING:
    from batuta.cli.cast import Casting
    from batuta.gateway.models import Orchestra


def command(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 8765,
    pool: Pool = None,
    conductor: Conductor = None,
    history: Annotated[
        Path | None,
        typer.Option(help="Outcomes of the workers (JSONL), for the baselines that learn."),
    ] = None,
    cascade: Annotated[
        Path | None,
        typer.Option(help="A folder of `batuta train selector`, whose cascade is served."),
    ] = None,
    checker: Annotated[
        str | None, typer.Option(help="The worker that checks the cascade's answers.")
    ] = None,
    runs_dir: Annotated[
        list[Path] | None,
        typer.Option(help="Training runs and reports that the web page shows; may be repeated."),
    ] = None,
    log: Annotated[
        LogForm, typer.Option(help="What is logged: only what goes wrong, or requests as JSON.")
    ] = LogForm.QUIET,
) -> None:
    """Serve batuta-mini, batuta-ultra, workers and baselines: an OpenAI-compatible API, a page."""
    # A server is loaded only when one is wanted: it is most of the start-up time.
    from batuta.cli.cast import Casting  # noqa: PLC0415
    from batuta.gateway import LOOP  # noqa: PLC0415
    from batuta.gateway.logs import start_logs  # noqa: PLC0415

    start_logs(log)
    casting = Casting(pool, conductor, history, cascade, checker, tuple(runs_dir or ()))
    anyio.run(_serve, host, port, casting, backend_options=LOOP)


async def _serve(host: str, port: int, casting: Casting) -> None:
    from batuta.cli.cast import greeting, recast_on_hangup  # noqa: PLC0415 - see `command`
    from batuta.gateway.crowd import Traffic  # noqa: PLC0415
    from batuta.gateway.gate import Gate  # noqa: PLC0415
    from batuta.gateway.rate import open_rates  # noqa: PLC0415
    from batuta.gateway.serve import serve  # noqa: PLC0415
    from batuta.gateway.traces import open_traces  # noqa: PLC0415
    from batuta.jobs import open_jobs  # noqa: PLC0415
    from batuta.store import Store  # noqa: PLC0415
    from batuta.store.mint import admin_token, open_mint  # noqa: PLC0415
    from batuta.store.retention import Retention  # noqa: PLC0415

    async with Http() as http:
        ensemble = await casting.choose(http)
        taken = ensemble.server
        async with (
            Store.open(store_target()) as store,
            open_jobs(jobs_target(), taken.keep_days) as jobs,
            open_traces(os.environ) as traces,
            anyio.create_task_group() as tasks,
        ):
            gate = Gate(store, open_mint(data_folder()), admin_token())
            await gate.keyed()
            rates = open_rates(os.environ.get("BATUTA_REDIS") or taken.redis, taken.replicas)
            orchestra = casting.orchestra(
                ensemble,
                store=store,
                jobs=jobs,
                traces=traces,
                traffic=Traffic(taken.running, taken.waiting, taken.patience_s),
                gate=gate,
                rates=rates,
            )

            async def again() -> Orchestra:
                return casting.orchestra(await casting.choose(http))

            def ready(url: str) -> None:
                sys.stderr.write(greeting(ensemble, orchestra, url))

            tasks.start_soon(recast_on_hangup, orchestra, again)
            if taken.keep_days is not None:
                tasks.start_soon(Retention(store.database, taken.keep_days).work)
            try:
                await serve(orchestra, host, port, ready=ready, grace=taken.grace_s)
            finally:
                await rates.close()
            tasks.cancel_scope.cancel()
