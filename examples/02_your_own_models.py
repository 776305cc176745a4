"""Any Client can play or conduct; here scripted ones stand in for real models."""

import anyio

from batuta.clients import Scripted
from batuta.core import Limits, Pool, Question, Worker, WorkerId
from batuta.engine import conduct
from batuta.solvers import Learned

DRAFT = 'model_id = [1, 0]\nsubtasks = ["Plan it.", "Answer by the plan."]\naccess_list = [[], [0]]'


async def main() -> None:
    fast, careful = WorkerId("fast"), WorkerId("careful")
    pool = Pool((Worker(fast, "model-a"), Worker(careful, "model-b", "Plans well.")))
    clients = {fast: Scripted(lambda _: "42"), careful: Scripted(lambda _: "Multiply 6 by 7.")}
    conductor = Learned("mine", Scripted(lambda _: DRAFT))
    question = Question.of("What is six times seven?")
    run = await conduct(
        question, conductor, pool, clients, limits=Limits(tokens=10_000, seconds=30)
    )
    print(run.outcome, run.answer, [step.worker for step in run.steps])


anyio.run(main)
