"""Records in the audit trail that an administrator reads what others asked, and exports of runs."""

from __future__ import annotations

from batuta.gateway.access.caller import Caller, CallerRole
from batuta.store import Store
from batuta.store.audit import AuditEntry


async def record_reading(store: Store, caller: Caller, run_id: str, tenant: str) -> None:
    """Record it if the caller is an administrator, before the run is shown.

    Raises:
        StoreError: it cannot be recorded; then the run must not be shown.
    """
    if caller.role is CallerRole.ADMIN:
        await store.audit.append(_entry_of_run("run.read", caller, run_id, tenant))


async def record_export(store: Store, caller: Caller, run_id: str, tenant: str) -> None:
    """Record that a run is exported, whoever does it, before it is handed out.

    Raises:
        StoreError: it cannot be recorded; then the run must not be handed out.
    """
    await store.audit.append(_entry_of_run("run.exported", caller, run_id, tenant))


def _entry_of_run(action: str, caller: Caller, run_id: str, tenant: str) -> AuditEntry:
    return AuditEntry(actor=caller.actor, action=action, subject=run_id, tenant=tenant)
