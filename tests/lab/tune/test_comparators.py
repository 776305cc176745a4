"""Every comparator learns within its dollars, and finds in a plain world what it can find."""

import sys
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import settings as rules
from hypothesis import strategies as st

from batuta.clients import ScriptedClient
from batuta.core import Pool, Price, Sampling
from batuta.lab.evals.task_sets import task_family
from batuta.lab.tune.candidate_runner import CallMeter, CandidateRunner
from batuta.lab.tune.judge import describe_system
from batuta.lab.tune.library import Candidate
from batuta.lab.tune.spending import DollarLimit
from batuta.usage import ASSUMED_PRICE
from lab.tune.worlds import CHECKS, EXPERTS, PRICE, grade

sys.path.insert(0, str(Path(__file__).parents[3] / "recipes" / "tune"))
from comparators import (  # pyright: ignore[reportMissingImports]
    COMPARATORS,
    ComparatorContext,
    fit_comparator,
)

SHORT = Sampling(max_tokens=40)
"""No answer is longer: so the worst case of a call is not far from what it costs."""


def open_context(world, usd, *, prices=None, many=250, seed=0):
    """What a method may use; prices in the order of the workers, None: unknown."""
    given = prices or [PRICE] * len(world.workers)
    pool = Pool(
        tuple(replace(w, price=p, sampling=SHORT) for w, p in zip(world.pool, given, strict=True))
    )
    clients = {
        w.id: ScriptedClient(
            lambda request, w=w: world.answer(w.id, request.messages[-1].text), price=w.price
        )
        for w in pool
    }
    meter = CallMeter(ASSUMED_PRICE)
    runner = CandidateRunner(pool, clients, grade, meter, unknown=ASSUMED_PRICE)
    return ComparatorContext(
        runner=runner, tasks=world.tasks(many), family=task_family, usd=usd, seed=seed
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPARATORS)
@pytest.mark.parametrize("usd", [0.004, 0.02])
async def test_it_learns_within_its_dollars_and_answers(name, usd):
    context = open_context(CHECKS, usd, seed=1)
    entry = await fit_comparator(name, context)
    assert 0 < context.runner.meter.usd <= Decimal(str(usd))
    fresh = CHECKS.tasks(20, seed=4)
    assert await context.runner.run_all((task, entry) for task in fresh)
    assignment = {task.id: entry for task in fresh}
    figures = describe_system(name, context.runner, fresh, assignment)
    assert figures.questions == 20 and figures.calls >= 1


PRICES = st.none() | st.builds(
    Price, input=st.decimals("1", "20", places=2), output=st.decimals("0", "90", places=2)
)


@rules(max_examples=16, deadline=None)
@given(
    st.sampled_from(sorted(COMPARATORS)),
    st.permutations(range(3)),
    st.lists(PRICES, min_size=2, max_size=2),
    st.floats(0, 0.02),
)
def test_no_method_ever_costs_more_than_its_dollars(name, order, prices, usd):
    """Prices drawn at random, at least one worker without a price, dollars down to none."""
    prices = [[None, *prices][place] for place in order]
    context = open_context(CHECKS, usd, prices=prices, many=40)
    entry = anyio.run(fit_comparator, name, context)
    assert context.runner.meter.usd <= Decimal(str(usd))
    fresh = CHECKS.tasks(1, seed=4)
    assert anyio.run(context.runner.run_all, [(fresh[0], entry)])


async def test_a_call_that_may_not_fit_is_refused_and_the_runner_says_so():
    context = open_context(CHECKS, 0.0)
    runner, task = context.runner, context.tasks[0]
    runner.meter.limit = DollarLimit(Decimal("0.00001"))
    assert not await runner.run_all([(task, Candidate.single(CHECKS.workers[0]))])
    assert (
        runner.meter.calls == 0
        and runner.find_result(task, Candidate.single(CHECKS.workers[0])) is None
    )
    runner.meter.limit = None
    assert await runner.run_all([(task, Candidate.single(CHECKS.workers[0]))])


async def test_the_best_single_worker_is_found_and_the_router_beats_him_where_there_are_experts():
    shares = {}
    for name in ("best single", "k-means router"):
        context = open_context(EXPERTS, 0.05, many=200)
        entry = await fit_comparator(name, context)
        if name == "best single":
            assert entry == Candidate.single("ada")  # pyright: ignore[reportArgumentType]
        fresh = EXPERTS.tasks(150, seed=5)
        assert await context.runner.run_all((task, entry) for task in fresh)
        assignment = {task.id: entry for task in fresh}
        shares[name] = describe_system(name, context.runner, fresh, assignment).share
    assert shares["k-means router"] > shares["best single"] + 0.15
