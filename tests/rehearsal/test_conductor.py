"""The hand-written conductor: a model among models."""

from itertools import combinations
from random import Random

import pytest

from batuta.core import (
    Accepted,
    Brief,
    Plan,
    Pool,
    Question,
    Reply,
    Request,
    Round,
    Sampling,
    Span,
    StepRun,
    Worker,
    WorkerId,
    Workflow,
    user,
)  # fmt: skip
from batuta.language import Rendering, conductor_request, parse
from batuta.rehearsal import (
    FAMILIES,
    HELD_OUT_FAMILY,
    HandWritten,
    clients,
    conductor,
    grade,
    pool,
    tasks,
)

pytestmark = pytest.mark.anyio

MODEL = HandWritten(0)
SHOWN = Rendering()
ALL = (*FAMILIES, HELD_OUT_FAMILY)


def written(question, among, rendering=SHOWN, **brief):
    asked = Brief(Question.of(question), among, **brief)
    draft = MODEL.reply(conductor_request(asked, rendering, Sampling()))
    return parse(draft.text, among, max_steps=asked.max_steps, revise=bool(asked.previous))


@pytest.mark.parametrize("size", range(1, 8))
async def test_every_sub_pool_gets_a_workflow(size):
    asked = [t for name in ALL for d in (1, 2, 4, 6) for t in tasks(name, 1, d, difficulty=d)]
    for names in combinations([worker.id for worker in pool()], size):
        among = pool().subset(names).shuffled(Random(size))
        for task in asked:
            assert isinstance(written(task.question, among), Workflow)


@pytest.mark.parametrize("most", range(1, 6))
async def test_it_keeps_to_the_steps_it_may_have(most):
    for task in tasks(None, 60, 2):
        assert len(written(task.question, pool(), max_steps=most)) <= most


async def test_easy_questions_get_one_step_and_hard_ones_more():
    sizes = {
        d: [len(written(t.question, pool())) for t in tasks(None, 30, 1, difficulty=d)]
        for d in (1, 6)
    }
    assert max(sizes[1]) == 1
    assert min(sizes[6]) >= 3
    hard = written(tasks("facts", 1, 1, difficulty=6)[0].question, pool())
    assert hard.width >= 2


async def test_outside_questions_get_one_step_whoever_is_there():
    strangers = Pool(
        tuple(Worker(WorkerId(f"w{i}"), "m", "A general assistant.") for i in range(3))
    )
    assert len(written("What is the capital of France?", strangers)) == 1
    assert isinstance(written(tasks("text", 1, 1, difficulty=6)[0].question, strangers), Workflow)
    anonymous = Rendering(descriptions=False)
    assert isinstance(
        written(tasks("mixed", 1, 1, difficulty=6)[0].question, pool(), anonymous), Workflow
    )


async def test_it_goes_by_the_descriptions():
    strangers = Pool((
        Worker(WorkerId("a"), "m", "Weak at arithmetic; good at text."),
        Worker(WorkerId("b"), "m", "Excellent at mathematics; weak at text."),
    ))  # fmt: skip
    question = tasks("arithmetic", 1, 1, difficulty=1)[0].question
    assert written(question, strangers).steps[0].worker == "b"
    assert written(tasks("text", 1, 1, difficulty=1)[0].question, strangers).steps[0].worker == "a"


async def test_it_says_that_it_is_hand_written_and_what_it_used():
    brief = Brief(Question.of("Hello"), pool())
    reply = await MODEL.complete(conductor_request(brief, Rendering(), Sampling()))
    assert "hand-written" in reply.text
    assert reply.usage.calls == 1
    assert reply.usage.input > 500
    assert 0 < reply.cost.usd < 1
    assert "model_id" in (await MODEL.complete(Request((user("no prompt at all"),)))).text


def played(task, replies):
    workflow = written(task.question, pool())
    while len(workflow) != len(replies):
        raise AssertionError(workflow)
    runs = tuple(
        StepRun(i, step.worker, step.worker, None, Reply(text), Span(0, 0))
        for i, (step, text) in enumerate(zip(workflow.steps, replies, strict=True))
    )
    return Round(Plan(workflow), workflow=workflow, steps=runs)


async def test_it_accepts_answers_that_agree_and_corrects_those_that_differ():
    task = tasks("arithmetic", 1, 1, difficulty=3)[0]
    agreed = played(task, ["1. add 3", "Answer: 7", "Answer: 7"])
    assert isinstance(written(task.question, pool(), previous=(agreed,)), Accepted)
    differing = played(task, ["1. add 3", "Answer: 7", "Answer: 8"])
    corrective = written(task.question, pool(), previous=(differing,))
    assert isinstance(corrective, Workflow)
    assert corrective.steps[-1].previous
    short = written(task.question, pool(), previous=(differing,), max_steps=1)
    assert len(short) == 1


async def test_the_engine_conducts_it():
    from batuta.engine import conduct
    from batuta.rehearsal import check
    from batuta.solvers import Learned

    orchestra = clients(time_scale=0)
    for task in tasks(None, 12, 5):
        run = await conduct(
            Question.of(task.question), Learned("hand-written", MODEL), pool(), orchestra, seed=1
        )
        assert run.answer
        assert grade(task, run.answer).score is not None
        assert run.cost.unpriced_calls == 0
        assert run.rounds[0].workflow == check.hand_written(pool())(task)
    assert conductor.PRICE.input < 1
