"""Conductors by name: workers in a row."""

import pytest

from batuta.core import Plan, PlanningContext, Pool, Question, Worker, WorkerId
from batuta.errors import ConfigError
from batuta.solvers.open_conductor import open_conductor
from batuta.solvers.prompted import ConductorOptions

pytestmark = pytest.mark.anyio
POOL = Pool(tuple(Worker(id=WorkerId(one), model=one) for one in ("coder", "facts", "python")))


async def test_workers_in_a_row_each_read_everything_before_them():
    chain = open_conductor("chain/facts > coder>python", POOL, {}, ConductorOptions())
    decision = await chain.plan(PlanningContext(question=Question.of("How many?"), pool=POOL))
    assert isinstance(decision, Plan)
    steps = decision.workflow.steps
    assert [(step.worker, step.access) for step in steps] == [
        ("facts", ()),
        ("coder", (0,)),
        ("python", (0, 1)),
    ]
    assert steps[0].subtask == ""
    assert all(step.subtask for step in steps[1:])


@pytest.mark.parametrize("name", ["chain/", "chain/coder>", "chain/coder>nobody"])
def test_a_chain_of_workers_that_are_not_there_is_refused(name):
    with pytest.raises(ConfigError, match="there is no conductor"):
        open_conductor(name, POOL, {}, ConductorOptions())
