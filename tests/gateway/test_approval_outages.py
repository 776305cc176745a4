"""Plans that need approval while the database fails: nobody is called, the draft is paid, and it is said."""

from __future__ import annotations

from decimal import Decimal

import anyio
import pytest
from sqlalchemy import text

from batuta.clients import ScriptedClient
from batuta.conductors.llm_conductor import LLMConductor
from batuta.core import Cost, Reply, Usage
from batuta.store.spend_report import report_spending
from gateway.live_server import HI
from gateway.test_approvals import Place

pytestmark = pytest.mark.anyio
DRAFT = Reply(
    text='model_id = [0]\nsubtasks = ["Solve it."]\naccess_list = [[]]',
    usage=Usage(calls=1, input=1000, output=500),
    cost=Cost(Decimal("0.25")),
)
ASKED = {"model": "batuta-ultra", "orchestration": {"tags": ["ledger"]}}
DIALECTS = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 99},
}
SENTENCE = "requires that a person approves the plan, but the request cannot be stored now"


def dear_plans() -> LLMConductor:
    return LLMConductor(name="boss", client=ScriptedClient(lambda _: DRAFT))


async def rename(store, name: str, to: str) -> None:
    statement = text(f"ALTER TABLE {name} RENAME TO {to}")
    await store.database.run_write(lambda it: it.execute(statement))


@pytest.mark.parametrize("path", DIALECTS)
async def test_a_plan_that_cannot_be_stored_is_a_503_and_its_draft_is_paid(store, path):
    async with Place(store, conductor=dear_plans()) as place:
        await rename(store, "approvals", "lost")
        body = {**ASKED, **DIALECTS[path]}
        status, headers, said = await place.serving.post(path, json=body, headers=place.key)
        assert status == 503 and SENTENCE in said["error"]["message"]
        assert headers["x-should-retry"] == "false" and headers["retry-after"]
        assert headers["x-batuta-cost-usd"] == "0.25" and place.called == 0
        body["stream"] = True
        async with place.serving.http.post(path, json=body, headers=place.key) as response:
            assert SENTENCE in await response.text()
        await store.flush()
        [spent] = await report_spending(store.database, ("tenant",))
        assert spent.cost.usd == Decimal("0.5") and place.called == 0
        run = await store.get(headers["x-batuta-run-id"])
        assert run.error_code == "approval_unavailable"
        assert [act.action for act in run.guards] == ["waits for approval", "unavailable"]


async def test_a_database_that_fails_while_a_plan_waits_is_waited_for(store):
    async with Place(store) as place, anyio.create_task_group() as tasks:
        tasks.start_soon(place.ask)
        plan = await place.waiting()
        await rename(store, "approvals", "lost")
        await anyio.sleep(1.2)  # more than two looks
        await rename(store, "lost", "approvals")
        assert not place.answers and (await place.decide(plan))[0] == 200
    assert place.answers[0][0] == 200 and place.called == 1


async def test_who_leaves_while_the_database_fails_leaves_nothing_that_runs(store):
    async with Place(store) as place, anyio.create_task_group() as tasks:
        tasks.start_soon(place.ask)
        plan = await place.waiting()
        await rename(store, "approvals", "lost")
        tasks.cancel_scope.cancel()
    await rename(store, "lost", "approvals")
    assert place.called == 0 and (await store.approvals.get(plan["id"])).state == "waiting"
