"""Providers that fail in every way at random: runs answer all the same, and the books agree."""

from decimal import Decimal

import anyio
import pytest

from batuta.clients import (
    BreakerPolicy,
    HttpTransport,
    RetryPolicy,
    Secret,
    WorkerHealth,
    WorkerSpec,
    open_client,
)
from batuta.conductors import LLMConductor
from batuta.core import Outcome, Pool, Price, Question, Worker, WorkerId
from batuta.engine import RunHooks, conduct
from fakes.chaotic import REFUSED, Chaotic
from fakes.server import KEY

pytestmark = pytest.mark.anyio
RUNS = 120
ABREAST = 20
RATE = 0.3
PRICES = {
    "ada": Price(input=Decimal("0.37"), output=Decimal("1.13")),
    "bob": Price(input=Decimal("2.5"), output=Decimal("9.99")),
    "eve": Price(input=Decimal("0.071"), output=Decimal("0.283")),
}
PLAN = 'model_id=[0,1,2] subtasks=["a","b","c"] access_list=[[],[],["all"]]'
QUICK = RetryPolicy(attempts=3, base=0.001, cap=0.002)


def plan_or_nonsense(rng):
    """Now and then a conductor writes something that is no plan; it is owed all the same."""
    return PLAN if rng.random() > 0.1 else '{"model_id": [0, 1'


@pytest.mark.slow
@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
async def test_runs_answer_and_the_books_agree(streaming):
    fakes = {name: Chaotic(f"{name} says 42.", at, RATE) for at, name in enumerate(PRICES)}
    boss = Chaotic(plan_or_nonsense, 7, RATE, REFUSED)
    runs = []
    async with (
        HttpTransport(connect=1.0, idle=1.0) as http,
        boss,
        fakes["ada"],
        fakes["bob"],
        fakes["eve"],
    ):
        health = {name: WorkerHealth(BreakerPolicy(5, pause=0.02)) for name in (*PRICES, "boss")}

        def client(name, fake):
            worker = Worker(id=WorkerId(name), model="m", price=PRICES.get(name, PRICES["ada"]))
            spec = WorkerSpec(
                worker=worker, provider="compatible", base_url=fake.url, key=Secret(KEY)
            )
            return worker, open_client(spec, http, policy=QUICK, health=health[name])

        cast = [client(name, fake) for name, fake in fakes.items()]
        pool = Pool(tuple(worker for worker, _ in cast))
        clients = {worker.id: each for worker, each in cast}
        conductor = LLMConductor(name="boss", client=client("boss", boss)[1])

        async def heard(event):
            pass

        async def some(count):
            for _ in range(count):
                question = Question.of("What is six times seven?")
                emit = heard if streaming else None
                runs.append(
                    await conduct(question, conductor, pool, clients, hooks=RunHooks(emit=emit))
                )

        with anyio.fail_after(100):
            async with anyio.create_task_group() as tasks:
                for _ in range(ABREAST):
                    tasks.start_soon(some, RUNS // ABREAST)

    good = {Outcome.ANSWERED, Outcome.FALLBACK, Outcome.DEGRADED}  # by a substitute
    answered = [run for run in runs if run.outcome in good]
    assert len(answered) >= 0.99 * RUNS, [run.error for run in runs if run not in answered]
    assert all("42" in run.answer for run in answered)
    assert sum(fake.broken for fake in fakes.values()) > RUNS * 0.3  # it was chaos indeed

    # Every call that was served is in the runs, with its tokens and its price, to the last digit.
    for name, fake in fakes.items():
        told = [r.usage for r in results(runs, name) if r.usage.calls and not r.usage.estimated]
        assert sorted((u.input, u.output) for u in told) == sorted(fake.served)
        assert sum(r.usage.estimated for r in results(runs, name)) == fake.broken
        owed = sum((owes(PRICES[name], *tokens) for tokens in fake.served), Decimal(0))
        paid = sum((r.cost.usd for r in results(runs, name) if not r.usage.estimated), Decimal(0))
        assert paid == owed
    drafts = [d for run in runs for round_ in run.rounds for d in round_.conductor_drafts]
    owed = sum((owes(PRICES["ada"], *tokens) for tokens in boss.served), Decimal(0))
    assert sum((draft.cost.usd for draft in drafts), Decimal(0)) == owed
    # And what a run says it cost is the sum of its calls, estimated ones too.
    every = sum((r.cost.usd for name in PRICES for r in results(runs, name)), Decimal(0))
    assert sum((run.cost.usd for run in runs), Decimal(0)) == every + owed


def results(runs, name):
    """Replies and failures of that worker, those of failed attempts too."""
    for run in runs:
        for step in run.steps:
            if step.worker == name:
                yield step.result
            yield from (a.failure for a in step.attempts if a.worker == name)


def owes(price, given, made):
    return (given * price.input + made * price.output) / Decimal(1_000_000)
