"""A training's budget: never passed, kept over a kill, ended with a checkpoint and one sentence."""

from collections import Counter
from contextlib import AsyncExitStack
from decimal import Decimal
from pathlib import Path

import pytest
from anyio import to_thread
from pydantic import ValidationError
from safetensors.torch import load_file

from batuta.core import Task, TaskId
from batuta.errors import ConfigError
from batuta.lab.train.budget import BudgetSpentError, TrainingBudget, paid_so_far
from batuta.lab.train.conductor_training import last_checkpoint, load_pool, train_conductor
from batuta.lab.train.episodes import make_episodes
from batuta.lab.train.rejection_sampling import run_rejection_sampling
from batuta.lab.train.rollout_setup import RolloutRunnerFactory
from batuta.lab.train.rollouts import PolicyDraft
from batuta.lab.train.run_folder import RunFolder
from batuta.lab.train.settings import PoolSettings
from fakes import FakeOpenAI, Said
from lab.train.loopback import ENVIRONMENT, NAMES, Provider, pool_file, questions_file
from lab.train.stage import LIBRARIES, metrics, settings, untimed

pytestmark = LIBRARIES
STEPS = 5
CALL = Decimal("0.000040")
"""Of the fake provider's 20 and 10 tokens, at $1 and $2 a million."""
WORST = Decimal("0.0025")
"""More than a call may cost at most: its prompt's bytes and 200 tokens."""
DEAR_CALL = Decimal("0.0004")
"""Of a provider that bills nearly what a call may cost: few calls are a bill above `WORST`."""


class DearProvider(Provider):
    """Bills 100 and 150 tokens a call."""

    def _say(self, body):
        usage = {"prompt_tokens": 100, "completion_tokens": 150, "total_tokens": 250}
        return Said(super()._say(body), usage=usage)


@pytest.fixture
def key(monkeypatch):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


def told(folder, policy, url, *, pool=None, **optimiser):
    folder.mkdir(exist_ok=True)
    return settings(
        folder / "run",
        optimiser={"steps": STEPS, "questions": 4, "micro_batch": 16, **optimiser},
        policy={"start": str(policy)},
        pool={"source": str(capped_pool(folder, url)), **(pool or {})},
        curriculum=[{"tasks": {str(questions_file(policy.parents[1])): 1.0}}],
    )


def capped_pool(folder, url):
    """A pool whose replies have 200 tokens at most, so that a call's worst case is small."""
    path = pool_file(folder, url)
    text = path.read_text().replace("price =", "sampling = { max_tokens = 200 }\nprice =")
    path.write_text(text)
    return path


async def trained(told_, *, resume=False):
    await to_thread.run_sync(
        lambda: train_conductor(told_, ["pytest"], lambda line: None, resume=resume)
    )


def with_budget(told_, usd):
    return told_.model_copy(update={"pool": told_.pool.model_copy(update={"max_usd": usd})})


async def whole_training(tmp_path, policy, **optimiser):
    """The training without a budget, and what it asked."""
    async with DearProvider() as provider:
        straight = told(tmp_path / "whole", policy, provider.url, **optimiser)
        await trained(straight)
        return straight, provider.answered


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [0, 2])
async def test_a_budget_ends_it_with_a_checkpoint_and_more_money_goes_on_as_if_nothing_had_happened(
    tmp_path, learned, key, staleness
):
    policy = learned / "policy"
    straight, asked = await whole_training(tmp_path, policy, staleness=staleness)
    bill = DEAR_CALL * asked.total()
    async with DearProvider() as provider:
        short = told(tmp_path / "short", policy, provider.url, staleness=staleness)
        limited = with_budget(short, bill / 2 + WORST)
        with pytest.raises(BudgetSpentError) as ended:
            await trained(limited)
        folder = RunFolder(limited.output)
        kept = last_checkpoint(folder)
        done = len(metrics(limited.output))
        assert 0 < done < STEPS and kept is not None and kept.name == f"checkpoint-{done}"
        assert (folder.policy / "model.safetensors").is_file()
        sentence = str(ended.value)
        assert f"ended after {done} of {STEPS} steps" in sentence and "--resume" in sentence
        assert kept.name in sentence and "pool.max_usd = $" in sentence
        assert paid_so_far(limited.output) <= limited.pool.max_usd
        before = provider.answered.total()

        with pytest.raises(BudgetSpentError):  # the same money is spent in another process too
            await trained(limited, resume=True)
        assert len(metrics(limited.output)) == done

        await trained(with_budget(short, Decimal(10)), resume=True)
    assert before < provider.answered.total()
    assert provider.answered == asked, "each call was paid once, and they are the same calls"
    assert untimed(metrics(limited.output)) == untimed(metrics(straight.output))
    one, two = (
        load_file(each.output / "policy" / "model.safetensors") for each in (straight, short)
    )
    assert all(one[name].equal(two[name]) for name in one)


async def test_money_for_no_call_at_all_says_so_and_calls_nobody(tmp_path, learned, key):
    async with Provider() as provider:
        poor = told(tmp_path, learned / "policy", provider.url, pool={"max_usd": "0.000001"})
        with pytest.raises(BudgetSpentError, match=f"after 0 of {STEPS} steps; no step ended"):
            await trained(poor)
    assert not provider.requests
    assert last_checkpoint(RunFolder(poor.output)) is None


async def test_rejection_sampling_ends_by_the_same_budget(tmp_path, learned, key):
    async with Provider() as provider:
        poor = told(tmp_path, learned / "policy", provider.url, pool={"max_usd": "0.003"})
        rejection = poor.rejection.model_copy(update={"rounds": 1, "questions": 8, "group": 4})
        poor = poor.model_copy(update={"rejection": rejection})
        with pytest.raises(
            BudgetSpentError, match=r"pool.max_usd = \$0.0030 .* not pay them twice"
        ):
            await to_thread.run_sync(lambda: run_rejection_sampling(poor, lambda *_: None))
    assert provider.requests and paid_so_far(poor.output) <= Decimal("0.003")
    assert not (poor.output / "rejection").exists(), "it is not fitted to a part of a round"


def budgets(folder, monkeypatch, usd, ranks):
    """The budget of each rank of a training, one after another."""
    for rank in range(ranks):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(ranks))
        yield TrainingBudget(settings(folder, pool={"max_usd": usd}), folder)


def pay(budget, usd):
    """Puts down a paid call of that many dollars."""
    budget._paid.settle(budget._paid.add(Decimal(usd), b"call"), Decimal(usd))


def allowed(budget):
    return budget._budget.allowance.usd


def test_processes_share_what_is_left_and_what_others_have_paid_counts(tmp_path, monkeypatch):
    one, two = budgets(tmp_path, monkeypatch, 10, 2)
    assert allowed(one) == allowed(two) == 5
    pay(one, 3)
    pay(two, 1)
    one.close()
    two.close()
    again = list(budgets(tmp_path, monkeypatch, 10, 2))
    assert [allowed(each) for each in again] == [3 + 3, 1 + 3], "6 are left, 3 for each"
    assert sum(map(allowed, again)) == 10
    (alone,) = budgets(tmp_path, monkeypatch, 10, 1)
    assert allowed(alone) == 3 + 6 and alone.usd == 4, "a process fewer: what it paid counts"
    (spent,) = budgets(tmp_path, monkeypatch, 2, 1)
    assert allowed(spent) == 3, "nothing is left"


@pytest.mark.parametrize("usd", [0, -1, "nan", "inf", "ten"])
def test_a_budget_that_is_none_is_refused(usd):
    with pytest.raises(ValidationError, match="max_usd"):
        PoolSettings(max_usd=usd)


@pytest.mark.parametrize(
    ("pool", "said"),
    [({"journal": False}, "needs pool.journal"), ({"executor": "ray"}, 'use "local"')],
)
async def test_a_budget_that_could_not_be_kept_is_refused_before_a_call(tmp_path, pool, said):
    told_ = settings(tmp_path, pool={"max_usd": 1, **pool})
    with pytest.raises(ConfigError, match=said):
        await RolloutRunnerFactory(told_, RunFolder(tmp_path))()


ONE = 'model_id = ["{}"]\nsubtasks = ["Solve it."]\naccess_list = [[]]'


async def run_one(told_, draft, grader="integer"):
    """A rollout of that draft on the settings' pool."""
    task = Task(id=TaskId("t"), question="What is 3 plus 4?", target="7", grader=grader)
    (episode,) = make_episodes([task], await load_pool(told_), told_.pool, 1)
    opening = RolloutRunnerFactory(told_, RunFolder(told_.output), [task])
    try:
        runner = await opening()
        (found,) = await runner.run_drafts([(episode, PolicyDraft(text=draft))], [5], 0)
    finally:
        await opening.close()
    return found


async def test_a_judge_is_paid_from_the_budget_and_once(tmp_path, key):
    """Its refusal is no grade of the answer."""
    async with FakeOpenAI(lambda body: "Grade: 1.0", strict_openai=False) as provider:
        pool = {"source": str(capped_pool(tmp_path, provider.url)), "max_usd": 1}
        told_ = settings(tmp_path / "run", pool=pool, reward={"judge": NAMES[1]})
        found = await run_one(told_, ONE.format(NAMES[0]), "judge")
        assert found.grade is not None and found.grade.score == 1.0 and not found.refused
        paid, asked = paid_so_far(told_.output), len(provider.requests)
        assert asked == 2 and paid > found.run.cost.usd, "the judge's call is in it"
        await run_one(told_, ONE.format(NAMES[0]), "judge")
        assert len(provider.requests) == asked and paid_so_far(told_.output) == paid
        (tmp_path / "dear").mkdir()
        path = capped_pool(tmp_path / "dear", provider.url)
        one, dear, rest = path.read_text().split("[[workers]]")[1:4]
        dear = dear.replace("input = 1, output = 2", "input = 100, output = 200")
        path.write_text(f"[[workers]]{one}[[workers]]{dear}[[workers]]{rest}")
        pool = {"source": str(path), "max_usd": "0.01"}
        poor = settings(tmp_path / "poor", pool=pool, reward={"judge": NAMES[1]})
        refused = await run_one(poor, ONE.format(NAMES[0]), "judge")
    assert len(provider.requests) == asked + 1, "the worker was asked, its judge was not"
    assert refused.run.answer is not None and refused.refused


async def test_another_model_behind_a_worker_is_asked_anew_within_a_budget_too(
    tmp_path, key, capsys
):
    async with Provider() as provider:
        path = capped_pool(tmp_path, provider.url)
        told_ = settings(tmp_path / "run", pool={"source": str(path), "max_usd": 1})
        await run_one(told_, ONE.format(NAMES[0]))
        await run_one(told_, ONE.format(NAMES[0]))
        assert len(provider.requests) == 1
        text = path.read_text()
        path.write_text(text.replace(f'model = "{NAMES[0]}"', f'model = "{NAMES[1]}"'))
        await run_one(told_, ONE.format(NAMES[0]))
        assert len(provider.requests) == 2, "the first model's reply is not the second one's"
        assert paid_so_far(told_.output) == 2 * CALL
    assert NAMES[1] in capsys.readouterr().err


async def test_every_execution_of_a_workflow_counts(tmp_path, key):
    """The second one's refusal is seen though the first one's run is shown."""
    async with Provider() as provider:
        pool = {"source": str(capped_pool(tmp_path, provider.url)), "max_usd": "0.0014"}
        told_ = settings(tmp_path / "run", pool=pool, reward={"executions": 6})
        found = await run_one(told_, ONE.format(NAMES[0]))
    assert 0 < len(provider.requests) < 6
    assert found.run.answer is not None and found.refused


async def test_the_pools_own_limits_hold_in_training(tmp_path, key):
    """Its places, and its deadline of a run where the training names none."""
    async with AsyncExitStack() as stack:
        slow = await stack.enter_async_context(Provider())
        slow.latency = 5.0
        path = pool_file(tmp_path, slow.url)
        path.write_text(path.read_text() + "\n[limits]\ndeadline_s = 0.5\n")
        told_ = settings(tmp_path / "run", pool={"source": str(path)})
        found = await run_one(told_, ONE.format(NAMES[0]))
        assert found.run.outcome == "limited" and found.run.answer is None
        longer = settings(tmp_path / "longer", pool={"source": str(path), "seconds": 30.0})
        slow.latency = 1.0
        assert (await run_one(longer, ONE.format(NAMES[0]))).run.answer is not None


class Counting(Provider):
    """A provider that counts the requests of each model that wait at the same time."""

    def __init__(self):
        super().__init__()
        self.inside, self.most = Counter(), Counter()

    async def handle(self, request):
        model = (await request.json())["model"]
        self.inside[model] += 1
        self.most[model] = max(self.most[model], self.inside[model])
        try:
            return await super().handle(request)
        finally:
            self.inside[model] -= 1


@pytest.mark.parametrize("places", [1, 2])
async def test_the_pools_places_hold_whatever_the_training_runs_at_once(
    tmp_path, learned, key, places
):
    async with Counting() as provider:
        provider.latency = 0.02
        told_ = told(tmp_path, learned / "policy", provider.url, steps=1, pool={"concurrency": 64})
        path = Path(told_.pool.source)
        path.write_text(path.read_text().replace("price =", f"concurrency = {places}\nprice ="))
        await trained(told_)
    assert max(provider.most.values()) == places
