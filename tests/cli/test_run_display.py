"""A run on a narrow terminal."""

from decimal import Decimal

import pytest
from rich.console import Console

from batuta.core import (
    Attempt,
    Cost,
    Delta,
    Draft,
    Failure,
    Plan,
    Pool,
    Reply,
    Round,
    Step,
    StepDelta,
    StepRetried,
    StepRun,
    StepStarted,
    TimeSpan,
    Usage,
    Worker,
    WorkerId,
    Workflow,
)

SUBTASK = "Work out the tax of each item and show how you did it."


def run_of(cost):
    worker = WorkerId("sonnet")
    flow = Workflow((Step(subtask=SUBTASK, worker=worker),))
    reply = Reply(text="42", usage=Usage(calls=1, input=1000, output=500), cost=cost)
    step = StepRun(
        index=0, planned=worker, worker=worker, request=None, result=reply, span=TimeSpan(0, 2)
    )
    pool = Pool((Worker(id=worker, model="m"),))
    return pool, flow, step, reply


def test_calls_of_unknown_price_leave_the_subtask_its_room(capsys):
    from batuta.cli.run_display import RunDisplay

    _, flow, step, _ = run_of(Cost(usd=Decimal("0.004"), unpriced_calls=2))
    display = RunDisplay("a pool")
    display.recorder.rounds = [Round(decision=Plan(flow, Draft()), workflow=flow, steps=(step,))]
    console = Console(width=100, record=True)
    console.print(display)
    lines = console.export_text().splitlines()
    (row,) = [line for line in lines if "sonnet" in line]
    assert SUBTASK[:40] in row and "≥ $0.0040" in row and "unknown price" not in row


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("retried", "draft", "counts"), [(0, "The answer", (0, 10)), (1, "", (6, 0))]
)
async def test_a_retry_clears_the_draft_and_the_count_of_its_own_step_only(retried, draft, counts):
    from batuta.cli.run_display import RunDisplay

    worker = WorkerId("sonnet")
    flow = Workflow(tuple(Step(subtask=SUBTASK, worker=worker) for _ in range(2)))
    display = RunDisplay("a pool")
    display.recorder.rounds = [Round(decision=Plan(flow, Draft()), workflow=flow)]
    for index, text in enumerate(("Notes.", "The answer")):
        await display.emit(StepStarted(0, index, worker))
        await display.emit(StepDelta(round=0, index=index, worker=worker, delta=Delta(text=text)))
    failure = Failure(code="overloaded", message="busy")
    await display.emit(StepRetried(0, retried, Attempt(worker, failure, 1.0)))
    assert display.draft == draft
    assert tuple(display.received.values()) == counts
