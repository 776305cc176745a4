"""`batuta runs waiting | approve | refuse`: decide about plans that wait for approval."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import anyio
import orjson
import typer
from rich.text import Text

from batuta.cli.json_output import print_json
from batuta.cli.options import Json, command_actor, format_example
from batuta.config.load import store_target
from batuta.core.formatting import format_time
from batuta.engine.approval_request import read_steps
from batuta.errors import ConfigError
from batuta.rendering.console import open_console
from batuta.rendering.terminal import write_error, write_output
from batuta.store import Store
from batuta.store.approvals import MAX_LISTED, MAX_REASON, WAITING, ApprovalError, PendingPlan

PlanArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The plan's id, from `batuta runs waiting`.")
]
DigestArgument = Annotated[
    str,
    typer.Argument(
        metavar="DIGEST", help="The digest of the plan you reviewed; 12 digits are enough."
    ),
]
EditOption = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        dir_okay=False,
        help="Replacement steps: a JSON list, as `steps` in `batuta runs waiting --json`.",
    ),
]
ReasonOption = Annotated[str, typer.Option(help="A reason, shown to the caller.")]
_LEAST_DIGITS = 12
_EDIT_SECONDS = 10.0
"""Maximum number of seconds to wait until the run accepts an edit."""


def add_approval_commands(app: typer.Typer) -> None:
    """Add the commands to `batuta runs`."""
    app.command("waiting", epilog=format_example("batuta runs waiting"))(list_waiting)
    app.command("approve", epilog=format_example("batuta runs approve run_5f…:0 9c1e0b7d2a44"))(
        approve_plan
    )
    app.command("refuse", epilog=format_example("batuta runs refuse run_5f…:0 9c1e0b7d2a44"))(
        refuse_plan
    )


def list_waiting(as_json: Json = False) -> None:
    """List plans that wait for approval, oldest first, at most 100."""
    found = anyio.run(_list_plans)
    plans = found[:MAX_LISTED]
    if len(found) > MAX_LISTED:
        write_error(f"these are the {MAX_LISTED} oldest plans; more are waiting\n")
    if as_json:
        print_json([plan_json(plan) for plan in plans])
        return
    console = open_console()
    if not plans:
        console.print("no plan waits for approval", style="dim")
    for plan in plans:
        shown = plan_json(plan)
        console.print(
            Text.assemble((plan.id, "bold"), f"  {plan.digest[:_LEAST_DIGITS]}"), soft_wrap=True
        )
        about = f"{plan.rule}, tenant {plan.tenant}, expected ${plan.usd}"
        console.print(f"  {about}, until {format_time(plan.expires)}", soft_wrap=True)
        console.print(f"  {shown['question']}", soft_wrap=True)
        if plan.reason:
            console.print(f"  {plan.reason}", soft_wrap=True)
        for number, step in enumerate(shown["steps"], 1):
            text = f"  {number}. {step['worker']}: {step['subtask'] or 'the whole question'}"
            console.print(text, soft_wrap=True)


def approve_plan(
    plan: PlanArgument,
    digest: DigestArgument,
    reason: ReasonOption = "",
    edit: EditOption = None,
) -> None:
    """Approve a plan for one execution; with --edit the run first checks and prices the steps."""
    if edit is not None:
        digest = _edit_plan(plan, digest, edit)
    _give_verdict(plan, digest, reason, approved=True)


def refuse_plan(plan: PlanArgument, digest: DigestArgument, reason: ReasonOption = "") -> None:
    """Refuse a plan; the caller is given the reason."""
    _give_verdict(plan, digest, reason, approved=False)


def plan_json(plan: PendingPlan) -> dict[str, Any]:
    """Return a waiting plan as JSON."""
    shown: dict[str, Any] = {"question": "", "steps": []}
    shown |= orjson.loads(plan.plan) if plan.plan else {}
    return {
        "id": plan.id,
        "digest": plan.digest,
        "rule": plan.rule,
        "tenant": plan.tenant,
        "expected_cost_usd": plan.usd,
        "created": plan.created,
        "expires": plan.expires,
        **shown,
    }


def _give_verdict(plan: str, digest: str, reason: str, *, approved: bool) -> None:
    """Approve or refuse the plan with that digest.

    Raises:
        ConfigError: the reason is too long, or no plan with that digest waits.
    """
    if len(reason) > MAX_REASON:
        raise ConfigError(
            f"--reason has {len(reason)} characters; it may have at most {MAX_REASON}"
        )
    try:
        done = anyio.run(_store_verdict, plan, digest, reason, approved)
    except ApprovalError as error:
        raise ConfigError(f"{error}; see: batuta runs waiting") from None
    write_output(f"{done.id} {done.state}\n")


def _edit_plan(plan: str, digest: str, file: Path) -> str:
    """Replace the plan's steps and return the digest of the edited plan.

    Raises:
        ConfigError: the file or its steps are invalid, no such plan waits, or the run did not
            accept the edit.
    """
    try:
        steps = file.read_text(encoding="utf-8")
        read_steps(steps)
        edited = anyio.run(_store_edit, plan, digest, steps)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: {error}") from None
    except ApprovalError as error:
        raise ConfigError(f"{error}; see: batuta runs waiting") from None
    if edited.edit:
        raise ConfigError(
            f"the run did not accept the edit within {_EDIT_SECONDS:g} s: check that its server is "
            "running"
        )
    if edited.reason:
        raise ConfigError(edited.reason)
    write_output(f"{edited.id} {edited.digest[:_LEAST_DIGITS]} expected ${edited.usd}\n")
    return edited.digest


async def _store_edit(plan: str, digest: str, steps: str) -> PendingPlan:
    async with Store.open(store_target()) as store:
        whole = await _whole_digest(store, plan, digest)
        edited = await store.approvals.edit(plan, whole, steps, by=command_actor())
        with anyio.move_on_after(_EDIT_SECONDS):
            while edited.edit and edited.state == WAITING:
                await anyio.sleep(0.1)
                edited = await store.approvals.get(plan) or edited
        return edited


async def _list_plans() -> list[PendingPlan]:
    async with Store.open(store_target()) as store:
        return await store.approvals.list(limit=MAX_LISTED + 1)


async def _store_verdict(plan: str, digest: str, reason: str, approved: bool) -> PendingPlan:
    async with Store.open(store_target()) as store:
        whole, by = await _whole_digest(store, plan, digest), command_actor()
        return await store.approvals.decide(plan, whole, approved=approved, by=by, reason=reason)


async def _whole_digest(store: Store, plan: str, digest: str) -> str:
    """Return the plan's full digest if `digest` is a long enough prefix of it, else `digest`."""
    found = await store.approvals.get(plan)
    if found is None or len(digest) < _LEAST_DIGITS or not found.digest.startswith(digest):
        return digest
    return found.digest
