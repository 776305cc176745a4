"""Deletions: a run, a response, a conversation or a tenant is forgotten wherever it was kept."""

from __future__ import annotations

from typing import final

from batuta.gateway.access.caller import Authenticator
from batuta.gateway.serving.waiting_runs import PendingToolRuns
from batuta.jobs import Jobs
from batuta.store import Store
from batuta.store.audit import AuditEntry
from batuta.store.responses import StoredResponse, run_id_of


@final
class Deletions:
    """Forgets in the store, in the jobs and in memory.

    What repeats the deleted goes too: runs that continued from a run, and the traces of responses
    that continued from a response. The ledger of money stays; it has no words.
    """

    def __init__(
        self, jobs: Jobs | None, authenticator: Authenticator, pending_tool_runs: PendingToolRuns
    ) -> None:
        self._jobs = jobs
        self._authenticator = authenticator
        self._pending_tool_runs = pending_tool_runs

    async def delete_run(self, store: Store, run_id: str, tenant: str, *, by: str) -> list[str]:
        """Forget the run; return the ids of it and of the runs that had gone on from it.

        It is recorded before it is done: what cannot be recorded is not deleted.
        """
        await store.audit.append(
            AuditEntry(actor=by, action="run.deleted", subject=run_id, tenant=tenant)
        )
        await store.flush()
        gone = await store.forgetting.forget_runs([run_id], tenant)
        await self._pending_tool_runs.dismiss(tenant, set(gone))
        await store.forgetting.scrub_files()
        return gone

    async def delete_response(
        self, store: Store, row: StoredResponse, *, by: str, conversation: bool = False
    ) -> list[str]:
        """Forget the response, its run and its job; return the ids of the responses that are gone.

        Args:
            store: where it is.
            row: which.
            by: who deletes it, for the audit trail.
            conversation: the responses before it and those that continued from it as well.
        """
        tenant, forgetting = row.tenant, store.forgetting
        action = "conversation.deleted" if conversation else "response.deleted"
        await store.audit.append(AuditEntry(actor=by, action=action, subject=row.id, tenant=tenant))
        await store.flush()
        line = await forgetting.find_thread(row.id, tenant, whole=conversation)
        line = line or [row.id]
        gone = line if conversation else [row.id]
        # First the names: what a job is about to write is not written any more.
        await forgetting.forget_responses(gone, tenant)
        runs = await forgetting.forget_runs([run_id_of(one) for one in line], tenant)
        if self._jobs is not None:
            for one in line:
                await self._jobs.forget(one, tenant)
        await self._pending_tool_runs.dismiss(tenant, set(runs))
        await forgetting.scrub_files()
        return gone

    async def delete_tenant(self, store: Store, tenant: str, *, by: str) -> bool:
        """Forget the tenant, its keys, runs, responses and jobs; return whether there was any."""
        await store.audit.append(
            AuditEntry(actor=by, action="tenant.deleted", subject=tenant, tenant=tenant)
        )
        await store.flush()
        found = await store.forgetting.forget_tenant(tenant)
        self._authenticator.forget()
        jobs = 0 if self._jobs is None else await self._jobs.forget_tenant(tenant)
        await self._pending_tool_runs.dismiss(tenant)
        await store.forgetting.scrub_files()
        return found or jobs > 0
