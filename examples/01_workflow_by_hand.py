"""A workflow written by hand, played by the rehearsal orchestra (simulated, offline)."""

import anyio

from batuta.core import Question, Step, WorkerId, Workflow
from batuta.engine import conduct
from batuta.rehearsal import clients, pool
from batuta.solvers import Fixed

FLOW = Workflow(
    (
        Step("Solve the question step by step.", WorkerId("cello")),
        Step("Solve the question step by step.", WorkerId("piano")),
        Step("Compare the solutions and give the final answer.", WorkerId("flute"), (0, 1)),
    )
)


async def main() -> None:
    question = Question.of("Compute the result: begin at 45; square it; double it.")
    run = await conduct(question, Fixed("by hand", lambda _: FLOW), pool(), clients(time_scale=0))
    for step in sorted(run.steps, key=lambda step: step.index):
        print(f"{step.worker} read {FLOW.steps[step.index].access}, {step.usage.total} tokens")
    print(run.answer)


anyio.run(main)
