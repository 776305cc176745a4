"""A tuning's runs in other processes: the same results, one budget, and no call is paid twice."""

import os
import sys
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import settings as rules
from hypothesis import strategies as st

from batuta.clients import ScriptedClient
from batuta.clients.cache import CallCache, CallCacheClient
from batuta.clients.replay import request_fingerprint
from batuta.core import Failure, Usage
from batuta.core.conductor import NULL_LISTENER
from batuta.errors import ProviderOverloadedError, StoreError
from batuta.lab.baselines import SelfConsistency
from batuta.lab.evals.task_sets import task_family
from batuta.lab.executor import LocalExecutor, open_executor
from batuta.lab.tune.candidate_runner import CallMeter, CandidateRunner
from batuta.lab.tune.context import TuneContext, TuneSettings
from batuta.lab.tune.library import Candidate
from batuta.lab.tune.parts import split_questions
from batuta.lab.tune.remote_runs import RemoteRuns, TuneRunJob
from batuta.lab.tune.spending import Allowance, BudgetedClient, PaidCalls, TuneBudget
from batuta.lab.tune.tuning import run_tuning
from batuta.usage import ASSUMED_PRICE, usage_cost
from fakes.executors import Dying, Pickling
from fakes.ray_cluster import open_ray_cluster
from lab.tune import worlds
from lab.tune.worlds import CHECKS, PRICE, every_candidate, grade

LIBRARY = [*every_candidate(CHECKS.workers, 2), SelfConsistency(2)]


class Noted:
    """A worker that writes down every call that reaches it, and is late."""

    def __init__(self, worker, made):
        self.worker, self.made = worker, made

    async def complete(self, request, listener=NULL_LISTENER):
        self.made.append((self.worker, request.messages[-1].text, request_fingerprint(request)))
        await anyio.sleep(0.001)
        return await ScriptedClient(
            lambda asked: CHECKS.answer(self.worker, asked.messages[-1].text), price=PRICE
        ).complete(request, listener)


@asynccontextmanager
async def opened(executor=None, allowance=None, grader=grade, clients=None):
    """A runner on that executor, its budget, and the calls that were made; files are in memory."""
    made, memory = [], Path(":memory:")
    clients = clients or {w: Noted(w, made) for w in CHECKS.workers}
    pool, allowance = CHECKS.pool, allowance or Allowance(calls=10**6)
    with CallCache(memory) as journal, PaidCalls(memory) as paid:
        budget = TuneBudget(allowance, paid)
        wrapped = {
            one.id: CallCacheClient(BudgetedClient(clients[one.id], one, budget), journal, one.id)
            for one in pool
        }
        meter = CallMeter(ASSUMED_PRICE)
        runner = CandidateRunner(pool, wrapped, grader, meter, unknown=ASSUMED_PRICE, concurrency=6)
        if executor is not None:
            job = TuneRunJob(
                pool=pool, ranked=pool, unknown=ASSUMED_PRICE, seed=0, grades_steps=True,
                kinds=(), grade=grader, judge=None, sandbox="auto",
            )  # fmt: skip
            runner.elsewhere = RemoteRuns(executor, job, wrapped, meter)
        yield runner, budget, made, paid


def figures(runner, planned):
    """Everything but the seconds, question by question."""
    found = {}
    for task, entry in planned:
        one = runner.find_result(task, entry)
        found[task.id, str(entry)] = one and replace(one, seconds=0.0)
    return found


def plan(questions, library=tuple(LIBRARY)):
    return [(task, entry) for task in CHECKS.tasks(questions) for entry in library]


async def test_every_run_is_the_same_wherever_it_is_executed():
    planned = plan(2)
    async with opened() as (runner, budget, made, _):
        assert await runner.run_all(planned)
        here = figures(runner, planned), sorted(made), budget.usd, runner.meter.usage
    async with opened(Pickling()) as (runner, budget, made, _):
        assert await runner.run_all(planned)
        there = figures(runner, planned), sorted(made), budget.usd, runner.meter.usage
    assert len(here[0]) > 60 and None not in here[0].values()
    assert here == there


async def test_a_whole_tuning_is_the_same():
    async def tune(executor):
        async with opened(executor) as (runner, budget, made, _):
            context = TuneContext(
                parts=split_questions(CHECKS.tasks(100), task_family),
                family=task_family,
                runner=runner,
                settings=TuneSettings(allowance=Allowance(calls=250)),
                used_minutes=lambda: 0.0,
            )
            found = await run_tuning(context)
            return found.judged, found.comparisons, found.tried, Counter(made), budget.usd

    here = await tune(None)
    assert here[0] and here == await tune(Pickling())


@pytest.fixture(scope="module")
def undisturbed():
    """What the workflows did on one question, and its calls and dollars."""

    async def main():
        async with opened() as (runner, budget, made, _):
            await runner.run_all(plan(1))
            return figures(runner, plan(1)), sorted(made), budget.usd

    return anyio.run(main)


@rules(max_examples=10, deadline=None)
@given(deaths=st.sets(st.integers(1, 35), max_size=20))
def test_deaths_change_nothing_and_no_call_is_made_twice(undisturbed, deaths):
    executor = Dying(deaths)

    async def main():
        async with opened(executor) as (runner, budget, made, paid):
            assert await runner.run_all(plan(1))
            assert paid.sum_up() == (len(made), budget.usd)
            return figures(runner, plan(1)), sorted(made), budget.usd

    found = anyio.run(main)
    fatal = {number for number in deaths if number <= executor.asked}
    assert bool(fatal) <= executor.died <= len(fatal), "an item that asks twice dies once"
    assert found == undisturbed
    assert len(set(found[1])) == len(found[1])


@rules(max_examples=12, deadline=None)
@given(
    deaths=st.sets(st.integers(1, 35), max_size=20),
    usd=st.decimals("0", "0.02", places=4),
    most=st.integers(1, 30),
)
def test_whoever_dies_neither_dollars_nor_calls_are_passed(deaths, usd, most):
    allowance = Allowance(usd=usd, calls=most)

    async def main():
        executor = Dying(deaths)
        async with opened(executor, allowance) as (runner, budget, made, paid):
            whole = await runner.run_all(plan(2))
            return whole, made, budget.usd, budget.calls, paid.sum_up()

    whole, made, spent, calls, on_disk = anyio.run(main)
    assert not whole
    assert spent <= usd and len(made) == calls <= most
    assert on_disk == (calls, spent)
    assert len(set(made)) == len(made)


async def test_once_a_call_was_refused_no_new_one_is_made():
    planned = [(task, Candidate.single(w)) for task in CHECKS.tasks(30) for w in CHECKS.workers]
    async with opened(Pickling(), Allowance(calls=20)) as (runner, budget, made, _):
        assert not await runner.run_all(planned)
        assert len(made) == budget.calls == 20
        assert figures(runner, planned) == dict.fromkeys(figures(runner, planned))
        asked = [pair for pair in planned if (pair[1].steps[0].worker, pair[0].question) in
                 {(worker, text) for worker, text, _ in made}]  # fmt: skip
        assert await runner.run_all(asked) and len(made) == 20, "what was paid is there"


async def test_attempts_that_failed_count_for_the_run_and_in_the_budget():
    cost = usage_cost(Usage(calls=1, input=1000), PRICE)

    class Flaky:
        def __init__(self, worker):
            self.worker = worker

        async def complete(self, request, listener):
            usage = Usage(calls=1, input=1000)
            await listener.on_failure(
                Failure(code="overloaded", message="busy", usage=usage, cost=cost)
            )
            if self.worker == "cleo":
                raise ProviderOverloadedError("busy", usage=usage, cost=cost)
            return await Noted(self.worker, []).complete(request, listener)

    planned = [(CHECKS.tasks(1)[0], Candidate.single(w)) for w in CHECKS.workers]
    found = []
    for executor in (None, Pickling()):
        clients = {w: Flaky(w) for w in CHECKS.workers}
        async with opened(executor, clients=clients) as (runner, budget, _, _):
            assert await runner.run_all(planned)
            found.append((figures(runner, planned), budget.usd, budget.calls))
    assert found[0] == found[1]
    scores = [one.score for one in found[0][0].values()]
    assert scores[2] is None and None not in scores[:2] and found[0][2] == 6


async def test_a_disk_that_is_full_ends_the_tuning_wherever_runs_are_executed(tmp_path):
    class Full(CallCache):  # pyright: ignore[reportGeneralTypeIssues]
        def write(self, worker, request, reply):
            raise StoreError("the disk is full")

    pool, meter = CHECKS.pool, CallMeter(ASSUMED_PRICE)
    with Full(tmp_path / "calls.db") as journal:
        clients = {w: CallCacheClient(Noted(w, []), journal, w) for w in CHECKS.workers}
        runner = CandidateRunner(pool, clients, grade, meter, unknown=ASSUMED_PRICE)
        here = await _outcome(runner)
        job = TuneRunJob(
            pool=pool, ranked=pool, unknown=ASSUMED_PRICE, seed=0, grades_steps=True,
            kinds=(), grade=grade, judge=None, sandbox="auto",
        )  # fmt: skip
        runner = CandidateRunner(pool, clients, grade, meter, unknown=ASSUMED_PRICE)
        runner.elsewhere = RemoteRuns(LocalExecutor(), job, clients, meter)
        assert await _outcome(runner) == here


async def _outcome(runner):
    planned = plan(1, [Candidate.single(CHECKS.workers[0])])
    try:
        whole = await runner.run_all(planned)
    except StoreError as error:
        return str(error)
    return whole, figures(runner, planned)


@pytest.fixture(scope="module")
def ray_cluster():
    with open_ray_cluster(sys.modules[__name__], worlds) as ray:
        yield ray


def deadly_grader(folder, kill):
    """Grades, and kills its own process at some questions, once each; it travels by value."""

    async def grade_or_die(task, answer):
        fuse = folder / f"killed-{task.id}"
        if task.question in kill and not fuse.exists():
            fuse.touch()
            os.kill(os.getpid(), 9)
        return await grade(task, answer)

    return grade_or_die


@pytest.mark.timeout(400)  # a busy machine takes long to start Ray
@pytest.mark.parametrize("most", [pytest.param(10**6, marks=pytest.mark.long), 60])
async def test_killed_actors_of_ray_pay_nothing_twice_and_pass_no_budget(
    ray_cluster, tmp_path, most
):
    """Real processes, killed while they hold replies that were paid: three times, at any moment."""
    planned = plan(5, LIBRARY[::3])
    allowance = Allowance(calls=most)
    async with opened(None, allowance) as (runner, _, made, _):
        whole = await runner.run_all(planned)
        undisturbed = figures(runner, planned), Counter(made)
    kill = {task.question for task in CHECKS.tasks(5)[1:4]}
    grader = deadly_grader(tmp_path, kill)
    async with (
        open_executor("ray", 2) as executor,
        opened(executor, allowance, grader) as (runner, budget, made, paid),
    ):
        assert await runner.run_all(planned) is whole is (most == 10**6)
        assert len(list(tmp_path.glob("killed-*"))) >= 1
        assert max(Counter(made).values()) == 1, (
            "what a dead actor had asked for is not asked again"
        )
        assert paid.sum_up() == (len(made), budget.usd)
        if whole:
            assert (figures(runner, planned), Counter(made)) == undisturbed
        else:
            assert budget.calls <= most
