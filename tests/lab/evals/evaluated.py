"""A subject of scripted workers, questions with known answers, and results made by hand."""

from decimal import Decimal

from batuta.clients import ScriptedClient
from batuta.conductors import parallel_vote
from batuta.core import Pool, Price, Task, TaskId, Worker, WorkerId
from batuta.lab.evals import Subject, TaskSet, TrialResult, evaluate_parts
from batuta.lab.evals.evaluation import EvalPart
from batuta.lab.evals.grading import grade_by_task
from batuta.lab.evals.result_log import StepSummary

PRICE = Price(input=Decimal(1), output=Decimal(3))


def subject(
    say=None, workers=("good", "fair", "bad"), price=PRICE, conductor=None, prices=None, **options
):
    """`good` is always right, `fair` on even questions, `bad` never; unless a script says else."""
    prices = dict.fromkeys(workers, price) | (prices or {})

    def default(worker, request):
        number = int(request.messages[-1].text.split("number ")[1].split("?")[0].split("\n")[0])
        right = worker == "good" or (worker == "fair" and number % 2 == 0)
        return f"Answer: {number if right else -1}"

    speak = say or default
    pool = Pool(tuple(Worker(id=WorkerId(w), model=f"model-{w}", price=prices[w]) for w in workers))
    clients = {
        worker.id: ScriptedClient(lambda r, w=worker.id: speak(w, r), price=prices[worker.id])
        for worker in pool
    }
    return Subject(pool=pool, clients=clients, conductor=conductor or parallel_vote(2), **options)


def questions(count, start=0):
    return tuple(
        Task(
            id=TaskId(f"t{n}"),
            question=f"What is number {n}?",
            target=str(n),
            grader="integer",
            tags=(f"f{n % 2}",),
            difficulty=1.0 + n % 3,
        )
        for n in range(start, start + count)
    )


def task_set(count, calibration=0):
    return TaskSet(
        name="made up",
        tasks=questions(count),
        calibration=questions(calibration, 1000),
        grade=grade_by_task,
    )


async def evaluate_task_set(subject, tasks, names, options, result_log, **more):
    """Measure the systems of those names on one task set."""
    parts = (EvalPart(subject=subject, tasks=tasks, seeds=options.seeds),)
    return await evaluate_parts(parts, names, options=options, result_log=result_log, **more)


def result(task="t0", score=1.0, **fields):
    """A result in which nothing stands out but what is given."""
    made = {
        "key": f"{task}/{fields.get('seed', 0)}/{fields.get('system', 's')}",
        "system": "s",
        "task": task,
        "family": "f",
        "difficulty": 1.0,
        "seed": 0,
        "score": score,
        "unscored": None,
        "reason": "",
        "outcome": "answered",
        "answer": "1",
        "tokens": 10,
        "conductor_tokens": 2,
        "usd": Decimal("0.001"),
        "calls": 2,
        "rounds": 1,
        "depth": 1,
        "steps": (StepSummary("good", "solve"),),
        "failed": 0,
        "seconds": 0.5,
    }
    return TrialResult(**{**made, **fields})
