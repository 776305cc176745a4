"""`batuta serve`: the OpenAI-compatible API and the web page."""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import anyio
import typer

from batuta.cli.options import BASELINES_PANEL, OUTPUT_PANEL, PoolOptions, with_option_groups
from batuta.config.load import store_target
from batuta.config.settings import LogFormat
from batuta.rendering.terminal import write_error


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineOptions:
    """Options for served baselines that learn from recorded outcomes."""

    panel: ClassVar = BASELINES_PANEL

    history: Annotated[
        Path | None,
        typer.Option(help="Recorded outcomes of the workers (JSONL), for baselines that learn."),
    ] = None
    cascade: Annotated[
        Path | None,
        typer.Option(
            file_okay=False, help="A folder from `batuta train selector`; its cascade is served."
        ),
    ] = None
    checker: Annotated[
        str | None, typer.Option(help="The worker that checks the cascade's answers.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOutput:
    """Options for the web page and the log."""

    panel: ClassVar = OUTPUT_PANEL

    open_page: Annotated[
        bool, typer.Option("--open", help="Open the web page in a browser once it is ready.")
    ] = False
    runs_dir: Annotated[
        list[Path] | None,
        typer.Option(
            file_okay=False,
            help="A folder of training runs and reports for the web page; may be repeated.",
        ),
    ] = None
    log: Annotated[
        LogFormat,
        typer.Option(help="quiet: warnings and errors, as text; json: also each request, as JSON."),
    ] = LogFormat.QUIET


@with_option_groups
def serve_command(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port to listen on; 0: any free port.")
    ] = 8765,
    *,
    pool: PoolOptions,
    baselines: BaselineOptions,
    output: ServeOutput,
) -> None:
    """Serve batuta-mini, batuta-ultra, workers and baselines by APIs and a web page."""
    for folder in output.runs_dir or ():
        if not folder.exists():
            write_error(
                f"batuta: {folder} does not exist yet; the page shows its files as they appear\n"
            )
    pool.pull_missing()
    if sys.platform != "win32":  # a reload during the start waits for `reload_on_hangup`
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    # Imported only here: loading the server takes most of the start-up time.
    from batuta.gateway import LOOP_OPTIONS  # noqa: PLC0415
    from batuta.gateway.assemble import ServeOptions, run_configured_server  # noqa: PLC0415
    from batuta.gateway.telemetry.logs import start_logs  # noqa: PLC0415
    from batuta.store.process_lock import lock_server_store  # noqa: PLC0415

    start_logs(output.log)
    options = ServeOptions(
        pool=pool.pool,
        conductor=pool.conductor,
        history=baselines.history,
        cascade=baselines.cascade,
        checker=baselines.checker,
        folders=tuple(output.runs_dir or ()),
        opens_page=output.open_page,
    )
    with lock_server_store(store_target()):
        anyio.run(run_configured_server, host, port, options, backend_options=LOOP_OPTIONS)
    write_error("the server has stopped\n")
