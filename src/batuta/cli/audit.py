"""`batuta audit`: show, verify and export the audit trail of administrators' actions."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Annotated, TypeVar

import anyio
import typer

from batuta.cli.json_output import print_json
from batuta.cli.options import Json, command_actor, format_example
from batuta.config.load import store_target
from batuta.core.formatting import format_count, format_time
from batuta.distribution import package_version
from batuta.errors import ConfigError
from batuta.rendering.console import new_table, open_console, print_nothing, print_table
from batuta.rendering.terminal import write_error, write_json, write_output
from batuta.store import Store
from batuta.store.audit import AuditEntry, cef_line

app = typer.Typer(help="The tamper-evident trail of administrators' actions.", no_args_is_help=True)
_WIDE = 110
"""Minimum width of a terminal, in columns, at which a record's details are shown."""

EXIT_BROKEN = 1
_KNOWN = re.compile(r"([0-9]{1,18}):([0-9a-f]{64})")
_T = TypeVar("_T")


class ExportFormat(StrEnum):
    """The format of exported records."""

    JSONL = "jsonl"
    """One JSON object per line."""
    CEF = "cef"
    """Common Event Format, one record per line."""


@app.command("list", epilog=format_example("batuta audit list --action key."))
def list_records(
    action: Annotated[
        str,
        typer.Option(help="An action such as key.created, or a prefix that ends in a dot: key."),
    ] = "",
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of records.")] = 50,
    as_json: Json = False,
) -> None:
    """Show the newest records."""
    records = _with_store(lambda store: store.audit.list(limit, action=action))
    if as_json:
        print_json([one.as_json() for one in records])
        return
    if not records:
        print_nothing("no records")
        return
    console = open_console()
    titles = ("no.", "when", "who", "what", "tenant", "to what", "details")
    shown = titles if console.width >= _WIDE else titles[:-1]
    table = new_table(*shown, right={"no."})
    for one in records:
        cells = (one.actor, one.action, one.tenant, one.subject, one.details)
        table.add_row(*(str(one.seq), format_time(one.at), *cells)[: len(shown)])
    print_table(console, table)


@app.command("verify", epilog=format_example("batuta audit verify"))
def verify_trail(
    known: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER:HASH",
            help="A record that you kept elsewhere: detects that the whole trail was rewritten, or "
            "its newest records removed.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check that no record was changed, inserted, or removed between two others.

    The removal of the newest records, or a rewrite of all, is detected only with --known. Exit
    codes: 0 intact; 1 broken; 2 not checked.
    """
    known_record = None
    if known is not None:
        match = _KNOWN.fullmatch(known)
        if match is None:
            raise ConfigError(
                "--known must be NUMBER:HASH, such as 17:9f2c… with 64 hexadecimal digits"
            )
        known_record = (int(match[1]), match[2])
    verdict = _with_store(lambda store: store.audit.verify(known_record))
    head = "" if verdict.head is None else f"{verdict.head.seq}:{verdict.head.hash}"
    if as_json:
        summary = {"records": verdict.records, "head": head}
        print_json({**summary, "broken_at": verdict.broken_at, "reason": verdict.reason})
    elif verdict.broken_at is None:
        count = f"{format_count(verdict.records)} record{'' if verdict.records == 1 else 's'}"
        newest = f"; the newest is {head}" if head else ""
        write_output(f"the trail is intact: {count}{newest}\n")
    else:
        write_error(
            f"batuta: the trail is broken at record {verdict.broken_at}: {verdict.reason}\n"
        )
    if verdict.broken_at is not None:
        raise typer.Exit(EXIT_BROKEN)


@app.command("export", epilog=format_example("batuta audit export --format cef --after 1200"))
def export_records(
    form: Annotated[
        ExportFormat, typer.Option("--format", help="jsonl or cef.")
    ] = ExportFormat.JSONL,
    after: Annotated[
        int, typer.Option(min=0, max=10**18, help="Only records after this number.")
    ] = 0,
) -> None:
    """Write the records to stdout, oldest first; the export itself is recorded."""

    async def work(store: Store) -> None:
        details = {"format": form.value, "after": after}
        entry = AuditEntry(actor=command_actor(), action="audit.exported", details=details)
        await store.audit.append(entry)
        version = package_version()
        async for record in store.audit.read(after):
            if form is ExportFormat.CEF:
                write_output(f"{cef_line(record, version)}\n")
            else:
                write_json(json.dumps(record.as_json(), ensure_ascii=False))

    _with_store(work)


def _with_store(work: Callable[[Store], Awaitable[_T]]) -> _T:
    async def run() -> _T:
        async with Store.open(store_target()) as store:
            return await work(store)

    return anyio.run(run)
