"""The hand-written conductor: a model among models."""

from itertools import combinations
from random import Random

import pytest

from batuta.core import (
    AcceptedAnswer,
    Plan,
    PlanningContext,
    Pool,
    Question,
    Reply,
    Request,
    Round,
    Sampling,
    StepRun,
    TimeSpan,
    Worker,
    WorkerId,
    Workflow,
    user_message,
)  # fmt: skip
from batuta.lab.worlds import (
    HELD_OUT_FAMILY,
    TRAINING_FAMILIES,
    HandWrittenClient,
    draw_tasks,
    grade_answer,
    hand_written_conductor,
    rehearsal_clients,
    rehearsal_pool,
)
from batuta.language import PromptOptions, conductor_request, parse_workflow
from lab.worlds import workflow_search

pytestmark = pytest.mark.anyio

MODEL = HandWrittenClient(0)
SHOWN = PromptOptions()
ALL = (*TRAINING_FAMILIES, HELD_OUT_FAMILY)


def written(question, among, rendering=SHOWN, **context):
    asked = PlanningContext(question=Question.of(question), pool=among, **context)
    draft = MODEL.reply(conductor_request(asked, rendering, Sampling()))
    return parse_workflow(draft.text, among, max_steps=asked.max_steps, revise=bool(asked.previous))


@pytest.mark.parametrize("size", range(1, 8))
async def test_every_sub_pool_gets_a_workflow(size):
    asked = [t for name in ALL for d in (1, 2, 4, 6) for t in draw_tasks(name, 1, d, difficulty=d)]
    for names in combinations([worker.id for worker in rehearsal_pool()], size):
        among = rehearsal_pool().subset(names).shuffled(Random(size))
        for task in asked:
            assert isinstance(written(task.question, among), Workflow)


@pytest.mark.parametrize("most", range(1, 6))
async def test_it_keeps_to_the_steps_it_may_have(most):
    for task in draw_tasks(None, 60, 2):
        assert len(written(task.question, rehearsal_pool(), max_steps=most)) <= most  # pyright: ignore[reportArgumentType]


async def test_easy_questions_get_one_step_and_hard_ones_more():
    sizes = {
        d: [
            len(written(t.question, rehearsal_pool()))  # pyright: ignore[reportArgumentType]
            for t in draw_tasks(None, 30, 1, difficulty=d)
        ]
        for d in (1, 6)
    }
    assert max(sizes[1]) == 1
    assert min(sizes[6]) >= 3
    hard = written(draw_tasks("facts", 1, 1, difficulty=6)[0].question, rehearsal_pool())
    assert hard.width >= 2  # pyright: ignore[reportAttributeAccessIssue]


async def test_outside_questions_get_one_step_whoever_is_there():
    strangers = Pool(
        tuple(
            Worker(id=WorkerId(f"w{i}"), model="m", description="A general assistant.")
            for i in range(3)
        )
    )
    assert len(written("What is the capital of France?", strangers)) == 1  # pyright: ignore[reportArgumentType]
    assert isinstance(
        written(draw_tasks("text", 1, 1, difficulty=6)[0].question, strangers), Workflow
    )
    anonymous = PromptOptions(descriptions=False)
    assert isinstance(
        written(draw_tasks("mixed", 1, 1, difficulty=6)[0].question, rehearsal_pool(), anonymous),
        Workflow,
    )


async def test_it_goes_by_the_descriptions():
    strangers = Pool((
        Worker(id=WorkerId("a"), model="m", description="Weak at arithmetic; good at text."),
        Worker(id=WorkerId("b"), model="m", description="Excellent at mathematics; weak at text."),
    ))  # fmt: skip
    question = draw_tasks("arithmetic", 1, 1, difficulty=1)[0].question
    assert written(question, strangers).steps[0].worker == "b"  # pyright: ignore[reportAttributeAccessIssue]
    assert (
        written(draw_tasks("text", 1, 1, difficulty=1)[0].question, strangers).steps[0].worker  # pyright: ignore[reportAttributeAccessIssue]
        == "a"
    )


async def test_it_says_that_it_is_hand_written_and_what_it_used():
    context = PlanningContext(question=Question.of("Hello"), pool=rehearsal_pool())
    reply = await MODEL.complete(conductor_request(context, PromptOptions(), Sampling()))
    assert "hand-written" in reply.text
    assert reply.usage.calls == 1
    assert reply.usage.input > 500
    assert 0 < reply.cost.usd < 1
    assert (
        "model_id"
        in (await MODEL.complete(Request(messages=(user_message("no prompt at all"),)))).text
    )


def finished_round(task, replies):
    workflow = written(task.question, rehearsal_pool())
    while len(workflow) != len(replies):  # pyright: ignore[reportArgumentType]
        raise AssertionError(workflow)
    runs = tuple(
        StepRun(
            index=i,
            planned=step.worker,
            worker=step.worker,
            request=None,
            result=Reply(text=text),
            span=TimeSpan(0, 0),
        )
        for i, (step, text) in enumerate(zip(workflow.steps, replies, strict=True))  # pyright: ignore[reportAttributeAccessIssue]
    )
    return Round(decision=Plan(workflow), workflow=workflow, steps=runs)  # pyright: ignore[reportArgumentType]


async def test_it_accepts_answers_that_agree_and_corrects_those_that_differ():
    task = draw_tasks("arithmetic", 1, 1, difficulty=3)[0]
    agreed = finished_round(task, ["1. add 3", "Answer: 7", "Answer: 7"])
    assert isinstance(written(task.question, rehearsal_pool(), previous=(agreed,)), AcceptedAnswer)
    differing = finished_round(task, ["1. add 3", "Answer: 7", "Answer: 8"])
    corrective = written(task.question, rehearsal_pool(), previous=(differing,))
    assert isinstance(corrective, Workflow)
    assert corrective.steps[-1].previous
    short = written(task.question, rehearsal_pool(), previous=(differing,), max_steps=1)
    assert len(short) == 1  # pyright: ignore[reportArgumentType]


async def test_the_engine_conducts_it():
    from batuta.conductors import LLMConductor
    from batuta.engine import conduct

    scripted_state = rehearsal_clients(time_scale=0)
    for task in draw_tasks(None, 12, 5):
        run = await conduct(
            Question.of(task.question),
            LLMConductor(name="hand-written", client=MODEL),
            rehearsal_pool(),
            scripted_state,
            seed=1,
        )
        assert run.answer
        assert grade_answer(task, run.answer).score is not None
        assert run.cost.unpriced_calls == 0
        assert run.rounds[0].workflow == workflow_search.hand_written_writer(rehearsal_pool())(task)
    assert hand_written_conductor.PRICE.input < 1
