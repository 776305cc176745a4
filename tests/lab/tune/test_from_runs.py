"""Served runs with feedback reach the cards and the selector of the next tuning."""

import pytest

from batuta.clients import ScriptedClient
from batuta.errors import ConfigError
from batuta.lab.evals.judged_runs import read_judged_runs
from batuta.lab.tune.candidate_runner import CallMeter, CandidateRunner
from batuta.lab.tune.context import TuneContext, TuneSettings
from batuta.lab.tune.library import Candidate
from batuta.lab.tune.opening import TuneQuestions, add_served_questions
from batuta.lab.tune.parts import split_questions
from batuta.lab.tune.spending import Allowance
from batuta.lab.tune.stages import TuneStage
from batuta.lab.tune.tuning import run_tuning
from batuta.store import Store
from batuta.usage import ASSUMED_PRICE
from gateway.live_server import Serving, scripted_state
from lab.tune.worlds import EXPERTS, grade

SERVED = EXPERTS.tasks(36, seed=3)
KIND = {task.question: task.tags[0] for task in SERVED}
OWN = EXPERTS.tasks(120, seed=4)


@pytest.fixture
async def runs(tmp_path):
    """A store of runs that were served; all but the last were judged, each in a comment."""
    target = str(tmp_path / "runs.db")
    client = ScriptedClient(lambda request: "Answer: 1")
    async with Store(target) as store:
        async with Serving(scripted_state({"ada": client}, store=store)) as server:
            for place, task in enumerate((*SERVED, OWN[0])):
                said = [{"role": "user", "content": task.question}]
                _, headers, _ = await server.post(json={"model": "batuta-mini", "messages": said})
                run = headers["x-batuta-run-id"]
                judged = {"score": 0.0, "comment": f"Expected: {task.target}"}
                if place != len(SERVED) - 1:
                    status, _, _ = await server.post(f"/v1/runs/{run}/feedback", json=judged)
                    assert status == 200
        await store.flush()
    return target


async def test_questions_that_were_served_and_judged_are_asked_at_the_next_tuning(runs):
    found = await read_judged_runs(runs)
    own = TuneQuestions(name="mine", tasks=OWN, grade=None)
    both = add_served_questions(own, found)
    added = both.tasks[: -len(OWN)]
    assert {task.question for task in added} == {task.question for task in SERVED[:-1]}
    assert {task.target for task in added} == {task.target for task in SERVED[:-1]}
    right = [both.family(one) == KIND[one.question] for one in added]
    assert sum(right) > 0.9 * len(right), "their kind is told by their words"
    parts = split_questions(both.tasks, both.family)
    runner = CandidateRunner(
        EXPERTS.pool,
        EXPERTS.clients(),
        grade,
        CallMeter(ASSUMED_PRICE),
        unknown=ASSUMED_PRICE,
    )
    settings = TuneSettings(allowance=Allowance(calls=3000), last=TuneStage.CALIBRATE)
    context = TuneContext(
        parts=parts, family=both.family, runner=runner, settings=settings, used_minutes=lambda: 0.0
    )
    await run_tuning(context)
    searched = [task for task in parts.search if task in added]
    single = Candidate.single(EXPERTS.workers[0])
    assert searched and any(runner.find_result(task, single) for task in searched), "on the cards"


async def test_alone_they_are_the_questions_and_a_simulated_world_takes_its_own_only(runs):
    found = await read_judged_runs(runs)
    assert add_served_questions(None, found).tasks == found.tasks

    world = TuneQuestions(name="world", tasks=OWN, grade=grade)
    assert add_served_questions(world, found).tasks == OWN


async def test_a_store_without_judged_runs_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(ConfigError, match="there are no runs at"):
        await read_judged_runs(str(tmp_path / "none.db"))
