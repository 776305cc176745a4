"""Plans that wait for a person's approval, and the decisions about these plans.

The text of a question and its plan is erased when the plan is decided or closed. The steps of an
edited and approved plan are kept until its run has ended, so that a restart does not return to the
plan as it was first written.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from time import time
from typing import Any, final

from sqlalchemy import Connection, delete, func, insert, select, tuple_, update

from batuta.store.audit import AuditEntry, append_entry
from batuta.store.codec import format_cursor, parse_cursor, sql_text, sql_values
from batuta.store.database import Database
from batuta.store.models import APPROVALS

WAITING = "waiting"
MAX_WAITING = 20
"""Maximum plans of one tenant that wait; in PostgreSQL more if several are stored at once."""
MAX_LISTED = 100
"""Maximum plans that the page and the command list."""
MAX_REASON = 500
"""Maximum characters of a reason, which the callers check."""
_KEPT_SECONDS = 30 * 86_400.0
"""Seconds for which a plan is kept after `expires`; the audit trail keeps decisions longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingPlan:
    """A plan that waits for approval, or that was decided or closed."""

    id: str
    """`RUN:ROUND`: the id of the run and the number of the round."""
    run_id: str
    tenant: str
    rule: str
    """The name of the plan rule that requires the approval."""
    digest: str
    """The SHA-256 of the plan, in hexadecimal digits."""
    plan: str
    """Question, tools and workflow as JSON; empty: the plan no longer waits."""
    usd: str
    """Expected dollars of the run, including this plan."""
    state: str
    """`waiting`, `approved`, `refused`, `expired` or `withdrawn`."""
    created: float
    """Seconds since the epoch."""
    expires: float
    """Seconds since the epoch; until then the plan can be decided."""
    by: str = ""
    """The actor who decided; while the plan waits, the author of `edit`. Empty: nobody."""
    reason: str = ""
    """The reason for the decision; while the plan waits, why the last edit was rejected. Empty:
    none."""
    edit: str = ""
    """Proposed steps as JSON, until the run has checked and priced the edited plan. Empty: none."""
    written: str = ""
    """The digest of the plan as the conductor wrote it; empty if it was not edited."""
    steps: str = ""
    """The edited steps as JSON, while the plan waits and, if it is approved, until its run has
    ended; otherwise empty."""
    edited_by: str = ""
    """The author of `steps`; empty if the plan was not edited."""

    @property
    def cursor(self) -> str:
        """The position after this plan in a list: `ApprovalTable.list(after=...)`."""
        return format_cursor(self.created, self.id)


class ApprovalError(Exception):
    """A plan cannot be stored, decided or edited; the message says why."""


@final
class ApprovalTable:
    """The table of the plans of all replicas."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def ask(self, plan: PendingPlan, *, anew: bool = False) -> PendingPlan:
        """Store `plan`, unless the same plan of the run is stored, and return the stored plan.

        Args:
            plan: the plan as the run wrote it.
            anew: whether to store the plan in any case, so that it waits again after a decision.

        Raises:
            ApprovalError: too many plans of the tenant wait already.
        """

        def put(connection: Connection) -> PendingPlan:
            now = time()
            old = now - _KEPT_SECONDS
            connection.execute(delete(APPROVALS).where(APPROVALS.c.expires < old))
            stored = _find_plan(connection, plan.id)
            if stored and not anew and (stored.written or stored.digest) == plan.digest:
                return stored
            others = (
                APPROVALS.c.state == WAITING,
                APPROVALS.c.expires > now,
                APPROVALS.c.id != sql_text(plan.id),
            )
            count = select(func.count()).where(APPROVALS.c.tenant == sql_text(plan.tenant), *others)
            if connection.execute(count).scalar_one() >= MAX_WAITING:
                raise ApprovalError(
                    f"{MAX_WAITING} plans of this tenant wait for approval already: decide about "
                    "some of them first"
                )
            connection.execute(delete(APPROVALS).where(APPROVALS.c.id == plan.id))
            connection.execute(insert(APPROVALS).values(sql_values(asdict(plan))))
            return plan

        return await self._database.run_write(put)

    async def get(self, plan_id: str) -> PendingPlan | None:
        """Return the plan of that id; None: there is none."""
        return await self._database.run_read(lambda connection: _find_plan(connection, plan_id))

    async def list(
        self, *, waiting: bool = True, limit: int = MAX_LISTED, after: str | None = None
    ) -> list[PendingPlan]:
        """Return plans, oldest first.

        Args:
            waiting: only plans that still wait.
            limit: maximum number.
            after: the `cursor` of the last plan of the previous page; None: the first page.

        Raises:
            ValueError: `after` is not a cursor.
        """
        query = select(APPROVALS).order_by(APPROVALS.c.created, APPROVALS.c.id).limit(limit)
        if waiting:
            query = query.where(APPROVALS.c.state == WAITING, APPROVALS.c.expires > time())
        if after is not None:
            place = tuple_(APPROVALS.c.created, APPROVALS.c.id)
            query = query.where(place > parse_cursor(after))
        return [_plan_of(row) for row in await self._database.fetch_rows(query)]

    async def decide(
        self, plan_id: str, digest: str, *, approved: bool, by: str, reason: str = ""
    ) -> PendingPlan:
        """Approve or refuse a plan, once; the same transaction records that in the audit trail.

        Args:
            plan_id: the plan.
            digest: the digest of the plan that the person has seen.
            approved: the decision.
            by: who decided, as named in the audit trail.
            reason: the reason for the decision; empty: none.

        Raises:
            ApprovalError: there is no such plan, it no longer waits, or it is not the plan that was
                shown.
        """
        state = "approved" if approved else "refused"

        def decide(connection: Connection) -> PendingPlan:
            stored = _find_seen(connection, plan_id, digest)
            values = {"state": state, "by": sql_text(by), "reason": sql_text(reason)}
            kept = stored.steps if approved else ""
            values |= {"plan": "", "edit": "", "steps": sql_text(kept)}
            return _change_waiting(connection, stored, values, state=state, by=by)

        return await self._database.run_write(decide)

    async def edit(self, plan_id: str, digest: str, steps: str, *, by: str) -> PendingPlan:
        """Propose other steps, as JSON, for a waiting plan, and record that in the audit trail.

        The proposal replaces an earlier one. The run of the plan accepts it, or records in `reason`
        why not.

        Raises:
            ApprovalError: there is no such plan, it no longer waits, or it is not the plan that was
                shown.
        """

        def put(connection: Connection) -> PendingPlan:
            stored = _find_seen(connection, plan_id, digest)
            values = {"edit": sql_text(steps), "by": sql_text(by), "reason": ""}
            return _change_waiting(connection, stored, values, state="edited", by=by)

        return await self._database.run_write(put)

    async def take_edit(self, edited: PendingPlan, plan: PendingPlan) -> bool:
        """Replace the waiting plan `edited` by `plan`, in which its edit was accepted or dropped.

        Return False, replacing nothing, if the plan no longer waits, or plan or edit has changed.
        """
        values = sql_values(asdict(plan))
        del values["id"]
        same = (APPROVALS.c.digest == edited.digest, APPROVALS.c.edit == sql_text(edited.edit))
        chosen = (APPROVALS.c.id == edited.id, APPROVALS.c.state == WAITING, *same)
        return await self._database.execute(update(APPROVALS).where(*chosen).values(values)) == 1

    async def close(self, plan_id: str, state: str) -> PendingPlan | None:
        """Give a plan that still waits the state `expired` or `withdrawn`; return the stored plan.

        Return None if there is no such plan.
        """

        def end(connection: Connection) -> PendingPlan | None:
            chosen = (APPROVALS.c.id == plan_id, APPROVALS.c.state == WAITING)
            erased = dict.fromkeys(("plan", "edit", "steps", "by", "reason"), "")
            connection.execute(update(APPROVALS).where(*chosen).values(state=state, **erased))
            return _find_plan(connection, plan_id)

        return await self._database.run_write(end)

    async def forget_steps(self, run_id: str) -> None:
        """Delete the steps of the edited plans of a run that has ended."""
        chosen = (APPROVALS.c.run_id == sql_text(run_id), APPROVALS.c.steps != "")
        forget = update(APPROVALS).where(*chosen).values(steps="")
        await self._database.execute(forget)


def _find_plan(connection: Connection, plan_id: str) -> PendingPlan | None:
    query = select(APPROVALS).where(APPROVALS.c.id == sql_text(plan_id))
    row = connection.execute(query).mappings().first()
    return None if row is None else _plan_of(row)


def _find_seen(connection: Connection, plan_id: str, digest: str) -> PendingPlan:
    """Return the plan; raise ApprovalError if there is none or it has another digest."""
    stored = _find_plan(connection, plan_id)
    if stored is None:
        raise ApprovalError(f"no plan {plan_id} waits for approval")
    if stored.digest != digest:
        raise ApprovalError("the plan has changed since it was shown: look at it again")
    return stored


def _change_waiting(
    connection: Connection, stored: PendingPlan, values: dict[str, Any], *, state: str, by: str
) -> PendingPlan:
    """Change a plan and record that in the audit trail; raise ApprovalError if it does not wait."""
    open_ = (APPROVALS.c.state == WAITING, APPROVALS.c.expires > time())
    chosen = (APPROVALS.c.id == stored.id, APPROVALS.c.digest == stored.digest, *open_)
    done = connection.execute(update(APPROVALS).where(*chosen).values(values))
    if done.rowcount != 1:
        stored = _find_seen(connection, stored.id, stored.digest)  # others may have changed it
        now = stored.state if stored.state != WAITING else "expired"
        raise ApprovalError(f"the plan {stored.id} is {now} already")
    details = {"rule": stored.rule, "digest": stored.digest, "usd": stored.usd}
    entry = AuditEntry(
        actor=by,
        action=f"approval.{state}",
        subject=stored.run_id,
        tenant=stored.tenant,
        details=details,
    )
    append_entry(connection, entry)
    changed = _find_plan(connection, stored.id)
    assert changed is not None  # noqa: S101 - it was updated
    return changed


def _plan_of(row: Any) -> PendingPlan:
    return PendingPlan(**{name: row[name] for name in PendingPlan.__slots__})
