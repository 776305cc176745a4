"""Deletes runs, responses, conversations and tenants everywhere they are stored."""

from __future__ import annotations

from typing import final

from batuta.gateway.access.caller import Authenticator
from batuta.gateway.serving.tenant_memory import CallMemory
from batuta.gateway.serving.waiting_runs import PendingToolRuns
from batuta.jobs import Jobs
from batuta.store import Store
from batuta.store.audit import AuditEntry
from batuta.store.responses import StoredResponse, run_id_of


@final
class Deletions:
    """Deletes in the store, in the jobs and in memory.

    Copies of the deleted content are deleted too: runs that continue a run, and the runs of
    responses that continue a response. The ledger stays, since it has no content. Each deletion is
    first recorded in the audit trail; if that fails, nothing is deleted.

    Every method raises `StoreError` if the database fails; the deletion may then be incomplete and
    can be repeated. A paused run in a Redis that is down stays there, encrypted, until it expires.
    """

    def __init__(
        self,
        jobs: Jobs | None,
        authenticator: Authenticator,
        pending_tool_runs: PendingToolRuns,
        before_calls: CallMemory,
    ) -> None:
        self._jobs = jobs
        self._authenticator = authenticator
        self._pending_tool_runs = pending_tool_runs
        self._before_calls = before_calls

    async def delete_run(self, store: Store, run_id: str, tenant: str, *, by: str) -> list[str]:
        """Delete the run and the runs that continue it; return the ids of all deleted runs."""
        await store.audit.append(
            AuditEntry(actor=by, action="run.deleted", subject=run_id, tenant=tenant)
        )
        await store.flush()
        deleted = await store.forgetting.forget_runs([run_id], tenant)
        self._before_calls.forget(tenant, set(deleted))
        await self._pending_tool_runs.dismiss(tenant, set(deleted))
        await store.forgetting.scrub_files()
        return deleted

    async def delete_response(
        self, store: Store, row: StoredResponse, *, by: str, conversation: bool
    ) -> list[str]:
        """Delete the response, and the runs and jobs of it and of the responses that continue it.

        Return the ids of the deleted responses.

        Args:
            store: the store.
            row: the response.
            by: the actor, for the audit trail.
            conversation: whether to delete the whole conversation: also the responses before this
                one and those that continue it.
        """
        tenant, forgetting = row.tenant, store.forgetting
        action = "conversation.deleted" if conversation else "response.deleted"
        await store.audit.append(AuditEntry(actor=by, action=action, subject=row.id, tenant=tenant))
        await store.flush()
        thread = await forgetting.find_thread(row.id, tenant, whole=conversation)
        thread = thread or [row.id]
        deleted = thread if conversation else [row.id]
        # Responses first: their tombstones stop a running job from writing them again.
        await forgetting.forget_responses(deleted, tenant)
        runs = await forgetting.forget_runs([run_id_of(name) for name in thread], tenant)
        if self._jobs is not None:
            for name in thread:
                await self._jobs.forget(name, tenant)
        self._before_calls.forget(tenant, set(runs))
        await self._pending_tool_runs.dismiss(tenant, set(runs))
        await forgetting.scrub_files()
        return deleted

    async def delete_tenant(self, store: Store, tenant: str, *, by: str) -> bool:
        """Delete the tenant, its keys and its data; return whether any of it existed."""
        await store.audit.append(
            AuditEntry(actor=by, action="tenant.deleted", subject=tenant, tenant=tenant)
        )
        await store.flush()
        found = await store.forgetting.forget_tenant(tenant)
        self._authenticator.forget()
        jobs = 0 if self._jobs is None else await self._jobs.forget_tenant(tenant)
        self._before_calls.forget(tenant)
        await self._pending_tool_runs.dismiss(tenant)
        await store.forgetting.scrub_files()
        return found or jobs > 0
