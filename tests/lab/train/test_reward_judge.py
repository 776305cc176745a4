"""`[reward] judge`: a worker of the pool grades what no rule decides, and only then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from batuta.core import Pool, Task, TaskId, Worker, WorkerId
from batuta.errors import ConfigError
from batuta.lab.train.episodes import Episode
from batuta.lab.train.preflight import check_training
from batuta.lab.train.rollout_setup import RolloutRunnerFactory
from batuta.lab.train.rollouts import PolicyDraft
from batuta.lab.train.run_folder import RunFolder
from fakes import FakeOpenAI
from lab.train.loopback import ENVIRONMENT, pool_file
from lab.train.stage import settings

pytestmark = pytest.mark.anyio
DRAFT = 'subtasks = ["Solve it."]\nmodel_id = ["{}"]\naccess_list = [[]]'
WORDED = Task(
    id=TaskId("worded"),
    question="Why is the sky blue?",
    target="short waves are scattered more",
    grader="judge",
)
BY_RULE = Task(id=TaskId("sum"), question="What is 20 plus 22?", target="42", grader="integer")


def say(body: dict[str, Any]) -> str:
    """Flute scatters, oboe paints; harp judges by the word."""
    if body["model"] == "harp":
        answer = str(body["messages"][-1]["content"]).partition("<agent_response>")[2]
        return f"GRADE: {int('scatter' in answer)}"
    return {"flute": "Blue is scattered most. Answer: 42", "oboe": "It is painted. Answer: 41"}[
        body["model"]
    ]


async def earn(
    folder: Path, task: Task, *, judge: str | None
) -> tuple[list[float | None], list[str]]:
    """What flute's and oboe's answers earn, and every model that was called."""
    async with FakeOpenAI(say, strict_openai=False) as provider:
        told = settings(
            folder,
            pool={"source": str(pool_file(folder, provider.url))},
            reward={"judge": judge},
        )
        factory = RolloutRunnerFactory(told, RunFolder(told.output), [task])
        try:
            runner = await factory()
            pool = Pool(tuple(Worker(id=WorkerId(n), model=n) for n in ("flute", "oboe")))
            episode = Episode(number=0, task=task, pool=pool, seed=1)
            drafts = [(episode, PolicyDraft(text=DRAFT.format(worker.id))) for worker in pool]
            graded = await runner.run_drafts(drafts, [1, 2], step=0)
        finally:
            await factory.close()
        return [one.reward for one in graded], [r.body["model"] for r in provider.requests]


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


async def test_the_named_worker_grades_what_no_rule_decides(tmp_path: Path) -> None:
    rewards, called = await earn(tmp_path, WORDED, judge="harp")
    assert rewards == [1.0, 0.5]
    assert sorted(called) == ["flute", "harp", "harp", "oboe"]


async def test_where_a_rule_decides_nobody_is_asked(tmp_path: Path) -> None:
    rewards, called = await earn(tmp_path, BY_RULE, judge="harp")
    assert rewards == [1.0, 0.5]
    assert sorted(called) == ["flute", "oboe"]


async def test_a_judge_who_is_not_in_the_pool_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"reward\.judge: there is no worker 'bassoon'"):
        await earn(tmp_path, WORDED, judge="bassoon")


def test_the_check_names_a_judge_and_an_executor_that_are_not_there(tmp_path: Path) -> None:
    for pool, said in (
        ({"executor": "spark"}, "there is no executor 'spark'"),
        ({"processes": 2}, "workers are for ray"),
    ):
        missing = check_training(settings(tmp_path, reward={"judge": "bassoon"}, pool=pool)).missing
        assert any("there is no worker 'bassoon' in the pool" in each for each in missing)
        assert any(said in each for each in missing)


def test_the_check_says_whose_calls_a_reward_in_dollars_does_not_charge(tmp_path: Path) -> None:
    pool = pool_file(tmp_path, "http://127.0.0.1:9/v1")
    priced = pool.read_text("utf-8")
    note = 'reward.cost = "usd" charges nothing for calls of flute: their price is unknown'
    for text, known in ((priced, True), (priced.replace("price = ", "# ", 1), False)):
        pool.write_text(text, "utf-8")
        told = settings(tmp_path / "run", reward={"cost": "usd"}, pool={"source": str(pool)})
        assert (note in check_training(told).notes) is not known


async def test_without_a_judge_such_a_task_is_refused_before_anything_is_paid(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match="name a worker as the judge"):
        await earn(tmp_path, WORDED, judge=None)
