"""`batuta keys`: API keys, their limits and budgets, and what was spent."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, fields
from decimal import Decimal
from typing import Annotated, Any, TypeVar

import anyio
import typer

from batuta.cli import json_output
from batuta.cli.options import (
    ACCESS_PANEL,
    BUDGET_PANEL,
    RATE_PANEL,
    Json,
    command_actor,
    format_example,
    with_option_groups,
)
from batuta.cli.usage_reports import add_usage_commands, parse_day
from batuta.clients import HttpTransport
from batuta.config.load import store_target
from batuta.core.formatting import format_cost, format_count, format_usd
from batuta.environment import data_folder
from batuta.errors import BatutaError, ConfigError
from batuta.rendering.console import new_table, open_console, print_nothing, print_table
from batuta.rendering.terminal import write_error, write_output
from batuta.store import Store
from batuta.store.key_hasher import IssuedKey, KeyHasher, open_key_hasher
from batuta.store.key_permissions import KeyPermissions, permissions_json, read_permissions
from batuta.store.keys import ApiKey, key_json, tenant_json
from batuta.store.spend_report import SPEND_GROUPS, SpendGroup, report_spending, spend_group_json

app = typer.Typer(help="API keys, their limits and budgets.", no_args_is_help=True)

DEFAULT_TENANT = "default"
"""The tenant of a key that is created without one."""
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MOST_SECONDS = 36500 * 86400.0
_OPTION_OF = {
    "models": "--model",
    "workers_allow": "--allow",
    "workers_deny": "--deny",
    "tags": "--tag",
    "tools": "--tool",
}
"""The options whose names differ from those of the permissions that they set."""
_T = TypeVar("_T")

Id = Annotated[str, typer.Argument(help="The key's id, as `batuta keys list` shows it.")]
PerDay = Annotated[
    str | None,
    typer.Option(metavar="DOLLARS", help="Budget per day (UTC).", rich_help_panel=BUDGET_PANEL),
]
PerMonth = Annotated[
    str | None,
    typer.Option(metavar="DOLLARS", help="Budget per month (UTC).", rich_help_panel=BUDGET_PANEL),
]
Expires = Annotated[
    str | None,
    typer.Option(
        help="When the key expires: 90s, 15m, 12h or 30d from now.", rich_help_panel=ACCESS_PANEL
    ),
]
ServedPool = Annotated[
    str | None,
    typer.Option(
        "--pool",
        help="The pool, as for batuta serve; the named models and workers must exist in it.",
        rich_help_panel=ACCESS_PANEL,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLimits:
    """Options for a key's permissions; each field has the name of the permission that it sets."""

    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            help="A model that the key may use, such as batuta-mini or worker/*; may be repeated.",
            rich_help_panel=ACCESS_PANEL,
        ),
    ] = None
    max_cost: Annotated[
        str | None,
        typer.Option(
            metavar="DOLLARS", help="Maximum cost of a run.", rich_help_panel=BUDGET_PANEL
        ),
    ] = None
    rpm: Annotated[
        int | None,
        typer.Option(
            min=1, help="Maximum number of requests per minute.", rich_help_panel=RATE_PANEL
        ),
    ] = None
    tpm: Annotated[
        int | None,
        typer.Option(
            min=1, help="Maximum number of tokens per minute.", rich_help_panel=RATE_PANEL
        ),
    ] = None
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1, help="Maximum number of requests at the same time.", rich_help_panel=RATE_PANEL
        ),
    ] = None
    per_day: PerDay = None
    per_month: PerMonth = None
    session_max_cost: Annotated[
        str | None,
        typer.Option(
            metavar="DOLLARS", help="Maximum cost of a session.", rich_help_panel=BUDGET_PANEL
        ),
    ] = None
    session_max_turns: Annotated[
        int | None,
        typer.Option(
            min=1, help="Maximum number of turns of a session.", rich_help_panel=BUDGET_PANEL
        ),
    ] = None
    workers_allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow",
            help="A worker that may receive the key's requests: an id, or a tag as tag:region:eu; "
            "may be repeated.",
            rich_help_panel=ACCESS_PANEL,
        ),
    ] = None
    workers_deny: Annotated[
        list[str] | None,
        typer.Option(
            "--deny",
            help="A worker that may not receive the key's requests: an id, or a tag as "
            "tag:region:us; may be repeated.",
            rich_help_panel=ACCESS_PANEL,
        ),
    ] = None

    tags: Annotated[
        list[str] | None,
        typer.Option(
            "--tag",
            help="A tag for all questions of the key, for plan rules; may be repeated.",
            rich_help_panel=ACCESS_PANEL,
        ),
    ] = None

    tools: Annotated[
        list[str] | None,
        typer.Option(
            "--tool",
            help="A server tool that the key's requests may use; may be repeated. none: no tool.",
            rich_help_panel=ACCESS_PANEL,
        ),
    ] = None

    min_confidence: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Confidence below which the key's answers count as unsure; needs \\[confidence].",
            rich_help_panel=ACCESS_PANEL,
        ),
    ] = None

    def given(self) -> dict[str, Any]:
        """Return the limits that were given, in the form that `read_permissions` takes."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@app.command(
    "create",
    epilog=format_example("batuta keys create laptop --model batuta-mini --per-day 5"),
)
@with_option_groups
def create_key(
    name: Annotated[str, typer.Argument(help="What the key is for.")],
    tenant: Annotated[
        str,
        typer.Option(help="The key's tenant, created if it is new; its keys share their runs."),
    ] = DEFAULT_TENANT,
    *,
    limits: KeyLimits,
    expires: Expires = None,
    pool: ServedPool = None,
    json: Json = False,
) -> None:
    """Create a key; its secret is shown once."""
    permissions, until = _read_permissions(limits.given()), _expiry_time(expires)
    check_served_names(permissions, pool)

    async def work(store: Store, hasher: KeyHasher) -> tuple[ApiKey, IssuedKey]:
        by = command_actor()
        return await store.keys.create(hasher, tenant, name, permissions, expires=until, by=by)

    _show_issued(*_with_hasher(work), json=json)


@app.command("list", epilog=format_example("batuta keys list --tenant acme"))
def list_keys(
    tenant: Annotated[str | None, typer.Option(help="Only keys of this tenant.")] = None,
    json: Json = False,
) -> None:
    """Show the keys and their limits, never their secrets."""
    keys = _with_store(lambda store: store.keys.list(tenant))[::-1]
    if json:
        json_output.print_json([key_json(key) for key in keys])
        return
    console = open_console()
    if not keys:
        none = "no keys yet" if tenant is None else f"the tenant {tenant} has no keys"
        console.print(f"{none}; make one: batuta keys create NAME", style="dim")
        return
    table = new_table("key", "tenant", "name", "state", "limits")
    for key in keys:
        limits = describe_permissions(key.permissions) or "none"
        table.add_row(key.id, key.tenant.name, key.name, key.state(time.time()), limits)
    print_table(console, table)


@app.command("limit", epilog=format_example("batuta keys limit 3fa9c1 --per-day 10"))
@with_option_groups
def change_limits(
    key_id: Id,
    *,
    limits: KeyLimits,
    expires: Expires = None,
    pool: ServedPool = None,
    json: Json = False,
) -> None:
    """Change the given limits of a key, each list as a whole; the other limits stay.

    A running server applies the change within 10 s.
    """
    known = _require_key(_with_store(lambda store: store.keys.find(key_id)), key_id)
    check_served_names(_read_permissions(limits.given()), pool, known.permissions)

    async def work(store: Store) -> ApiKey:
        return _require_key(
            await store.keys.change(
                key_id,
                lambda before: _read_permissions(permissions_json(before) | limits.given()),
                expires=_expiry_time(expires),
                by=command_actor(),
            ),
            key_id,
        )

    key = _with_store(work)
    if json:
        json_output.print_json(key_json(key))
    else:
        write_error(
            f"the key {key.id} now has: {describe_permissions(key.permissions) or 'no limits'}\n"
        )


@app.command("revoke", epilog=format_example("batuta keys revoke 3fa9c1"))
def revoke_key(key_id: Id) -> None:
    """Revoke a key permanently and stop its runs. A running server does this within 10 s."""
    _require_key(_with_store(lambda store: store.keys.revoke(key_id, by=command_actor())), key_id)
    write_error(f"the key {key_id} is revoked\n")


@app.command("rotate", epilog=format_example("batuta keys rotate 3fa9c1 --grace 1h"))
def rotate_key(
    key_id: Id,
    grace: Annotated[
        str, typer.Option(help="How long the old secret stays valid: 90s, 15m, 12h or 30d.")
    ] = "1h",
    json: Json = False,
) -> None:
    """Issue a new secret for a key; its limits, budgets and spending stay."""
    seconds = _parse_seconds(grace)

    async def work(store: Store, hasher: KeyHasher) -> tuple[ApiKey, IssuedKey]:
        try:
            found = await store.keys.rotate(hasher, key_id, seconds, by=command_actor())
        except ValueError as error:
            raise ConfigError(str(error)) from None
        return _require_key(found, key_id)

    _show_issued(*_with_hasher(work), json=json)


@app.command("budget", epilog=format_example("batuta keys budget acme --per-month 100"))
def set_budget(
    tenant: Annotated[str, typer.Argument(help="The name of the tenant.")],
    per_day: PerDay = None,
    per_month: PerMonth = None,
    json: Json = False,
) -> None:
    """Set the budget of all keys of a tenant together; an omitted amount means no limit."""
    limits = _read_permissions({"per_day": per_day, "per_month": per_month})
    day, month = limits.per_day, limits.per_month
    found = _with_store(
        lambda store: store.keys.set_tenant_budget(tenant, day, month, by=command_actor())
    )
    if json:
        json_output.print_json(tenant_json(found))
    else:
        write_error(
            f"{found.name} may spend {_format_amount(day)} a day, {_format_amount(month)} a month\n"
        )


@app.command("spend", epilog=format_example("batuta keys spend --by tenant --since 2026-11-01"))
def show_spending(
    by: Annotated[
        str, typer.Option(help=f"Comma-separated groups: {', '.join(SPEND_GROUPS)}.")
    ] = "day,tenant",
    tenant: Annotated[str | None, typer.Option(help="Only spending of this tenant.")] = None,
    since: Annotated[str | None, typer.Option(help="The first day, such as 2026-11-21.")] = None,
    until: Annotated[str | None, typer.Option(help="The last day, such as 2026-11-30.")] = None,
    *,
    json: Json = False,
) -> None:
    """Show what was spent, from the ledger."""
    groups = [name.strip() for name in by.split(",") if name.strip()]
    for option, day in (("--since", since), ("--until", until)):
        parse_day(option, day)

    async def work(store: Store) -> list[SpendGroup]:
        return await report_spending(
            store.database, groups, tenant=tenant, since=since, until=until
        )

    sums = _with_store(work)
    if json:
        json_output.print_json([spend_group_json(groups, one) for one in sums])
        return
    if not sums:
        print_nothing("no spending")
        return
    figures = ("runs", "calls", "tokens", "cost")
    table = new_table(*groups, *figures, right=figures)
    for one in sums:
        numbers = (one.runs, one.calls, one.input_tokens + one.output_tokens)
        names = (name or "–" for name in one.group)
        table.add_row(*names, *(format_count(number) for number in numbers), format_cost(one.cost))
    print_table(open_console(), table)


def _with_store(work: Callable[[Store], Awaitable[_T]]) -> _T:
    async def run() -> _T:
        async with Store.open(store_target()) as store:
            try:
                return await work(store)
            except ValueError as error:
                raise ConfigError(str(error)) from None

    return anyio.run(run)


add_usage_commands(app, _with_store)


def _with_hasher(work: Callable[[Store, KeyHasher], Awaitable[_T]]) -> _T:
    hasher = open_key_hasher(data_folder())
    return _with_store(lambda store: work(store, hasher))


def _show_issued(key: ApiKey, issued: IssuedKey, *, json: bool) -> None:
    try:
        if json:
            json_output.print_json({**key_json(key), "key": issued.text})
            return
        write_error(f"the key {key.id} of {key.tenant.name}; it is not shown again:\n")
        write_output(f"{issued.text}\n")
    except OSError:  # the key is stored, but its secret was not shown
        write_error(f"the key's secret is lost: issue another with: batuta keys rotate {key.id}\n")
        raise


def _require_key(value: _T | None, key_id: str) -> _T:
    if value is None:
        raise ConfigError(f"there is no key {key_id}; see: batuta keys list")
    return value


def _read_permissions(given: dict[str, Any]) -> KeyPermissions:
    """Read permissions from options; an error names the option and not the permission."""
    try:
        return read_permissions(given)
    except ValueError as error:
        name, space, reason = str(error).partition(" ")
        if name in {field.name for field in fields(KeyPermissions)}:
            name = _OPTION_OF.get(name, f"--{name.replace('_', '-')}")
        raise ConfigError(f"{name}{space}{reason}") from None


def describe_permissions(permissions: KeyPermissions) -> str:
    """Return a key's limits in words; empty if the key has no limits."""
    dollars = (
        (permissions.max_cost, "a run"),
        (permissions.per_day, "a day"),
        (permissions.per_month, "a month"),
        (permissions.session_max_cost, "a session"),
    )
    counts = (
        (permissions.rpm, "requests a minute"),
        (permissions.tpm, "tokens a minute"),
        (permissions.concurrency, "requests at the same time"),
        (permissions.session_max_turns, "turns a session"),
    )
    names = (
        ("models", permissions.models),
        ("workers", permissions.workers_allow),
        ("not the workers", permissions.workers_deny),
        ("tags", permissions.tags),
        ("tools", permissions.tools),
    )
    parts = [f"{title} {' '.join(entries)}" for title, entries in names if entries]
    parts += [f"{format_usd(usd)} {period}" for usd, period in dollars if usd is not None]
    parts += [f"{format_count(number)} {unit}" for number, unit in counts if number is not None]
    if permissions.min_confidence is not None:
        parts.append(f"confidence at least {permissions.min_confidence:g}")
    return ", ".join(parts)


def _format_amount(usd: Decimal | None) -> str:
    return "any amount" if usd is None else format_usd(usd)


def _parse_seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd]?)", text.strip())
    seconds = float(match[1]) * _UNIT_SECONDS[match[2] or "s"] if match else _MOST_SECONDS
    if seconds >= _MOST_SECONDS:
        raise ConfigError(
            f"{text!r:.40} is not a duration below 100 years: write 90s, 15m, 12h or 30d"
        )
    return seconds


def _expiry_time(text: str | None) -> float | None:
    return None if text is None else time.time() + _parse_seconds(text)


def check_served_names(
    permissions: KeyPermissions, pool: str | None, before: KeyPermissions | None = None
) -> None:
    """Check that the models and workers that the limits name are served.

    If no pool was named and the default pool cannot be loaded, the names are not checked, and a
    line on stderr says so.

    Args:
        permissions: the key's new permissions.
        pool: as for `batuta serve`; None: its default pool.
        before: the key's previous permissions; the names in these are not checked.

    Raises:
        ConfigError: a name is not served, or the named pool cannot be loaded.
    """
    if not (permissions.models or permissions.workers_allow or permissions.workers_deny):
        return
    # Imported only if there are names to check: the server takes most of the start-up time.
    from batuta.gateway.assemble import ServeOptions  # noqa: PLC0415

    options = ServeOptions(
        pool=pool, conductor=None, history=None, cascade=None, checker=None, folders=()
    )

    async def read_names() -> None:
        async with HttpTransport() as http:
            config = await options.load_config(http)
            names = options.build_catalogue(config).known_names
        try:
            names.check_permissions(permissions, before)
        except ValueError as error:
            hint = "" if pool else "; name the pool that is served with --pool"
            raise _UnknownNameError(f"{error}, in {config.source}{hint}") from None

    try:
        anyio.run(read_names)
    except _UnknownNameError:
        raise
    except BatutaError as error:
        if pool is not None:
            raise
        write_error(f"the names of models and workers were not checked: {error}\n")


class _UnknownNameError(ConfigError):
    """A limit names a model or worker that the pool does not have."""
