"""The bill before a training: assumed and said so, at most, or foretold from some real calls."""

from decimal import Decimal

import pytest
from anyio import to_thread

from batuta.core import Pool, Price, Worker, WorkerId
from batuta.core.worker import Sampling
from batuta.lab.train.bill import (
    CostEstimate,
    Preflight,
    _add_budget,
    _add_evaluation,
    bound_workflow_usd,
)
from batuta.lab.train.budget import paid_so_far
from batuta.lab.train.preflight import check_training
from fakes.openai import USAGE
from lab.train.loopback import ENVIRONMENT, Provider, pool_file, questions_file
from lab.train.stage import LIBRARIES, settings

pytestmark = LIBRARIES
CALLS = 30
PAID = Decimal("0.000040")
"""What the fake provider's call costs: 20 and 10 tokens at $1 and $2 a million."""


@pytest.fixture
def key(monkeypatch):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


def told(tmp_path, policy, url, **pool):
    return settings(
        tmp_path / "run",
        optimiser={"steps": 50, "questions": 4, "group": 8, "micro_batch": 32},
        policy={"start": str(policy)},
        pool={"source": str(pool_file(tmp_path, url)), **pool},
        curriculum=[{"tasks": {str(questions_file(tmp_path)): 1.0}}],
    )


async def check(told_, calls=0):
    report = await to_thread.run_sync(lambda: check_training(told_, calls=calls))
    return report, {each.name: each for each in report.figures}


def test_the_pool_of_pulled_models_is_no_file(tmp_path):
    told_ = settings(tmp_path / "run", pool={"source": "local"})
    missing = check_training(told_, {"XDG_CACHE_HOME": str(tmp_path)}).missing
    assert not any("cannot be read" in each for each in missing)


def test_the_budget_is_compared_with_all_that_is_expected(tmp_path):
    told_ = settings(
        tmp_path / "run",
        optimiser={"steps": 10},
        evaluation={"every": 1, "questions": 40},
        reward={"executions": 3},
        pool={"max_usd": 2},
    )
    cost = CostEstimate(
        workflows=240, steps=2.0, calls=480, tokens=9, usd=Decimal("1.2"), unpriced_calls=0,
        depth=None, source="",
    )  # fmt: skip
    found = Preflight()
    beside = _add_evaluation(told_, cost, found)
    assert "about 2,640 calls and $6.60" in found.figures[0].source, "11 x 40 questions x 3"
    _add_budget(told_, Decimal(0), cost.usd * (1 + beside), found)
    assert "for about 2 of 10 steps" in found.notes[-1]
    _add_budget(told_, Decimal(3), Decimal(0), found)
    assert "for about 0 of 10 steps" in found.notes[-1]


@pytest.mark.slow
async def test_without_calls_the_bill_is_called_assumed_and_the_worst_case_stands_beside_it(
    tmp_path, learned, key
):
    async with Provider() as provider:
        report, found = await check(told(tmp_path, learned / "policy", provider.url))
    assert not provider.requests and report.is_ready
    assert any("assumed, not measured: --calls 24" in note for note in report.notes)
    assert "worst case" in found["dollars at most"].source
    assert found["dollars at most"].value > 5 * found["dollars"].value > 0


async def test_real_calls_say_how_far_the_assumption_is_off(tmp_path, learned, key):
    async with Provider() as provider:
        told_ = told(tmp_path, learned / "policy", provider.url)
        _, assumed = await check(told_)
        report, found = await check(told_, CALLS)
        asked = len(provider.requests)
        assert asked == CALLS and report.is_ready
        again = (await check(told_, CALLS))[1]
        assert len(provider.requests) == asked, "kept calls are not made again"
    assert f"{CALLS} real calls" in found["steps a workflow"].source
    assert not any("assumed, not measured" in note for note in report.notes)
    calls = found["calls"].value
    assert found["dollars"].value == pytest.approx(float(calls * PAID), rel=0.25)
    assert found["dollars"].value < assumed["dollars"].value / 5, "400 tokens were assumed, 10 came"
    tokens = USAGE["prompt_tokens"] + USAGE["completion_tokens"]
    assert found["worker tokens"].value == pytest.approx(calls * tokens, rel=0.25)
    assert again["dollars"].value == found["dollars"].value


async def test_failed_calls_are_no_measurement(tmp_path, learned, key):
    async with Provider() as provider:
        provider.key = "another"
        told_ = told(tmp_path, learned / "policy", provider.url)
        report, found = await check(told_, 6)
    assert "real calls" not in found["dollars"].source
    notes = " ".join(report.notes)
    assert "a call failed and is not in the figures" in notes and "assumed, not measured" in notes


async def test_no_call_is_made_where_the_training_could_not_begin(tmp_path, learned, key):
    async with Provider() as provider:
        told_ = told(tmp_path, learned / "policy", provider.url, executor="ray", max_usd=1)
        report, _ = await check(told_, 6)
    assert not provider.requests
    assert any("no call was made" in note for note in report.notes)
    assert any("pool.max_usd is counted by the processes" in lack for lack in report.missing)


async def test_the_check_says_how_far_the_budget_goes_and_keeps_it(tmp_path, learned, key):
    async with Provider() as provider:
        told_ = told(tmp_path, learned / "policy", provider.url, max_usd="0.05")
        report, found = await check(told_)
        assert found["budget"].value == 0.05
        (said,) = (note for note in report.notes if "expected to suffice" in note)
        steps = 50 * 0.05 / found["dollars"].value
        assert f"about {int(steps)} of 50 steps" in said
        _, found = await check(told_, 10)
    assert paid_so_far(told_.output) == 10 * PAID
    assert "$0.0004 of it are paid" in found["budget"].source


def test_the_worst_case_is_five_calls_of_the_dearest_worker_by_hand():
    """Replies of 100 tokens at $1 each, prompts for nothing."""
    price = Price(input=Decimal(0), output=Decimal(1_000_000))
    cheap = Price(input=Decimal(0), output=Decimal(1))
    pool = Pool(
        tuple(
            Worker(id=WorkerId(n), model=n, price=p, sampling=Sampling(max_tokens=100))
            for n, p in (("a", cheap), ("b", price))
        )
    )
    assert bound_workflow_usd("What?", pool, cheap) == 500
    reads = Price(input=Decimal(1_000_000), output=Decimal(0))
    pool = Pool((Worker(id=WorkerId("c"), model="c", price=reads, sampling=Sampling(max_tokens=100)),))  # fmt: skip
    assert bound_workflow_usd("What?", pool, cheap) > sum(100 * step for step in range(5))
