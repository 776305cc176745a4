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
        batuta.Step("Plan the steps.", WorkerId("piano")),
        batuta.Step("Solve the question.", WorkerId("tuba"), (0,)),
        batuta.Step("Repair the solution.", WorkerId("oboe"), (0, 1)),
    )
)


async def main() -> None:
    async with batuta.open("rehearsal") as session:
        run = await session.ask(QUESTION, workflow=FLOW, seed=1)
    for step in sorted(run.steps, key=lambda step: step.index):
        print(f"{step.worker} read {FLOW.steps[step.index].access}, {step.usage.total} tokens")
    print(run.answer)


anyio.run(main)
