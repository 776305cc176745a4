"""Provider limits hold over all processes of a training: in Redis, or by each process's part."""

import asyncio
import os

import pytest

from batuta.config.load import load_config
from batuta.core import Pool, Worker, WorkerId
from batuta.errors import ConfigError
from batuta.lab.train.conductor_training import load_pool
from batuta.lab.train.episodes import make_episodes
from batuta.lab.train.questions import draw_questions
from batuta.lab.train.rollout_setup import RolloutRunnerFactory
from batuta.lab.train.rollouts import PolicyDraft
from batuta.lab.train.run_folder import RunFolder
from fakes import FakeOpenAI
from fakes.server import KEY
from lab.train.loopback import questions_file
from lab.train.stage import settings

REDIS = os.environ.get("BATUTA_TEST_REDIS", "redis://127.0.0.1:6379")
CAP, RANKS, DRAFTS = 4, 2, 12


class Watched(FakeOpenAI):
    """Knows how many calls were in it at the same time."""

    def __init__(self):
        super().__init__(self._say, strict_openai=False, latency=0.02)
        self.answered = self.most = 0

    def _say(self, body):
        self.most = max(self.most, len(self.requests) - self.answered)
        self.answered += 1
        return "Answer: 1"


def told(folder, url, name, cap=CAP, **pool):
    file = folder / "pool.toml"
    file.write_text(
        f'[[workers]]\nid = "{name}"\nprovider = "compatible"\nbase_url = "{url}"\nmodel = "m"\n'
        f'key_env = "LOOPBACK_KEY"\nconcurrency = {cap}\n'
    )
    return settings(
        folder,
        pool={"source": str(file), "journal": False, **pool},
        curriculum=[{"tasks": {str(questions_file(folder)): 1.0}}],
        optimiser={"questions": DRAFTS, "micro_batch": DRAFTS * 4},
    )


async def run_ranks(told_, name, ranks=RANKS, monkeypatch=None):
    """The same drafts on each rank, all at the same time."""
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    monkeypatch.setenv("LOOPBACK_KEY", KEY)
    pool = Pool((Worker(id=WorkerId(name), model="m"),))
    asked = make_episodes(draw_questions(told_), pool, told_.pool, told_.seed)[:DRAFTS]
    text = f'model_id = ["{name}"]\nsubtasks = ["Solve it."]\naccess_list = [[]]'
    rows = [(episode, PolicyDraft(text=text)) for episode in asked]

    async def run_rank(rank):
        opening = RolloutRunnerFactory(told_, RunFolder(told_.output), [e.task for e in asked])
        try:
            return await (await opening()).run_drafts(rows, range(DRAFTS), 0)
        finally:
            await opening.close()

    return await asyncio.gather(*map(run_rank, range(ranks)))


@pytest.fixture
def redis():
    module = pytest.importorskip("redis")
    client = module.Redis.from_url(REDIS)
    try:
        client.ping()
    except module.ConnectionError as error:
        pytest.skip(f"no Redis at {REDIS}: {error}")
    client.close()
    return REDIS


async def test_two_ranks_keep_the_limit_of_one_account_in_redis(tmp_path, monkeypatch, redis):
    monkeypatch.setenv("BATUTA_REDIS", redis)
    name = f"rank-{os.getpid()}"
    async with Watched() as provider:
        rollouts = await run_ranks(
            told(tmp_path, provider.url, name), name, monkeypatch=monkeypatch
        )
        assert provider.most == CAP
    assert [len(each) for each in rollouts] == [DRAFTS] * RANKS
    assert all(row.reward is not None for each in rollouts for row in each)


async def test_without_redis_each_rank_takes_its_part(tmp_path, monkeypatch):
    monkeypatch.delenv("BATUTA_REDIS", raising=False)
    async with Watched() as provider:
        await run_ranks(told(tmp_path, provider.url, "w"), "w", monkeypatch=monkeypatch)
        assert provider.most == CAP


async def test_batches_of_one_rank_share_its_runs(tmp_path, monkeypatch):
    """Two batches are in flight, and no more runs than the setting says."""
    monkeypatch.setenv("LOOPBACK_KEY", KEY)
    async with Watched() as provider:
        told_ = told(tmp_path, provider.url, "w", cap=64, concurrency=3)
        pool = await load_pool(told_)
        asked = make_episodes(draw_questions(told_), pool, told_.pool, told_.seed)[:DRAFTS]
        text = 'model_id = ["w"]\nsubtasks = ["Solve it."]\naccess_list = [[]]'
        rows = [(episode, PolicyDraft(text=text)) for episode in asked]
        opening = RolloutRunnerFactory(told_, RunFolder(told_.output), [e.task for e in asked])
        runner = await opening()
        await asyncio.gather(*(runner.run_drafts(rows, range(DRAFTS), n) for n in (0, 1, 2)))
        await opening.close()
        assert provider.most == 3 and provider.answered == 3 * DRAFTS


async def test_a_limit_that_cannot_be_divided_is_said(tmp_path, monkeypatch):
    monkeypatch.delenv("BATUTA_REDIS", raising=False)
    with pytest.raises(ConfigError, match="concurrency = 1 cannot be divided among 2 processes"):
        await run_ranks(
            told(tmp_path, "http://127.0.0.1:9", "w", cap=1), "w", monkeypatch=monkeypatch
        )


async def test_every_limit_of_every_place_is_divided(tmp_path, monkeypatch):
    from batuta.clients import HttpTransport, WorkerSpec
    from batuta.clients.providers import DeploymentSpec
    from batuta.config.workers import divide_limits

    worker = Worker(id=WorkerId("w"), model="m")
    other = DeploymentSpec(spec=WorkerSpec(worker=worker, concurrency=9, rpm=30))
    spec = WorkerSpec(worker=worker, concurrency=8, rpm=61, tpm=None, deployments=(other,))
    (part,) = divide_limits((spec,), 3)
    assert (part.concurrency, part.rpm, part.tpm) == (2, 20, None)
    assert part.deployments[0].spec.concurrency == 3 and part.deployments[0].spec.rpm == 10
    async with HttpTransport() as http:
        assert (await load_config(http, pool="rehearsal", conductor="best", processes=9)).simulated
