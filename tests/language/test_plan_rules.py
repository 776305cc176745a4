"""Laws of the rules for plans: what breaks them, and what a repair makes of it."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.core import Pool, Step, Worker, WorkerId, Workflow
from batuta.language.plan_rules import (
    NO_RULES,
    PlanRule,
    PlanRules,
    is_check,
    most_parallel,
)

IDS = tuple(map(WorkerId, ("ada", "bob", "cleo", "dan")))
PROVIDERS = {IDS[0]: "north", IDS[1]: "north", IDS[2]: "south", IDS[3]: "east"}


@st.composite
def workflows(draw: st.DrawFn) -> Workflow:
    steps: list[Step] = []
    for index in range(draw(st.integers(1, 5))):
        access = draw(st.sets(st.integers(0, index - 1))) if index else set[int]()
        said = draw(st.sampled_from(["", "Solve it.", "Check the answer."]))
        worker = draw(st.sampled_from(IDS))
        steps.append(Step(subtask=said, worker=worker, access=tuple(sorted(access))))
    return Workflow(tuple(steps))


@st.composite
def rule_sets(draw: st.DrawFn) -> PlanRules:
    possible = (
        PlanRule(name="wide", max_parallel=draw(st.integers(1, 3))),
        PlanRule(name="self", no_self_check=True),
        PlanRule(name="check", needs_check=True),
        PlanRule(name="never", forbidden=tuple(draw(st.sets(st.sampled_from(IDS), min_size=1)))),
    )
    chosen = draw(st.lists(st.sampled_from(possible), unique=True))
    return PlanRules(tuple(chosen), PROVIDERS)


def waits_for(workflow: Workflow, late: int, early: int) -> bool:
    access = workflow.steps[late].access
    return early in access or any(waits_for(workflow, between, early) for between in access)


@given(workflows())
def test_the_most_that_runs_at_once_is_the_largest_set_of_steps_without_order(workflow):
    free = [
        len(some)
        for size in range(1, len(workflow) + 1)
        for some in combinations(range(len(workflow)), size)
        if not any(waits_for(workflow, late, early) for early, late in combinations(some, 2))
    ]
    assert most_parallel(workflow) == max(free)


@given(workflows(), rule_sets(), st.integers(1, 5))
def test_a_repaired_workflow_keeps_every_rule_and_asks_nobody_forbidden(workflow, rules, most):
    able = [worker for worker in IDS if worker not in rules.forbidden]
    broken = rules.find_broken(workflow)
    if broken is None:
        return
    fixed = rules.repair(workflow, able, most)
    if fixed is None:
        return
    assert rules.find_broken(fixed) is None
    assert {step.worker for step in fixed.steps} <= set(able)
    assert len(fixed) <= max(most, len(workflow))
    assert [(s.subtask, s.access) for s in workflow.steps] == [
        (s.subtask, s.access) for s in fixed.steps[: len(workflow)]
    ]


def step(worker: str, *access: int, subtask: str = "Solve it.") -> Step:
    return Step(subtask=subtask, worker=WorkerId(worker), access=access)


@pytest.mark.parametrize(
    ("steps", "breaks"),
    [
        ((step("ada"),), False),  # nothing is read, so nothing is checked
        ((step("ada"), step("bob", 0, subtask="Check it.")), True),
        ((step("ada"), step("bob", 0)), True),  # the last step has the last word
        ((step("ada"), step("cleo", 0, subtask="Check it.")), False),
        ((step("ada"), step("dan"), step("bob", 0, 1, subtask="Check both.")), False),
        ((step("ada"), step("bob", 0, subtask="Verify."), step("cleo", 0, 1)), True),
    ],
)
def test_nobody_checks_the_answers_of_their_own_provider_alone(steps, breaks):
    rules = PlanRules((PlanRule(name="self", no_self_check=True),), PROVIDERS)
    assert (rules.find_broken(Workflow(steps)) is not None) is breaks


@pytest.mark.parametrize(
    ("steps", "breaks"),
    [
        ((step("ada"),), True),
        ((step("ada", subtask="Check it."),), True),  # it reads nobody
        ((step("ada"), step("ada", 0, subtask="Check it.")), True),
        ((step("ada"), step("bob", subtask="Check it.")), True),
        ((step("ada"), step("bob", 0, subtask="Put it well.")), True),
        ((step("ada"), step("bob", 0, subtask="Double-check it.")), False),
        ((step("ada"), step("bob", 0, subtask="Check."), step("ada", 1)), True),
    ],
)
def test_an_answer_is_checked_if_its_last_step_checks_what_another_worker_said(steps, breaks):
    rules = PlanRules((PlanRule(name="check", needs_check=True),))
    assert (rules.find_broken(Workflow(steps)) is not None) is breaks


def test_a_corrective_step_reads_the_round_before():
    rules = PlanRules((PlanRule(name="check", needs_check=True),))
    flow = Workflow((Step(subtask="Check it.", worker=WorkerId("bob"), previous=True),))
    assert rules.find_broken(flow) is not None
    assert rules.find_broken(flow, [WorkerId("bob")]) is not None
    assert rules.find_broken(flow, [WorkerId("ada")]) is None


def test_rules_are_chosen_by_tenant_and_tag():
    rules = PlanRules(
        (
            PlanRule(name="all", no_self_check=True),
            PlanRule(name="acme", no_self_check=True, tenant="acme"),
            PlanRule(name="patient", no_self_check=True, tag="patient"),
            PlanRule(name="both", no_self_check=True, tenant="acme", tag="patient"),
        )
    )

    def names(tenant: str, *tags: str) -> list[str]:
        return [rule.name for rule in rules.of_tenant(tenant).of_tags(tags).rules]

    assert names("zeta") == ["all"]
    assert names("acme") == ["all", "acme"]
    assert names("zeta", "other", "patient") == ["all", "patient"]
    assert names("acme", "patient") == ["all", "acme", "patient", "both"]
    assert NO_RULES.of_tenant("acme").of_tags(("patient",)) is NO_RULES


def test_a_rule_has_one_kind():
    with pytest.raises(ValueError, match="exactly one kind"):
        PlanRule(name="none")
    with pytest.raises(ValueError, match="exactly one kind"):
        PlanRule(name="two", needs_check=True, no_self_check=True)


def test_words_that_check():
    said = ["Verify the proof", "review it", "Critique the plan", "Please proofread"]
    assert all(is_check(step("ada", subtask=one)) for one in said)
    assert not is_check(step("ada", subtask="Write the checkout page".replace("check", "sold")))


def test_nobody_forbidden_is_left_in_a_pool():
    rules = PlanRules((PlanRule(name="never", forbidden=IDS[:2]),))
    pool = Pool(tuple(Worker(id=one, model="m") for one in IDS))
    assert [worker.id for worker in rules.allowed_workers(pool)] == ["cleo", "dan"]
    assert rules.forbidding_rule(IDS[0]) is rules.rules[0]
    assert rules.forbidding_rule(IDS[2]) is None
