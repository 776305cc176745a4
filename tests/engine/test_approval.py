"""Plans that wait for a person: who is asked, what follows, and what cannot be evaded."""

import json
from dataclasses import replace
from decimal import Decimal

import anyio
import pytest

from batuta.clients import ScriptedClient
from batuta.conductors import FixedConductor
from batuta.core import (
    Limits,
    Outcome,
    Plan,
    Pool,
    Price,
    Question,
    Step,
    Tool,
    Worker,
    WorkerId,
    Workflow,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.core.tool_classes import ToolClasses
from batuta.core.worker import CHANGES
from batuta.engine import RunHooks, RunSettings, conduct
from batuta.engine.approval_request import ApprovalRequest, ApprovalVerdict, read_steps
from batuta.language.approval_rules import ApprovalRule, may_change

pytestmark = pytest.mark.anyio
ADA, BOB = map(WorkerId, ("ada", "bob"))
PRICE = Price(input=Decimal(1), output=Decimal(2))
POOL = Pool((Worker(id=ADA, model="m", price=PRICE), Worker(id=BOB, model="m")))
PLAN = Workflow((Step(subtask="Solve it.", worker=ADA),))
ANY = ApprovalRule(name="look")
SEND, READ = Tool(name="send_mail"), Tool(name="read_file")


class Desk:
    """Somebody who answers what they are asked, and workers who count their calls."""

    def __init__(self, state="approved", wait=0.0) -> None:
        self.state, self.wait = state, wait
        self.asked: list[ApprovalRequest] = []
        self.called: list[WorkerId] = []

    async def approve(self, request: ApprovalRequest) -> ApprovalVerdict:
        self.asked.append(request)
        assert not self.called
        await anyio.sleep(self.wait)
        return ApprovalVerdict(state=self.state, by="admin", reason="because")

    def client(self, worker):
        def reply(_):
            self.called.append(worker)
            return "42"

        return ScriptedClient(reply)

    async def run(self, *rules, workflow=PLAN, question=None, limits=None, asks=True, **settings):
        return await conduct(
            question or Question.of("6 * 7?"),
            FixedConductor("by-hand", lambda _: workflow),
            POOL,
            {worker: self.client(worker) for worker in (ADA, BOB)},
            limits=limits,
            settings=RunSettings(approvals=rules, **settings),
            hooks=RunHooks(approve=self.approve if asks else None),
        )


def acts(run):
    return [(act.policy, act.action, act.by) for act in run.guards]


async def test_an_approved_plan_is_run_and_says_who_approved_it():
    desk = Desk()
    run = await desk.run(ANY)
    assert run.outcome is Outcome.ANSWERED and desk.called == [ADA]
    assert acts(run) == [("look", "waits for approval", ""), ("look", "approved", "admin")]
    assert desk.asked[0].workflow == PLAN and len(desk.asked[0].digest) == 64


@pytest.mark.parametrize("state", ["refused", "expired"])
async def test_what_is_not_approved_calls_nobody(state):
    desk = Desk(state)
    run = await desk.run(ANY)
    assert desk.called == [] and run.outcome is Outcome.REFUSED
    assert run.error_code == f"approval_{state}" and "because" in (run.error or "")


async def test_where_nobody_can_be_asked_nothing_is_run():
    desk = Desk()
    run = await desk.run(ANY, asks=False)
    assert desk.called == [] and run.error_code == "approval_refused"
    assert "batuta serve" in (run.error or "")


async def test_waiting_takes_none_of_the_runs_time():
    desk = Desk(wait=0.3)
    run = await desk.run(ANY, limits=Limits(seconds=0.2))
    assert run.outcome is Outcome.ANSWERED


async def test_a_dry_run_asks_nobody():
    desk = Desk()
    run = await desk.run(ANY, dry_run=True)
    assert run.outcome is Outcome.PLANNED and desk.asked == []


@pytest.mark.parametrize(
    ("rule", "needed"),
    [
        (ApprovalRule(name="r", tag="ledger"), True),
        (ApprovalRule(name="r", tag="other"), False),
        (ApprovalRule(name="r", workers=frozenset({ADA})), True),
        (ApprovalRule(name="r", workers=frozenset({BOB})), False),
        (ApprovalRule(name="r", above_usd=Decimal(0)), True),
        (ApprovalRule(name="r", above_usd=Decimal(1)), False),
        (ApprovalRule(name="r", changes=True), False),
        (ApprovalRule(name="r", changes=True, workers=frozenset({ADA})), False),
    ],
)
async def test_a_rule_asks_for_what_it_names(rule, needed):
    desk = Desk()
    question = replace(Question.of("6 * 7?"), tags=("ledger",), tools=(READ,))
    assert (await desk.run(rule, question=question)).outcome is Outcome.ANSWERED
    assert bool(desk.asked) is needed


async def test_a_tool_that_changes_something_needs_it():
    rule = ApprovalRule(name="hands", changes=True)
    assert may_change(replace(Question.of("?"), tools=(READ, SEND)), PLAN, POOL, ToolClasses())
    desk = Desk("refused")
    question = replace(Question.of("?"), tools=(READ, SEND))
    assert (await desk.run(rule, question=question)).outcome is Outcome.REFUSED


@pytest.mark.parametrize(("tags", "changes"), [((CHANGES,), True), (("mcp",), False)])
def test_a_worker_may_be_what_changes_something(tags, changes):
    pool = Pool((Worker(id=ADA, model="m", tags=tags), Worker(id=BOB, model="m")))
    question = replace(Question.of("?"), tools=(READ,))
    assert may_change(question, PLAN, pool, ToolClasses()) is changes
    other = Workflow((Step(subtask="Solve it.", worker=BOB),))
    assert not may_change(question, other, pool, ToolClasses())


async def test_a_worker_without_a_price_counts_as_dear():
    desk = Desk()
    plan = Workflow((Step(subtask="", worker=BOB),))
    await desk.run(ApprovalRule(name="dear", above_usd=Decimal("0.02")), workflow=plan)
    assert desk.asked and desk.asked[0].usd > Decimal("0.02")


async def test_another_plan_has_another_digest():
    digests = set()
    for plan in (PLAN, Workflow((replace(PLAN.steps[0], subtask="Other."),))):
        desk = Desk()
        await desk.run(ANY, workflow=plan)
        digests.add(replace(desk.asked[0], run_id="run_x").digest)
    assert len(digests) == 2


async def test_what_an_unpriced_worker_has_used_counts_in_the_next_round():
    class TwoRounds:
        name = "twice"

        async def plan(self, context, listener=NULL_LISTENER):
            return Plan(Workflow((Step(subtask="", worker=BOB),)))

    expected: list[Decimal] = []

    async def approve(request: ApprovalRequest) -> ApprovalVerdict:
        expected.append(request.usd)
        return ApprovalVerdict(state="approved")

    await conduct(
        Question.of("6 * 7?"),
        TwoRounds(),
        POOL,
        {worker: ScriptedClient(lambda _: "42") for worker in (ADA, BOB)},
        limits=Limits(rounds=2),
        settings=RunSettings(approvals=(ANY,)),
        hooks=RunHooks(approve=approve),
    )
    first, second = expected
    assert second > first > 0


@pytest.mark.parametrize("previous", [1, "all", None])
def test_whether_an_edited_step_reads_the_previous_round_is_true_or_false(previous):
    with pytest.raises(ValueError, match="previous must be true or false"):
        read_steps(json.dumps([{"worker": "ada", "previous": previous}]))
