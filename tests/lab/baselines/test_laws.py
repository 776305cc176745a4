"""Every method keeps the solver's laws."""

from collections import Counter

import anyio
import pytest
from troupe import PRICE, QUESTION, Counted, Troupe

from batuta.clients import ScriptedClient
from batuta.conductors import LLMConductor
from batuta.core import Outcome, WorkerId
from batuta.errors import ProviderOverloadedError
from batuta.lab.baselines import (
    BestOfN,
    ConductorSolver,
    MixtureOfAgents,
    MixtureSolver,
    PassAtK,
    PromptedConductor,
    SelfConsistency,
    SelfReflection,
    SingleWorker,
    fixed_pipeline,
    with_best_worker,
    with_shuffled_access,
    with_solve_only_subtasks,
)  # fmt: skip
from batuta.lab.learners.random_workflows import RandomConductor

pytestmark = pytest.mark.anyio

LISTS = 'model_id = [0, {0}, 0]\nsubtasks = ["Plan.", "Solve.", "Check."]\naccess_list = [[], [0], [0, 1]]'


def learned(troupe):
    """A conductor whose own calls are counted with the others'."""
    text = LISTS.format(len(troupe.pool) - 1)
    troupe.clients[WorkerId("conductor")] = Counted(ScriptedClient(lambda _: text, price=PRICE))
    return LLMConductor(name="scripted", client=troupe.clients[WorkerId("conductor")])


SOLVERS = {
    "single": lambda t: SingleWorker(WorkerId("w0")),
    "best-single": lambda t: SingleWorker(),
    "self-consistency": lambda t: SelfConsistency(7),
    "best-of-n": lambda t: BestOfN(4),
    "self-reflection": lambda t: SelfReflection(),
    "moa": lambda t: MixtureSolver(),
    "moa-8": lambda t: MixtureSolver(MixtureOfAgents(2, 7)),
    "pipeline": lambda t: ConductorSolver(fixed_pipeline(), 5),
    "random": lambda t: ConductorSolver(RandomConductor()),
    "random, 3 rounds": lambda t: ConductorSolver(RandomConductor(), rounds=3),
    "prompted": lambda t: ConductorSolver(PromptedConductor(t.clients)),
    "ultra": lambda t: ConductorSolver(learned(t)),
    "ultra-solve-only": lambda t: ConductorSolver(with_solve_only_subtasks(learned(t))),
    "ultra-shuffled-access": lambda t: ConductorSolver(with_shuffled_access(learned(t))),
    "ultra-best-worker": lambda t: ConductorSolver(with_best_worker(learned(t))),
    "pass@k": lambda t: PassAtK(3),
}

each_method = pytest.mark.parametrize("name", SOLVERS)


@each_method
@pytest.mark.parametrize("size", [1, 2, 7])
async def test_the_workflow_fits_the_pool_and_the_number_of_calls(name, size):
    troupe = Troupe(size)
    solver = SOLVERS[name](troupe)
    run = await solver.answer(QUESTION, troupe.context, 3)
    assert run.outcome in {Outcome.ANSWERED, Outcome.FALLBACK}, run.error
    assert {step.worker for step in run.steps} <= {worker.id for worker in troupe.pool}
    assert all(step.worker == step.planned for step in run.steps)
    assert solver.calls is None or 1 <= len(run.steps) <= solver.calls
    assert len(run.rounds) <= 4
    assert solver.name and solver.name == SOLVERS[name](Troupe(size)).name


@each_method
async def test_the_account_is_the_sum_of_all_calls(name):
    troupe = Troupe(5)
    run = await SOLVERS[name](troupe).answer(QUESTION, troupe.context, 3)
    assert run.usage == troupe.usage
    assert run.cost == troupe.cost
    assert run.usage.calls == len(troupe.requests) > 0


@each_method
async def test_an_outage_is_data_and_paid_for(name):
    troupe = Troupe(3, say=lambda worker, request: ProviderOverloadedError("the house is full"))
    run = await SOLVERS[name](troupe).answer(QUESTION, troupe.context, 3)
    assert run.outcome is Outcome.FAILED and run.answer is None
    assert "the house is full" in run.error and run.error_code == "overloaded"


@each_method
async def test_cancellation_ends_every_call(name):
    troupe = Troupe(4, latency=30)
    with anyio.move_on_after(0.05) as scope:
        await SOLVERS[name](troupe).answer(QUESTION, troupe.context, 3)
    assert scope.cancelled_caught
    assert all(client.active == 0 for client in troupe.clients.values())


@each_method
async def test_the_same_seed_asks_the_same_and_no_two_calls_share_one(name):
    asked = []
    for seed in (5, 5, 6):
        troupe = Troupe(3)
        run = await SOLVERS[name](troupe).answer(QUESTION, troupe.context, seed)
        seeds = [step.request.sampling.seed for step in run.steps]
        assert len(set(seeds)) == len(seeds) and None not in seeds
        asked.append(Counter(map(repr, troupe.requests)))
    assert asked[0] == asked[1] != asked[2]


@pytest.mark.parametrize(
    "name", ["single", "best-single", "self-consistency", "self-reflection", "pass@k"]
)
async def test_nobody_stands_in_for_the_worker_that_is_measured(name):
    troupe = Troupe(
        3,
        say=lambda worker, request: (
            ProviderOverloadedError("full") if worker == "w0" else "Answer: 1"
        ),
    )
    run = await SOLVERS[name](troupe).answer(QUESTION, troupe.context, 3)
    assert run.answer is None
    assert {step.worker for step in run.steps} == {"w0"}


@pytest.mark.parametrize(
    "make",
    [
        lambda: SelfConsistency(0),
        lambda: BestOfN(0),
        lambda: PassAtK(0),
        lambda: MixtureOfAgents(1),
        lambda: MixtureOfAgents(3, 0),
    ],
)
def test_a_method_without_calls_cannot_be_made(make):
    with pytest.raises(ValueError, match="at least"):
        make()
