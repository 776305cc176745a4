"""Any Client can be a worker or the conductor; here scripted ones stand in for real models."""

import anyio

from batuta.clients import ScriptedClient
from batuta.conductors import LLMConductor
from batuta.core import Limits, Pool, Question, Worker, WorkerId
from batuta.engine import conduct

DRAFT = 'model_id = [1, 0]\nsubtasks = ["Plan it.", "Answer by the plan."]\naccess_list = [[], [0]]'


async def main() -> None:
    fast, careful = WorkerId("fast"), WorkerId("careful")
    pool = Pool(
        (
            Worker(id=fast, model="model-a"),
            Worker(id=careful, model="model-b", description="Plans well."),
        )
    )
    clients = {
        fast: ScriptedClient(lambda _: "42"),
        careful: ScriptedClient(lambda _: "Multiply 6 by 7."),
    }
    conductor = LLMConductor(name="mine", client=ScriptedClient(lambda _: DRAFT))
    question = Question.of("What is six times seven?")
    run = await conduct(
        question, conductor, pool, clients, limits=Limits(tokens=10_000, seconds=30)
    )
    print(run.outcome, run.answer, [step.worker for step in run.steps])


anyio.run(main)
