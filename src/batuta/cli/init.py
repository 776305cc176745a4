"""`batuta init`: find the models callable from this machine and write a `batuta.toml`."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import anyio
import typer
from rich.text import Text

from batuta.clients import HttpTransport, WorkerCheck, WorkerSpec, check_worker
from batuta.clients.discovery import Discovery
from batuta.config.load import DEFAULT_FILE, NO_MODELS, find_workers
from batuta.config.pool_file import describe_workers, quote_text
from batuta.config.workers import open_worker_client
from batuta.core import Pool, WorkerId
from batuta.core.formatting import format_seconds, join_words
from batuta.errors import ConfigError
from batuta.rendering.console import new_table, open_console, print_table
from batuta.rendering.terminal import write_error

CHECK_SECONDS = 30.0
"""Seconds of silence after which a check fails; a local model may have to be loaded first."""
HEAD = """\
# Written by `batuta init`. Every setting: docs/configuration.md. Keys stay in the environment.
# Prices, abilities and public leaderboard scores of models are looked up; a line here overrides
# them. Describe what a worker is good at, and its accuracy, as soon as you know them:
#     description = "Strong at code."
#     strength = 0.8                      # share of questions that it answers correctly alone
#     skills = { maths = 0.7, code = 0.5 }
"""
TAIL = """
[conductor]                     # the worker that writes batuta-ultra's workflows
worker = {conductor}

[limits]
{limit}
deadline_s = 300
"""
DOLLAR_LIMIT = "max_cost_usd = 0.50             # per run"
NO_DOLLAR_LIMIT = """\
# max_cost_usd = 0.50           # per run; first give every worker a price, such as
#                               # price = { input = 1, output = 4 }: a call without a price
#                               # counts as $15/$75 per million tokens"""
"""An unknown price is estimated so high that hardly any question would fit the limit."""


def command(
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path(DEFAULT_FILE),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    checked: Annotated[
        bool,
        typer.Option(
            "--check/--no-check", help="Ask each worker for one word; leave out those that fail."
        ),
    ] = True,
) -> None:
    """Find models by keys, addresses, local servers and downloads, and write a batuta.toml.

    On a terminal the command asks before it writes; elsewhere it does not ask. Exit codes: 0
    written; 1 not confirmed; 2 no worker is found or answers, or the file exists or cannot be
    written.
    """
    if out.exists() and not force:
        raise ConfigError(
            f"{out} exists: name another file with --out, or overwrite it with --force"
        )
    found, checks = anyio.run(_find_and_check, os.environ, checked)
    specs = [spec for spec in found.specs if _is_answering(checks.get(spec.worker.id))]
    _print_found(found, checks)
    if not specs:
        raise ConfigError(_describe_failures(checks))
    if sys.stdin.isatty() and not typer.confirm(
        f"Write {out} with {_worker_count_text(specs)}?", default=True
    ):
        raise typer.Exit(1)
    try:
        out.write_text(settings_text(specs, os.environ), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}") from None
    _print_next(out, specs)


def settings_text(specs: Iterable[WorkerSpec], environ: Mapping[str, str]) -> str:
    """Return a settings file (TOML) with these workers; the best one conducts.

    Args:
        specs: at least one worker.
        environ: the environment, searched for the variable with a server's key.
    """
    known = list(specs)
    best = Pool(tuple(spec.worker for spec in known)).ranked()[0]
    workers = describe_workers(known, environ)
    priced = all(spec.worker.price for spec in known)
    limit = DOLLAR_LIMIT if priced else NO_DOLLAR_LIMIT
    return HEAD + workers + TAIL.format(conductor=quote_text(best.id), limit=limit)


async def _find_and_check(
    environ: Mapping[str, str], checked: bool
) -> tuple[Discovery, dict[WorkerId, WorkerCheck]]:
    """Find models and, if `checked`, ask each for one word.

    Raises:
        ConfigError: no model is found.
    """
    checks: dict[WorkerId, WorkerCheck] = {}
    async with HttpTransport(idle=CHECK_SECONDS) as http:
        found = await find_workers(environ, http)
        if not found.specs:
            silent = join_words(found.silent)
            raise ConfigError(
                f"no server answers at {silent}: start it, or unset the variable"
                if silent
                else NO_MODELS
            )

        async def ask_one(spec: WorkerSpec) -> None:
            client = open_worker_client(spec, http, environ=environ, attempts=1)
            checks[spec.worker.id] = await check_worker(client, spec.worker)

        async with anyio.create_task_group() as group:
            for spec in found.specs if checked else ():
                group.start_soon(ask_one, spec)
    return found, checks


def _describe_failures(checks: Mapping[WorkerId, WorkerCheck]) -> str:
    errors = {str(result.error) for result in checks.values()}
    reason = errors.pop() if len(errors) == 1 else "see the table for the reason of each"
    return f"no worker answers, so nothing was written: {reason}"


def _is_answering(result: WorkerCheck | None) -> bool:
    return result is None or result.error is None


def _worker_count_text(specs: list[WorkerSpec]) -> str:
    return f"{len(specs)} worker{'' if len(specs) == 1 else 's'}"


def _print_found(found: Discovery, checks: dict[WorkerId, WorkerCheck]) -> None:
    table = new_table("", "worker", "$/M in", "$/M out", "result", right={"$/M in", "$/M out"})
    for spec in found.specs:
        result, price = checks.get(spec.worker.id), spec.worker.price
        mark = "·" if result is None else Text("✗", "red") if result.error else Text("✓", "green")
        state = "not asked" if result is None else f"it answers in {format_seconds(result.seconds)}"
        shown = f"left out: {result.error}" if result and result.error else state
        paid = (f"{price.input:f}", f"{price.output:f}") if price else ("unknown", "unknown")
        table.add_row(mark, Text(spec.worker.id, "cyan"), *paid, shown)
    console = open_console(stderr=True)
    print_table(console, table)
    for name in found.silent:
        console.print(f"no server answers at {name}", style="yellow")


def _print_next(out: Path, specs: list[WorkerSpec]) -> None:
    at = "" if out == Path(DEFAULT_FILE) else f" --pool {shlex.quote(str(out))}"
    best = Pool(tuple(spec.worker for spec in specs)).ranked()[0].id
    commands = {
        f'batuta ask{at} "…" --plan': "the workflow, and what it is expected to cost",
        f'batuta ask{at} "…"': "the answer",
        f"batuta serve{at}": "an OpenAI-compatible API and a page",
    }
    width = max(map(len, commands))
    lines = "".join(f"  {command:<{width}}   {about}\n" for command, about in commands.items())
    write_error(
        f"\n{out} has {_worker_count_text(specs)}. {best} writes the workflows and "
        f"answers as batuta-mini: change this under [conductor] and [mini].\n\nNext:\n{lines}"
    )
