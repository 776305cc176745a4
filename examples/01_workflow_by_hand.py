"""A workflow written by hand, answered by the rehearsal (simulated workers, offline)."""

import anyio

import batuta
from batuta.core import WorkerId

QUESTION = (
    "Here is a question of dates and units. We have 9 kilometres; express it in metres; "
    "add 6 kilometres; count that amount 2 times; add 10 kilometres. What is the result?"
)
FLOW = batuta.Workflow(
    (
        batuta.Step(subtask="Plan the steps.", worker=WorkerId("piano")),
        batuta.Step(subtask="Solve the question.", worker=WorkerId("tuba"), access=(0,)),
        batuta.Step(subtask="Repair the solution.", worker=WorkerId("oboe"), access=(0, 1)),
    )
)


async def main() -> None:
    async with batuta.open("rehearsal") as session:
        run = await session.ask(QUESTION, workflow=FLOW, seed=1)
    for step in sorted(run.steps, key=lambda step: step.index):
        print(f"{step.worker} read {FLOW.steps[step.index].access}, {step.usage.total} tokens")
    print(run.answer)


anyio.run(main)
