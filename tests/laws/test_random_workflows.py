"""Random workflows: well-formed, repeatable, and over the whole language."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from batuta.core import AcceptedAnswer, Plan, PlanningContext, Pool, Question, Worker, WorkerId
from batuta.lab.learners.random_workflows import (
    SOLUTION,
    SUBTASK_TEMPLATES,
    RandomConductor,
    random_workflow,
)
from batuta.language import parse_workflow

POOL = Pool(tuple(Worker(id=WorkerId(name), model=name) for name in ("ann", "bob", "cyd")))


@given(seed=st.integers(0, 10_000), most=st.integers(1, 5))
def test_every_random_workflow_is_valid_and_bounded(seed, most):
    flow = random_workflow(Random(seed), POOL, most)
    assert 1 <= len(flow) <= most
    assert all(step.worker in POOL for step in flow.steps)


async def test_the_same_seed_writes_the_same_draft_and_it_can_be_read():
    for seed in range(50):
        context = PlanningContext(question=Question.of("q"), pool=POOL, seed=seed)
        first, second = [await RandomConductor().plan(context) for _ in range(2)]
        assert isinstance(first, Plan) and first == second
        assert parse_workflow(first.draft.text, POOL) == first.workflow


async def test_a_later_round_accepts_now_and_then():
    first = await RandomConductor().plan(
        PlanningContext(question=Question.of("q"), pool=POOL, seed=0)
    )
    from batuta.core import Round

    round_ = Round(decision=first, workflow=first.workflow)  # pyright: ignore[reportAttributeAccessIssue]
    decisions = [
        await RandomConductor().plan(
            PlanningContext(question=Question.of("q"), pool=POOL, seed=seed, previous=(round_,))
        )
        for seed in range(100)
    ]
    accepted = sum(isinstance(decision, AcceptedAnswer) for decision in decisions)
    assert 10 < accepted < 60
    assert any(step.previous for d in decisions if isinstance(d, Plan) for step in d.workflow.steps)


def test_all_deeds_and_workers_come_up():
    steps = [s for seed in range(400) for s in random_workflow(Random(seed), POOL).steps]
    assert {s.worker for s in steps} == {w.id for w in POOL}
    assert all(
        any(s.subtask.startswith(deed.instruction) for s in steps) for deed in SUBTASK_TEMPLATES
    )
    assert {len(random_workflow(Random(seed), POOL)) for seed in range(100)} == {1, 2, 3, 4, 5}


@given(seed=st.integers(0, 10_000))
def test_words_have_their_objects_and_the_last_step_answers(seed):
    """No solution is verified before there is one, no two are compared where one was read."""
    steps = random_workflow(Random(seed), POOL).steps
    makes = [
        next(d for d in SUBTASK_TEMPLATES if step.subtask.startswith(d.instruction))
        for step in steps
    ]
    assert makes[-1].produces == SOLUTION
    for step, deed in zip(steps, makes, strict=True):
        assert sum(makes[i].produces == SOLUTION for i in step.access) >= deed.needed_solutions
