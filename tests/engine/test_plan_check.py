"""Plans that break a rule: sent back, repaired or refused; a forbidden worker is never called."""

from collections import Counter
from dataclasses import replace
from decimal import Decimal

import pytest

from batuta.clients import ScriptedClient
from batuta.conductors import FixedConductor, LLMConductor, RecursiveConductor, parallel_vote
from batuta.conductors.replay_conductor import ReplayConductor
from batuta.core import (
    Limits,
    MalformedPlan,
    Outcome,
    Plan,
    Pool,
    Price,
    Question,
    Step,
    Worker,
    WorkerId,
    Workflow,
)
from batuta.engine import RunSettings, conduct
from batuta.engine.context import TimeoutPolicy
from batuta.errors import ProviderOverloadedError
from batuta.language.plan_rules import CHECK_SUBTASK, PlanRule, PlanRules

pytestmark = pytest.mark.anyio
IDS = tuple(WorkerId(name) for name in ("ada", "bob", "cleo"))
ADA, BOB, CLEO = IDS
PRICE = Price(input=Decimal(1), output=Decimal(2))
POOL = Pool(
    tuple(
        Worker(id=one, model="m", price=PRICE, strength=0.9 - n / 10) for n, one in enumerate(IDS)
    )
)
ONE_STEP = 'model_id = [{0}]\nsubtasks = ["Solve it."]\naccess_list = [[]]'
CHECKED = 'model_id = [0, 1]\nsubtasks = ["Solve it.", "Check it."]\naccess_list = [[], [0]]'
NEEDS_CHECK = PlanRule(name="two-eyes", needs_check=True, says="Two look at each answer.")


class Orchestra:
    """Workers that count who was asked, of which some fail."""

    def __init__(self, *failing: WorkerId) -> None:
        self.asked = Counter[str]()
        self.prompts: list[str] = []
        self.failing = failing
        self.clients = {one: ScriptedClient(self.reply_of(one), price=PRICE) for one in IDS}

    def reply_of(self, one: WorkerId):
        def reply(request):
            self.asked[one] += 1
            self.prompts.append(request.messages[-1].text)
            if one in self.failing:
                raise ProviderOverloadedError("busy")
            return f"{one} says 42"

        return reply


def drafts(*texts: str) -> tuple[LLMConductor, list[str]]:
    seen: list[str] = []
    left = list(texts)

    def write(request):
        seen.append(request.messages[-1].text)
        return left.pop(0) if len(left) > 1 else left[0]

    worker = Worker(id=WorkerId("writer"), model="m", price=PRICE)
    client = ScriptedClient(write, price=PRICE)
    return LLMConductor(name="writer", client=client, worker=worker), seen


async def execute(
    conductor, *rules: PlanRule, scripted_state=None, tags=(), providers=None, **options
):
    settings = RunSettings(plan_rules=PlanRules(rules, providers or {}), **options.pop("set", {}))
    question = replace(Question.of("What is six times seven?"), tags=tags)
    return await conduct(
        question,
        conductor,
        POOL,
        (scripted_state or Orchestra()).clients,
        settings=settings,
        **options,
    )


def acts(run) -> list[tuple[str, str]]:
    return [(act.policy, act.action) for act in run.guards if act.where == "plan"]


def by_hand(*steps: Step) -> FixedConductor:
    return FixedConductor("by-hand", lambda _: Workflow(steps))


async def test_a_plan_is_sent_back_once_with_the_rules_sentence():
    conductor, seen = drafts(ONE_STEP.format(0), CHECKED)
    run = await execute(conductor, NEEDS_CHECK)
    assert run.outcome is Outcome.ANSWERED and run.answer == "bob says 42"
    assert "Two look at each answer." in seen[1] and 'begin with the word "Check"' in seen[1]
    assert "Solve it." in seen[1] and "because of a rule" not in seen[0]
    assert acts(run) == [("two-eyes", "sent back")]
    assert isinstance(run.rounds[0].decision, Plan) and len(run.rounds[0].drafts) == 1
    assert "Two look" in run.rounds[0].drafts[0].reason
    paid = [draft.cost.usd for draft in run.rounds[0].conductor_drafts]
    assert len(paid) == 2 and all(paid)
    assert run.cost.usd == sum(paid) + sum(step.cost.usd for step in run.steps)


async def test_a_plan_that_breaks_it_again_is_repaired():
    conductor, seen = drafts(ONE_STEP.format(2))
    run = await execute(conductor, NEEDS_CHECK)
    assert len(seen) == 2 and acts(run) == [("two-eyes", "sent back"), ("two-eyes", "repaired")]
    flow = run.rounds[0].workflow
    assert flow is not None and [step.worker for step in flow.steps] == [CLEO, ADA]
    assert flow.steps[1].subtask == CHECK_SUBTASK and run.answer == "ada says 42"


async def test_what_cannot_be_repaired_is_refused_and_its_drafts_are_paid():
    conductor, seen = drafts(ONE_STEP.format(0))
    run = await execute(conductor, NEEDS_CHECK, limits=Limits(steps=1))
    assert run.outcome is Outcome.REFUSED and run.error_code == "plan_rule"
    assert run.error == "the rule two-eyes for plans: Two look at each answer."
    assert acts(run) == [("two-eyes", "sent back"), ("two-eyes", "refused")]
    assert len(seen) == 2 and run.conductor_usage.calls == 2 and not run.steps
    assert isinstance(run.rounds[0].decision, MalformedPlan) and run.cost.usd > 0


async def test_too_many_at_once_is_refused_whoever_wrote_it():
    rule = PlanRule(name="narrow", max_parallel=2)
    run = await execute(parallel_vote(3), rule)
    assert run.outcome is Outcome.REFUSED and not run.steps
    assert (run.error or "").endswith("At most 2 steps of a plan may run at the same time.")
    assert (await execute(parallel_vote(2), rule)).outcome is Outcome.ANSWERED


async def test_a_replayed_run_is_held_to_the_rules_of_its_question():
    tags = ("patient",)
    old = await execute(by_hand(Step(subtask="", worker=ADA)), tags=tags)
    rule = PlanRule(name="house", tag="patient", forbidden=(ADA,))
    scripted_state = Orchestra()
    run = await execute(ReplayConductor(old), rule, scripted_state=scripted_state, tags=tags)
    assert run.answer == "bob says 42" and scripted_state.asked == {"bob": 1}
    assert acts(run) == [("house", "left out"), ("house", "repaired")]
    assert run.header.question.tags == tags


async def test_every_round_is_held_to_the_rules():
    conductor, seen = drafts(ONE_STEP.format(1), CHECKED)
    first = by_hand(Step(subtask="", worker=ADA), Step(subtask="Check", worker=BOB, access=(0,)))
    run = await execute(RecursiveConductor(first, conductor), NEEDS_CHECK, limits=Limits(rounds=2))
    assert len(run.rounds) == 2 and "because of a rule" in seen[1]
    assert acts(run) == [("two-eyes", "sent back")]


async def test_a_refused_later_round_leaves_the_answer_that_stands():
    late = by_hand(*(Step(subtask="x", worker=one) for one in IDS))
    late = RecursiveConductor(by_hand(Step(subtask="", worker=ADA)), _Again(late))
    run = await execute(late, PlanRule(name="narrow", max_parallel=1), limits=Limits(rounds=2))
    assert run.outcome is Outcome.ANSWERED and run.answer == "ada says 42"
    assert acts(run) == [("narrow", "refused")]


class _Again:
    """A corrector that always writes the other conductor's first workflow."""

    name = "again"

    def __init__(self, inner: FixedConductor) -> None:
        self.inner = inner

    async def plan(self, context, listener=None):
        return await self.inner.plan(replace(context, previous=()))


@pytest.mark.parametrize("forbidden", [(ADA,), (ADA, BOB), (BOB, CLEO)])
async def test_a_forbidden_worker_is_called_by_nobody_whatever_fails(forbidden):
    """The planned worker, its substitutes, the fallback and a second worker beside a slow one."""
    failing = next(one for one in IDS if one not in forbidden)
    scripted_state = Orchestra(failing)
    rule = PlanRule(name="never", forbidden=forbidden)
    flow = by_hand(Step(subtask="a", worker=ADA), Step(subtask="b", worker=BOB, access=(0,)))
    patience = TimeoutPolicy(step_seconds=5.0, hedge_seconds=0.001)
    run = await execute(flow, rule, scripted_state=scripted_state, set={"timeouts": patience})
    assert not scripted_state.asked.keys() & set(forbidden)
    assert {worker.id for worker in run.header.pool} == set(IDS) - set(forbidden)
    for garbled in (drafts("nothing")[0], drafts(ONE_STEP.format(0))[0]):
        await execute(garbled, rule, scripted_state=scripted_state)
    assert not scripted_state.asked.keys() & set(forbidden)


async def test_where_everybody_is_forbidden_nobody_is_asked():
    scripted_state = Orchestra()
    rule = PlanRule(name="never", forbidden=IDS, says="These questions stay here.")
    conductor, seen = drafts(CHECKED)
    run = await execute(conductor, rule, scripted_state=scripted_state)
    assert run.outcome is Outcome.REFUSED and not scripted_state.asked and not seen
    assert run.error == "the rule never for plans: These questions stay here."


async def test_a_forbidden_model_does_not_conduct_either():
    conductor, seen = drafts(CHECKED)
    rule = PlanRule(name="never", forbidden=(WorkerId("writer"),))
    wrapped = RecursiveConductor(conductor, conductor)
    run = await execute(wrapped, rule)
    assert run.outcome is Outcome.FALLBACK and not seen


async def test_the_answerer_does_not_stand_in_for_its_checker():
    scripted_state = Orchestra(BOB)
    conductor, _ = drafts(CHECKED)
    run = await execute(conductor, NEEDS_CHECK, scripted_state=scripted_state)
    assert run.answer == "cleo says 42" and scripted_state.asked["ada"] == 1
    alone = Orchestra(BOB, CLEO)
    run = await execute(drafts(CHECKED)[0], NEEDS_CHECK, scripted_state=alone)
    assert run.answer is None and run.outcome is Outcome.FAILED and alone.asked["ada"] == 1


async def test_rules_of_other_tags_change_nothing():
    conductor, seen = drafts(ONE_STEP.format(0))
    run = await execute(conductor, replace(NEEDS_CHECK, tag="patient"), tags=("public",))
    assert len(seen) == 1 and run.answer == "ada says 42" and not run.guards


async def test_a_self_check_is_given_to_another_provider():
    flow = by_hand(Step(subtask="a", worker=ADA), Step(subtask="Check", worker=BOB, access=(0,)))
    homes = {ADA: "north", BOB: "north", CLEO: "south"}
    run = await execute(flow, PlanRule(name="self", no_self_check=True), providers=homes)
    assert run.answer == "cleo says 42" and acts(run) == [("self", "repaired")]


async def test_a_dry_run_shows_the_plan_that_keeps_the_rules():
    conductor, _ = drafts(ONE_STEP.format(0))
    run = await execute(conductor, NEEDS_CHECK, set={"dry_run": True})
    assert run.outcome is Outcome.PLANNED and run.expected and len(run.expected.steps) == 2
