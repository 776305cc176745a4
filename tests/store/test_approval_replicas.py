"""Two replicas that decide about one plan at the same time."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

from batuta.store import Store
from batuta.store.approvals import WAITING, ApprovalError, PendingPlan, _change_waiting

pytestmark = pytest.mark.anyio
PLAN = PendingPlan(
    id="run_1:0", run_id="run_1", tenant="acme", rule="r", digest="d", plan="{}", usd="0",
    state=WAITING, created=1e9, expires=4e9,
)  # fmt: skip


async def test_two_replicas_that_decide_at_once_decide_once(target):
    ended: list[str] = []
    async with Store.open(target) as one, Store.open(target) as other:

        async def decide(store, number):
            approved = bool(number % 2)
            try:
                done = await store.approvals.decide("run_1:0", "d", approved=approved, by="admin")
            except ApprovalError:
                return
            ended.append(done.state)

        await one.approvals.ask(PLAN)
        async with anyio.create_task_group() as tasks:
            for number in range(4):
                for store in (one, other):
                    tasks.start_soon(decide, store, number)
        found = await other.approvals.get("run_1:0")
        assert found is not None and ended == [found.state]
        records = await one.audit.list(9, action="approval.")
        assert [record.action for record in records] == [f"approval.{found.state}"]
        assert (await one.audit.verify()).broken_at is None


async def test_a_plan_that_expires_with_an_open_edit_was_decided_by_nobody(target):
    async with Store.open(target) as store:
        await store.approvals.ask(PLAN)
        edited = await store.approvals.edit(PLAN.id, PLAN.digest, "[]", by="key:editor")
        assert edited.by == "key:editor"
        closed = await store.approvals.close(PLAN.id, "expired")
        assert closed is not None
        assert (closed.state, closed.by, closed.edit) == ("expired", "", "")


async def test_a_plan_that_expires_has_no_reason_of_an_edit_for_its_caller(target):
    async with Store.open(target) as store:
        await store.approvals.ask(PLAN)
        edited = await store.approvals.edit(PLAN.id, PLAN.digest, "[]", by="key:editor")
        dropped = replace(edited, edit="", reason="the edit was rejected: it breaks the rule r")
        assert await store.approvals.take_edit(edited, dropped)
        closed = await store.approvals.close(PLAN.id, "expired")
        assert closed is not None
        assert closed.reason == ""


async def test_a_decision_that_comes_too_late_names_the_state_that_another_process_wrote(target):
    async with Store.open(target) as store:
        read_before = await store.approvals.ask(PLAN)
        await store.approvals.decide(PLAN.id, PLAN.digest, approved=True, by="admin")
        with pytest.raises(ApprovalError, match="approved already"):
            await store.database.run_write(
                lambda connection: _change_waiting(
                    connection, read_before, {"state": "refused"}, state="refused", by="key:late"
                )
            )
