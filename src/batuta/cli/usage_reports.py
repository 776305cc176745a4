"""`batuta keys activity` and `refusals`: the usage screen's figures, from the same queries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

import typer

from batuta.cli import json_output
from batuta.cli.options import Json, format_example
from batuta.core.formatting import format_count, format_percent, format_seconds
from batuta.errors import ConfigError
from batuta.rendering.console import new_table, open_console, print_nothing, print_table
from batuta.store import Store
from batuta.store.activity import ACTIVITY_GROUPS, Activity, activity_json, report_activity
from batuta.store.hours import day_start
from batuta.store.refusals import REFUSAL_GROUPS, RefusalGroup

WithStore = Callable[[Callable[[Store], Awaitable[Any]]], Any]
_Tenant = Annotated[str | None, typer.Option(help="Only requests of this tenant.")]
_Since = Annotated[str | None, typer.Option(help="The first day, such as 2026-11-21.")]


def add_usage_commands(app: typer.Typer, with_store: WithStore) -> None:
    """Add the commands to the group; `with_store` runs a function on the open store."""

    @app.command("activity", epilog=format_example("batuta keys activity --by hour"))
    def show_activity(  # pyright: ignore[reportUnusedFunction] - registered
        by: Annotated[
            str, typer.Option(help=f"Comma-separated groups: {', '.join(ACTIVITY_GROUPS)}.")
        ] = "day",
        tenant: _Tenant = None,
        since: _Since = None,
        *,
        json: Json = False,
    ) -> None:
        """Show runs, how many had no answer, their times and their cached input."""
        groups = _split_groups(by)
        first = parse_day("--since", since)

        async def work(store: Store) -> list[Activity]:
            return await report_activity(store.database, groups, tenant=tenant, since=first)

        found: list[Activity] = with_store(work)
        if json:
            json_output.print_json([activity_json(groups, one) for one in found])
            return
        _print_activity(groups, found)

    @app.command("refusals", epilog=format_example("batuta keys refusals --by day,key,code"))
    def show_refusals(  # pyright: ignore[reportUnusedFunction] - registered
        by: Annotated[
            str, typer.Option(help=f"Comma-separated groups: {', '.join(REFUSAL_GROUPS)}.")
        ] = "day,tenant,code",
        tenant: _Tenant = None,
        since: _Since = None,
        *,
        json: Json = False,
    ) -> None:
        """Show requests that were refused by the rate limits or budgets of a key or tenant."""
        groups = _split_groups(by)
        first = parse_day("--since", since)

        async def work(store: Store) -> list[RefusalGroup]:
            return await store.refusals.report(groups, tenant=tenant, since=first)

        found: list[RefusalGroup] = with_store(work)
        if json:
            rows = [dict(zip(groups, one.group, strict=True)) for one in found]
            counted = zip(rows, found, strict=True)
            json_output.print_json([{**row, "requests": one.requests} for row, one in counted])
            return
        _print_refusals(groups, found)


def _print_refusals(groups: Sequence[str], found: Sequence[RefusalGroup]) -> None:
    if not found:
        print_nothing("no refused requests")
        return
    table = new_table(*groups, "requests", right={"requests"})
    for one in found:
        table.add_row(*map(_format_name, one.group), format_count(one.requests))
    print_table(open_console(), table)


def _print_activity(groups: Sequence[str], found: Sequence[Activity]) -> None:
    if not found:
        print_nothing("no runs")
        return
    columns = ("runs", "without an answer", "median", "p95", "input", "cached", "output")
    table = new_table(*groups, *columns, right=columns)
    for one in found:
        times = [
            "–" if value is None else format_seconds(value)
            for value in (one.median_seconds, one.p95_seconds)
        ]
        share = "–" if one.cached_share is None else format_percent(one.cached_share)
        table.add_row(
            *map(_format_name, one.group),
            format_count(one.runs),
            format_count(one.unanswered),
            *times,
            format_count(one.input_tokens),
            share,
            format_count(one.output_tokens),
        )
    print_table(open_console(), table)


def _split_groups(by: str) -> list[str]:
    return [name.strip() for name in by.split(",") if name.strip()]


def parse_day(option: str, day: str | None) -> float:
    """Return the start of an option's day (UTC) in Unix seconds; 0.0 if it was not given.

    Raises:
        ConfigError: the value is not a day.
    """
    try:
        return 0.0 if day is None else day_start(day)
    except ValueError:
        raise ConfigError(f"{option} must be a day such as 2026-11-21, not {day!r:.40}") from None


def _format_name(name: str | None) -> str:
    return name or "–"
