"""Shares right that are drawn for a whole kind at once are those of the world's own programs."""

import sys
from pathlib import Path

import pytest

from batuta.lab.evals.task_sets import task_family
from batuta.lab.tune.candidate_runner import CallMeter, CandidateRunner
from batuta.lab.tune.library import Candidate, CandidateStep, StepRole
from batuta.usage import ASSUMED_PRICE
from lab.tune.drawn_worlds import draw_world
from lab.tune.worlds import grade

sys.path.insert(0, str(Path(__file__).parents[3] / "recipes" / "tune"))
from shares import KindOfQuestion  # pyright: ignore[reportMissingImports]

MANY = 200
"""Questions of one kind: the share of them that is right has a standard error of 3.5 points at most."""


def flow(text, *, stops=False):
    """Return the workflow of steps such as `check ada`, a second wording marked by an apostrophe."""
    steps = [one.rpartition(" ") for one in text.split(" > ")]
    return Candidate(
        tuple(CandidateStep(StepRole(role.rstrip("'")), who, role.count("'")) for role, _, who in steps),
        stops=stops,
    )  # fmt: skip


FLOWS = [
    flow("solve ada"),
    flow("plan' ben > look up cleo > solve ada > check ben"),
    flow("plan ada > plan ben > solve cleo"),
    flow("solve ada > solve ada > solve ben > decide cleo > check ada"),
    flow("solve ada > solve ben > solve cleo", stops=True),
    flow("look up ben > solve cleo > check ada > check ben", stops=True),
    flow("solve ben > solve cleo > decide' ada", stops=True),
]


@pytest.mark.slow
@pytest.mark.parametrize("number", [700, 702, 720])
async def test_a_share_of_a_whole_kind_is_what_the_programs_of_that_world_get(number):
    world = draw_world(number)
    kind = world.kinds[0]
    tasks = [one for one in world.tasks(6 * MANY, seed=5) if task_family(one) == kind][:MANY]
    runner = CandidateRunner(
        world.pool, world.clients(), grade, CallMeter(ASSUMED_PRICE), unknown=ASSUMED_PRICE
    )
    assert await runner.run_all((task, one) for task in tasks for one in FLOWS)
    drawn = KindOfQuestion(world, kind)
    for one in FLOWS:
        ran = [found for task in tasks if (found := runner.find_result(task, one)) is not None]
        share, calls = drawn.measure(one)
        right = sum(found.score or 0.0 for found in ran) / MANY
        asked = sum(found.calls for found in ran) / MANY
        assert abs(right - share) < 0.1, (str(one), right, share)
        assert abs(asked - calls) < 0.25, (str(one), asked, calls)
