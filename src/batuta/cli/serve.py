"""`batuta serve`: the chat API over the pool."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import anyio
import typer

from batuta.cli.ask import ConductorOption, PoolOption
from batuta.cli.help_text import BASELINES_PANEL, OUTPUT_PANEL
from batuta.config.load import store_target
from batuta.config.settings import LogFormat


def serve_command(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 8765,
    pool: PoolOption = None,
    conductor: ConductorOption = None,
    *,
    history: Annotated[
        Path | None,
        typer.Option(
            help="Outcomes of the workers (JSONL), for the baselines that learn.",
            rich_help_panel=BASELINES_PANEL,
        ),
    ] = None,
    cascade: Annotated[
        Path | None,
        typer.Option(
            help="A folder of `batuta train selector`, whose cascade is served.",
            rich_help_panel=BASELINES_PANEL,
        ),
    ] = None,
    checker: Annotated[
        str | None,
        typer.Option(
            help="The worker that checks the cascade's answers.", rich_help_panel=BASELINES_PANEL
        ),
    ] = None,
    runs_dir: Annotated[
        list[Path] | None,
        typer.Option(
            help="Training runs and reports that the web page shows; may be repeated.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
    log: Annotated[
        LogFormat,
        typer.Option(
            help="What is logged: only what goes wrong, or requests as JSON.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = LogFormat.QUIET,
) -> None:
    """Serve batuta-mini, batuta-ultra, workers and baselines: an OpenAI-compatible API, a page."""
    # A server is loaded only when one is wanted: it is most of the start-up time.
    from batuta.cli.reload import ServeOptions, run_configured_server  # noqa: PLC0415
    from batuta.gateway import LOOP_OPTIONS  # noqa: PLC0415
    from batuta.gateway.telemetry.logs import start_logs  # noqa: PLC0415
    from batuta.store.process_lock import lock_server_store  # noqa: PLC0415

    start_logs(log)
    options = ServeOptions(
        pool=pool,
        conductor=conductor,
        history=history,
        cascade=cascade,
        checker=checker,
        folders=tuple(runs_dir or ()),
    )
    with lock_server_store(store_target()):
        anyio.run(run_configured_server, host, port, options, backend_options=LOOP_OPTIONS)
