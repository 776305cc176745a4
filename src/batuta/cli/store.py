"""`batuta store`: copy the database of runs, keys and spending to another one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from batuta.cli.json_output import print_json
from batuta.cli.options import Json, format_example
from batuta.config.load import store_target
from batuta.rendering.console import new_table, open_console, print_table
from batuta.rendering.terminal import write_error, write_progress

if TYPE_CHECKING:
    from batuta.store.transfer import TableTransfer

app = typer.Typer(help="The database of runs, keys and spending.", no_args_is_help=True)
EXIT_UNEQUAL = 1


@app.callback()
def _root() -> None:
    """Keep `migrate` a subcommand: typer would run the only command without its name."""


@app.command(epilog=format_example("batuta store migrate postgresql://batuta@db/batuta"))
def migrate(
    target: Annotated[
        str,
        typer.Argument(help="The database to write: postgresql://user@host/database, or a path."),
    ],
    source: Annotated[
        str | None,
        typer.Option(help="The database to copy, a path or a URL; default: the configured store."),
    ] = None,
    json: Json = False,
) -> None:
    """Copy all but background jobs to another database; run it again until both are equal.

    Rows that only the other database has are deleted, except those of the ledger. The server may
    keep running; stop it before the last copy. Numbers of rows and sums of dollars are compared.
    Exit codes: 0 both are equal; 1 they differ; 2 a database cannot be used.
    """
    from batuta.store.transfer import transfer_store  # noqa: PLC0415 - loads SQLAlchemy

    transfers = anyio.run(transfer_store, source or store_target(), target, _show_progress)
    if sys.stderr.isatty():
        write_error("\n")
    if json:
        print_json([_describe_transfer(transfer) for transfer in transfers])
    else:
        _print_transfers(transfers)
    if not all(one.equal for one in transfers):
        write_error(
            "batuta: the databases differ: run the same command again; if they still differ after "
            "the server has stopped, copy to an empty database\n"
        )
        raise typer.Exit(EXIT_UNEQUAL)


def _show_progress(table: str, rows: int) -> None:
    write_progress(f"{table}: {rows:,} rows")


def _describe_transfer(transfer: TableTransfer) -> dict[str, object]:
    return {
        "table": transfer.table,
        "source": transfer.source,
        "target": transfer.target,
        "written": transfer.written,
        "forgotten": transfer.forgotten,
        "source_usd": str(transfer.source_usd),
        "target_usd": str(transfer.target_usd),
        "equal": transfer.equal,
    }


def _print_transfers(transfers: tuple[TableTransfer, ...]) -> None:
    figures = ("source", "target", "written", "deleted", "dollars")
    table = new_table("table", *figures, "", right=figures)
    for one in transfers:
        dollars = f"{one.target_usd}" if one.source_usd or one.target_usd else ""
        counts = (one.source, one.target, one.written, one.forgotten)
        mark = "equal" if one.equal else "differs"
        table.add_row(one.table, *(f"{count:,}" for count in counts), dollars, mark)
    print_table(open_console(), table)
