"""The world after the shift: one worker has degraded and nobody was told, another has joined."""

import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from batuta.clients import HttpTransport
from batuta.conductors import FixedConductor, LLMConductor
from batuta.config.load import load_config
from batuta.config.settings_file import read_settings
from batuta.core import PlanningContext, Pool, Question, Request, user_message
from batuta.errors import ConfigError
from batuta.lab.baselines import ConductorSolver, SolverContext, fixed_pipeline
from batuta.lab.train.settings import TrainSettings
from batuta.lab.worlds import (
    TRAINING_FAMILIES,
    draw_tasks,
    grade_answer,
    rehearsal_clients,
    rehearsal_pool,
)
from batuta.lab.worlds.client import RehearsalClient
from batuta.lab.worlds.pools import WORLD_PROFILES
from batuta.lab.worlds.profiles import PROFILES

pytestmark = pytest.mark.anyio

RECIPES = Path(__file__).parents[3] / "recipes"
SHIFT = RECIPES / "shift"
BEFORE, AFTER = (rehearsal_clients(time_scale=0, world=world) for world in ("", "shifted"))


def said(worker, task, world):
    return world[worker].reply(Request(messages=(user_message(task.question),))).text


def right(worker, asked, world):
    return sum(grade_answer(task, said(worker, task, world)).score for task in asked) / len(asked)  # pyright: ignore[reportArgumentType, reportCallIssue]


def test_one_worker_has_changed_and_one_has_joined():
    old = {profile.name: profile for profile in PROFILES}
    new = {profile.name: profile for profile in WORLD_PROFILES["shifted"]}
    assert [*new] == [*old, "celesta"]
    assert [name for name in old if new[name] != old[name]] == ["harp"]


def test_nobody_is_told_that_it_degraded():
    now = rehearsal_pool("shifted")
    assert now.workers[:-1] == rehearsal_pool().workers
    assert now.ranked()[0].id == "harp", "it is still believed to be as strong as it was"


def test_the_others_say_what_they_always_said():
    for task in draw_tasks(None, 10, 12):
        for worker in BEFORE:
            if worker != "harp":
                assert said(worker, task, AFTER) == said(worker, task, BEFORE)


def test_the_newcomer_is_good_where_the_old_one_was():
    asked = draw_tasks("facts", 200, 12)
    before = right("harp", asked, BEFORE)
    after = {worker: right(worker, asked, AFTER) for worker in AFTER}
    newcomer = after.pop("celesta")  # pyright: ignore[reportArgumentType]
    assert after["harp"] < before - 0.15  # pyright: ignore[reportArgumentType]
    assert newcomer > before - 0.05
    assert max(after.values()) < newcomer - 0.2, "nobody else can take its place"


def test_the_newcomer_is_as_strong_as_it_is_said_to_be():
    measured = right("celesta", draw_tasks(None, 400, 13), AFTER)
    assert rehearsal_pool("shifted")["celesta"].strength == pytest.approx(measured, abs=0.08)
    assert measured < 0.6, "it does not make the world easy"


def best(name, world):
    """The pool in which that worker was measured to be the best."""
    return Pool(
        tuple(
            replace(w, strength=1.0 if w.id == name else 0.3) for w in rehearsal_pool(world).workers
        )
    )


async def pipeline(workers, asked, world):
    """What the pipeline that was set up over those workers answers rightly in that world."""
    context = PlanningContext(question=Question.of("Any."), pool=workers)
    flow = (await fixed_pipeline().plan(context)).workflow  # pyright: ignore[reportAttributeAccessIssue]
    solver_context = SolverContext(pool=workers, clients=AFTER if world else BEFORE)
    conducted = ConductorSolver(FixedConductor("as set up", lambda _: flow))
    runs = [await conducted.answer(Question.of(task.question), solver_context, 1) for task in asked]
    scores = [grade_answer(task, run.answer).score for task, run in zip(asked, runs, strict=True)]  # pyright: ignore[reportArgumentType]
    return sum(scores) / len(scores)  # pyright: ignore[reportArgumentType, reportCallIssue]


async def test_a_pipeline_that_trusts_the_old_one_breaks():
    asked = draw_tasks("facts", 60, 14)
    before = await pipeline(best("harp", ""), asked, "")
    after = await pipeline(best("harp", "shifted"), asked, "shifted")
    anew = await pipeline(best("celesta", "shifted"), asked, "shifted")
    assert after < before - 0.15
    assert anew > after + 0.1


async def test_the_pool_opens_by_name_with_the_shipped_conductor():
    async with HttpTransport() as http:
        ensemble = await load_config(http, pool="rehearsal:shifted", time_scale=0.0)
        assert ensemble.simulated and "after the shift" in ensemble.source
        assert isinstance(ensemble.conductor, LLMConductor)
        assert ensemble.pool == rehearsal_pool("shifted") and set(ensemble.clients) == set(AFTER)
        assert all(isinstance(client, RehearsalClient) for client in ensemble.clients.values())
        with pytest.raises(
            ConfigError, match="write rehearsal, rehearsal:shifted, rehearsal:SEED or"
        ):
            await load_config(http, pool="rehearsal:other")


def test_the_recipe_asks_another_mix_and_its_policy_can_write_the_new_name():
    told = read_settings(SHIFT / "shift.toml", TrainSettings)
    (stage,) = told.curriculum
    assert told.pool.source == "rehearsal:shifted"
    assert {name.partition(":")[2] for name in stage.tasks} == set(TRAINING_FAMILIES)
    assert sum(stage.tasks.values()) == pytest.approx(1)
    assert stage.tasks["rehearsal:facts"] == max(stage.tasks.values()) > 1 / len(TRAINING_FAMILIES)
    first = tomllib.loads((RECIPES / "rehearsal-conductor" / "conductor.toml").read_text())
    assert "celesta" in first["warmup"]["names"]


@pytest.mark.long
def test_the_table_of_the_recipe_is_printed():
    command = [sys.executable, str(SHIFT / "table.py"), "--limit", "10"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == "| system | before | after | tokens after |"
    assert sum("set up anew" in line for line in lines) == 3
    assert any(line.startswith("| **conductor, as trained before** |") for line in lines)
    assert "Of the conductor's calls, those of harp: before" in done.stdout
