"""`batuta open`: open a stored run on a server's web page."""

from __future__ import annotations

import webbrowser
from typing import Annotated
from urllib.parse import quote

import anyio
import typer

from batuta.cli.options import check_url
from batuta.cli.runs import RunArgument, load_summary
from batuta.config.load import store_target
from batuta.rendering.terminal import write_output

_DEFAULT_SERVER = "http://127.0.0.1:8765"


def open_command(
    run_id: RunArgument,
    server: Annotated[
        str, typer.Option(help="The URL of the server whose page is opened.")
    ] = _DEFAULT_SERVER,
    print_only: Annotated[
        bool, typer.Option("--print", help="Print the URL without opening it.")
    ] = False,
) -> None:
    """Open a stored run on the web page of a running `batuta serve`."""
    check_url("--server", server)
    summary = anyio.run(load_summary, run_id, store_target())
    address = f"{server.rstrip('/')}/ui/runs/{quote(summary.id, safe='')}"
    write_output(f"{address}\n")
    if not print_only:
        webbrowser.open(address)
