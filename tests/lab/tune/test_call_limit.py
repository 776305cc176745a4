"""The system that is nominated keeps the limit of mean calls that it was given."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batuta.core import WorkerId
from batuta.lab.evals.task_sets import task_family
from batuta.lab.tune.call_limit import best_places, find_call_weight, mean_calls
from batuta.lab.tune.candidate_runner import CallMeter, CandidateRunner
from batuta.lab.tune.grouping import ease_bounds, group_questions
from batuta.lab.tune.library import Candidate, CandidateStep, StepRole
from batuta.lab.tune.selection import build_within
from batuta.lab.tune.stages import ULTRA
from batuta.lab.tune.systems import BY_CELL, ONE_FOR_ALL, SystemTable
from batuta.usage import ASSUMED_PRICE
from lab.tune.test_tuning import tune
from lab.tune.worlds import EXPERTS, VOTES, grade

ADA, BEN, CLEO = (WorkerId(name) for name in ("ada", "ben", "cleo"))
TASKS = EXPERTS.tasks(90)
GROUPING = group_questions(TASKS, task_family, labelled=True, most=3, seed=0)
LEVELS = 2


def chain(*steps, stops=False):
    return Candidate(tuple(CandidateStep(StepRole(role), who) for role, who in steps), stops)


LIBRARY = (
    Candidate.single(ADA),
    Candidate.single(BEN),
    chain(("solve", ADA), ("check", BEN)),
    chain(("solve", ADA), ("solve", BEN), ("solve", CLEO), stops=True),
    chain(("plan", CLEO), ("solve", ADA), ("check", BEN), ("check", CLEO)),
)


def draw_table(rng):
    """Beliefs drawn at random: what workflows are worth, and calls that may be believed wrongly."""
    shape = (len(GROUPING.names), len(LIBRARY), LEVELS)
    first = np.array([one.first_round for one in LIBRARY], np.float64)
    longest = np.array([len(one) for one in LIBRARY], np.float64)
    calls = first[:, None] + (longest - first)[:, None] * rng.random(shape)
    group_n, ease_n, _ = GROUPING.reader([task.question for task in TASKS])
    return SystemTable(
        library=LIBRARY,
        worth_gwl=rng.random(shape),
        calls_gwl=calls,
        runs_gw=np.full(shape[:2], 30.0),
        weight_g=np.ones(len(GROUPING.names)),
        call_weight=0.0,
        grouping=GROUPING,
        ease_gl=ease_bounds(group_n, ease_n, len(GROUPING.names), LEVELS),
    )


@given(st.integers(0, 10**6), st.floats(1.0, 5.0), st.floats(0.0, 0.3), st.sampled_from((ONE_FOR_ALL, BY_CELL)))  # fmt: skip
@settings(max_examples=25, deadline=None)
async def test_on_the_questions_of_the_selection_it_asks_no_more_than_the_limit(
    seed, most, least, name
):
    rng = np.random.default_rng(seed)
    table = draw_table(rng)
    outcome = {
        (task.id, one): int(rng.integers(one.first_round, len(one) + 1))
        for task in TASKS
        for one in LIBRARY
    }

    async def measure(system):
        assignment = system.assign(TASKS)
        return float(np.mean([outcome[task.id, assignment[task.id]] for task in TASKS]))

    found = await build_within(table, name, TASKS, measure, most=most, least_weight=least)
    assert await measure(found) <= most
    assert found.call_weight >= least
    free = await build_within(table, name, TASKS, measure, most=None, least_weight=least)
    assert free.call_weight == least
    if await measure(free) <= most and table.find_weight(
        name, table.count_cells(TASKS), most=most, least=least
    ) == least:  # fmt: skip
        assert found.assign(TASKS) == free.assign(TASKS)


@given(st.integers(0, 10**6), st.floats(1.0, 5.0), st.floats(0.0, 0.5))
@settings(max_examples=2 * settings().max_examples, deadline=None)
def test_the_weight_is_the_least_that_keeps_the_limit(seed, most, least):
    rng = np.random.default_rng(seed)
    worth, count = rng.random((5, 7)), rng.integers(0, 9, 5).astype(np.float64)
    calls = rng.integers(1, 6, (5, 7)).astype(np.float64)
    calls[:, 0] = 1.0
    weight = find_call_weight(worth, calls, count, most=most, least=least)

    def calls_at(this):
        return mean_calls(calls, best_places(worth, calls, this), count)

    assert weight >= least and calls_at(weight) <= most
    assert weight == least or calls_at(max(weight - 1e-6, least)) > most


async def count_mean_calls(system, tasks):
    meter = CallMeter(ASSUMED_PRICE)
    runner = CandidateRunner(VOTES.pool, VOTES.clients(), grade, meter, unknown=ASSUMED_PRICE)
    assignment = system.assign(tasks)
    assert await runner.run_all((task, assignment[task.id]) for task in tasks)
    return np.mean([runner.find_result(task, assignment[task.id]).calls for task in tasks])


@pytest.mark.long
async def test_a_tuning_with_a_limit_keeps_it_and_weighs_calls_for_no_more_than_that():
    free, _, parts, _ = await tune(VOTES, 2500, call_weight=0.0)
    kept, *_ = await tune(VOTES, 2500, call_weight=0.0, mean_calls=1.6)
    longer, shorter = free.nominees[ULTRA], kept.nominees[ULTRA]
    assert longer.call_weight == 0 < shorter.call_weight, "what is worth more takes more calls"
    assert any(len(one) > 1 for one in kept.table.library)
    assert await count_mean_calls(longer, parts.selection) > 2.2
    assert await count_mean_calls(shorter, parts.selection) <= 1.6 + 0.1, "few questions were run"
    expected = kept.table.expect_calls(shorter, parts.selection)
    assert 1 <= expected.mean() <= 1.6 + 1e-9
