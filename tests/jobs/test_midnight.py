"""What a job's run reserved stays in the budgets of the day on which that was."""

import time
from decimal import Decimal

import pytest

from batuta.clients import ScriptedClient
from batuta.conductors import best_single_worker
from batuta.core import Pool, Question, Worker, WorkerId
from batuta.engine import RunHooks, conduct, new_run_id
from batuta.gateway.access.caller import Caller, CallerRole
from batuta.gateway.serving.admission import Admission, AdmissionController, buckets_of
from batuta.gateway.serving.cost_bound import FirstCallsCost
from batuta.gateway.serving.parsed_call import ParsedCall
from batuta.store import Store
from batuta.store.key_permissions import KeyPermissions

pytestmark = pytest.mark.anyio
DAY = 86_400
POOL = Pool((Worker(id=WorkerId("ada"), model="m"),))


@pytest.mark.parametrize("days", [1, 40])
@pytest.mark.parametrize("still_capped", [True, False])
async def test_a_job_that_is_taken_up_later_keeps_to_its_own_day(tmp_path, days, still_capped):
    permissions = KeyPermissions(per_day=Decimal(1), per_month=Decimal(5))
    caller = Caller(
        role=CallerRole.KEY, tenant="acme", key="k", permissions=permissions, per_day=Decimal(2)
    )
    question = Question.of("hi")
    call, run_id, now = ParsedCall(model="m", question=question), new_run_id(), time.time()
    then = now - days * DAY
    own, others = buckets_of(caller, then), buckets_of(caller, now)
    async with Store(tmp_path / "runs.db") as store:
        await store.budgets.reserve(
            run_id, 1000, own, tenant="acme", key="k", for_job=True, at=then
        )
    later = caller if still_capped else Caller(role=CallerRole.KEY, tenant="acme", key="k")
    async with Store(tmp_path / "runs.db") as store:
        admission = Admission(run_id=run_id)
        bound = FirstCallsCost(Decimal("0.000001"), Decimal("0.000001"))
        await AdmissionController(store).admit(
            later, call, admission, lambda: bound, already_counted=True, durable=True
        )
        assert admission.reserved_budget is not None
        await admission.reserved_budget.raise_to(Decimal("0.5"), Decimal("0.5"))
        grown = await store.budgets.budget_status(own)
        assert [one.reserved for one in grown] == [500_000_000] * len(own)
        client = ScriptedClient(lambda _: "hello")
        run = await conduct(
            question,
            best_single_worker(),
            POOL,
            {WorkerId("ada"): client},
            hooks=RunHooks(run_id=run_id),
        )
        await store.append(run, "acme", charge=admission.final_charge)
        await store.flush()
        ended = await store.budgets.budget_status(own)
        assert [one.reserved for one in ended] == [0] * len(own)
        assert all(one.spent > 0 for one in ended)
        today = [one for one in others if one not in own]
        assert [(one.spent, one.reserved) for one in await store.budgets.budget_status(today)] == [
            (0, 0)
        ] * len(today)
