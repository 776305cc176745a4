"""Rollouts on an executor's processes earn what they earn in this one, draft by draft."""

import asyncio

import pytest

from batuta.errors import ConfigError
from batuta.lab import worlds
from batuta.lab.train.episodes import make_episodes
from batuta.lab.train.questions import draw_questions
from batuta.lab.train.rollout_setup import RolloutRunnerFactory
from batuta.lab.train.rollouts import PolicyDraft
from batuta.lab.train.run_folder import RunFolder
from fakes.ray_cluster import open_ray_cluster
from lab.train.stage import settings

pytestmark = pytest.mark.timeout(600)  # Ray's start takes minutes where others compute
QUESTIONS, GROUP = 6, 4
ONE = 'model_id = ["{0}"]\nsubtasks = ["Solve it."]\naccess_list = [[]]'
TWO = 'model_id = ["{0}", "{1}"]\nsubtasks = ["Plan it.", "Solve it."]\naccess_list = [[], [0]]'


@pytest.fixture(scope="module")
def ray_cluster():
    with open_ray_cluster() as ray:
        yield ray


def told(folder, executor, **pool):
    return settings(
        folder,
        optimiser={"questions": QUESTIONS, "group": GROUP, "micro_batch": QUESTIONS * GROUP},
        pool={"permute": True, "executor": executor, "concurrency": 8, **pool},
        reward={"executions": 2, "cost": "calls", "unit": 5, "coefficient": 0.2},
    )


async def run_drafts(folder, executor, **pool):
    """Rewards, answers, costs and grades of drafts that are right, wrong and malformed."""
    chosen = told(folder, executor, **pool)
    asked = make_episodes(
        draw_questions(chosen), worlds.rehearsal_pool(), chosen.pool, chosen.seed
    )[:QUESTIONS]
    rows = []
    for number, episode in enumerate(asked):
        names = [str(worker.id) for worker in episode.pool]
        texts = [
            ONE.format(names[number % len(names)]),
            TWO.format(*names[:2]),
            TWO.format(*names[-2:]),
            "I would ask the flute.",
        ]
        rows += [(episode, PolicyDraft(text=text, prompt_tokens=9, tokens=7)) for text in texts]
    opening = RolloutRunnerFactory(chosen, RunFolder(folder), [each.task for each in asked])
    try:
        found = await (await opening()).run_drafts(rows, range(100, 100 + len(rows)), 0)
    finally:
        await opening.close()
    assert [each.draft for each in found] == [draft for _, draft in rows]
    return [
        (each.reward, each.run.answer, each.run.outcome, each.run.cost, each.grade and each.grade.score)
        for each in found
    ]  # fmt: skip


@pytest.mark.slow
async def test_the_cluster_runs_what_this_process_runs(ray_cluster, tmp_path):
    here = await run_drafts(tmp_path / "here", "local")
    assert len({reward for reward, *_ in here}) > 2, "some are right, some wrong, some dear"
    there = await run_drafts(tmp_path / "there", "ray", processes=2)
    assert there == here


async def test_an_executor_that_is_not_there_is_said(tmp_path):
    with pytest.raises(ConfigError, match="choose local, ray"):
        await run_drafts(tmp_path, "slurm")
    with pytest.raises(ConfigError, match="workers are for ray"):
        await run_drafts(tmp_path, "local", processes=3)


@pytest.mark.slow
async def test_batches_that_are_run_at_the_same_time_wait_for_each_other(ray_cluster, tmp_path):
    """An actor serves one job at a time; with staleness several are in flight."""
    chosen = told(tmp_path, "ray", processes=2)
    asked = make_episodes(
        draw_questions(chosen), worlds.rehearsal_pool(), chosen.pool, chosen.seed
    )[:QUESTIONS]
    rows = [(e, PolicyDraft(text=ONE.format(e.pool.workers[0].id))) for e in asked]
    opening = RolloutRunnerFactory(chosen, RunFolder(tmp_path), [each.task for each in asked])
    try:
        runner = await opening()
        both = await asyncio.gather(*(runner.run_drafts(rows, range(6), 0) for _ in range(3)))
    finally:
        await opening.close()
    rewards = [[each.reward for each in one] for one in both]
    assert len(rewards[0]) == QUESTIONS and rewards[0] == rewards[1] == rewards[2]
