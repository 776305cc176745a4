"""Learning while serving: off by default, capped, marked, and better than a wrong belief."""

from decimal import Decimal

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, select

from batuta.clients import ScriptedClient
from batuta.core import Usage
from batuta.core.run import Exploration
from batuta.gateway import served_models
from batuta.gateway.serving import explore as exploring
from batuta.gateway.serving.models import ExploreOptions
from batuta.store import Store
from batuta.store.exploration import MAX_JUDGEMENTS, count_arm
from batuta.store.ledger import Bucket, usd_cap_to_nano
from batuta.store.models import EXPLORED_ARMS, SPENDING

from .live_server import PRICE, Reply, Serving, pool_of, server_state
from .test_watching import samples, value

pytestmark = pytest.mark.anyio
USAGE = Usage(calls=1, input=100, output=100)


def app_state(store, share=0.5, usd="1000", **options):
    """Ada is believed to be the best, and is always wrong; bob is always right."""
    explore = ExploreOptions(share=share, usd_per_day=Decimal(usd)) if share else None
    clients = {
        "ada": ScriptedClient(lambda _: Reply(text="wrong", usage=USAGE), price=PRICE),
        "bob": ScriptedClient(lambda _: Reply(text="right", usage=USAGE), price=PRICE),
    }
    pool = pool_of("ada", "bob")
    models = served_models(pool, explore=explore)
    return server_state(pool, clients, models, store=store, **options)


async def ask(server, number):
    status, headers, body = await server.post(
        json={
            "model": "batuta-mini",
            "messages": [{"role": "user", "content": f"Question {number}?"}],
        }
    )
    assert status == 200, body
    return headers, body["choices"][0]["message"]["content"]


async def judge(server, headers, answer):
    score = float(answer == "right")
    path = f"/v1/runs/{headers['x-batuta-run-id']}/feedback"
    assert (await server.post(path, json={"score": score}))[0] == 200


async def test_nothing_is_explored_unasked(store):
    async with Serving(app_state(store, share=0)) as server:
        for number in range(10):
            headers, answer = await ask(server, number)
            assert answer == "wrong" and exploring.EXPLORED_HEADER not in headers
        run = await store.get(headers["x-batuta-run-id"])
    assert run.header.exploration is None


async def test_a_wrong_belief_is_mended_and_what_was_tried_is_marked(store):
    async with Serving(app_state(store)) as server:
        marked = 0
        for number in range(50):
            headers, answer = await ask(server, number)
            run = await store.get(headers["x-batuta-run-id"])
            choice = run.header.exploration
            assert (exploring.EXPLORED_HEADER in headers) == choice.explored
            assert 0 < choice.propensity <= 1
            if choice.explored:
                marked += 1
                page = await (await server.http.get(f"/ui/runs/{run.id}")).text()
                assert "Explored" in page and choice.arm in page
            await judge(server, headers, answer)
        assert marked >= 5
        found = await samples(server)
        assert value(found, "explored_runs_total", model="batuta-mini") == marked
        page = await (await server.http.get("/ui/pool")).text()
        assert "Learned while serving" in page and "worker bob" in page
    async with Serving(app_state(store, share=0.01)) as server:  # knows what was learned
        answers = [(await ask(server, number))[1] for number in range(20)]
    assert answers.count("right") >= 18


async def test_no_budget_no_exploring_and_the_rest_comes_back(store):
    async with Serving(app_state(store, usd="0")) as server:
        for number in range(12):
            assert exploring.EXPLORED_HEADER not in (await ask(server, number))[0]
    async with Serving(app_state(store)) as server:
        marked = 0
        for number in range(20):
            marked += exploring.EXPLORED_HEADER in (await ask(server, number))[0]
        await store.flush()
    account = SPENDING.c.account == "explore:batuta-mini"
    rows = await store.database.fetch_rows(select(SPENDING.c.spent).where(account))
    cost = USAGE.input * PRICE.input / 1_000_000 + USAGE.output * PRICE.output / 1_000_000
    assert marked and sum(row["spent"] for row in rows) == usd_cap_to_nano(cost) * marked


async def test_a_request_that_its_session_cannot_pay_takes_nothing_of_the_day(store):
    async with Serving(app_state(store, share=1.0)) as server:
        body = {
            "model": "batuta-mini",
            "messages": [{"role": "user", "content": "Question?"}],
            "orchestration": {"session": {"max_cost_usd": 1e-6}},
        }
        for _ in range(5):
            status, _, got = await server.post(json=body)
            assert (status, got["error"]["code"]) == (429, "session_limit_exceeded")
    account = SPENDING.c.account == "explore:batuta-mini"
    rows = await store.database.fetch_rows(select(SPENDING.c.spent).where(account))
    assert rows and sum(row["spent"] for row in rows) == 0


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_cap_holds_over_replicas(tmp_path):
    """The law: whatever is taken and given back at the same time, the cap is not passed."""
    bucket = Bucket("explore:x", "2026-11-24", 1_000)
    taken = 0
    async with Store(tmp_path / "runs.db") as store, Store(tmp_path / "runs.db") as other:

        async def take(replica, nano):
            nonlocal taken
            if await replica.exploration.take(bucket, nano):
                taken += nano

        async with anyio.create_task_group() as tasks:
            for number in range(40):
                tasks.start_soon(take, (store, other)[number % 2], 37 + number)
        assert 1_000 - 77 < taken <= 1_000
        assert not await store.exploration.take(bucket, 1_001)
        await other.exploration.give_back(bucket, 500)
        assert await store.exploration.take(bucket, 1_000 - (taken - 500))
        assert not await other.exploration.take(bucket, 1)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=30), st.integers(0, 1))
def test_memory_is_capped_and_the_share_stays_one(scores, full):
    choice = Exploration(system="s", cell="c", arm="a", explored=True, propensity=0.5)
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        EXPLORED_ARMS.create(connection)
        if full:
            row = {"system": "s", "cell": "c", "arm": "a", "score": 100.0, "judged": MAX_JUDGEMENTS}
            connection.execute(EXPLORED_ARMS.insert(), row)
        for score in scores:
            count_arm(connection, choice, score)
        row = connection.execute(select(EXPLORED_ARMS)).one()
    assert 0 <= row.score <= row.judged + 1e-6 and row.judged <= MAX_JUDGEMENTS + 1e-6
    if not full:
        assert (row.score, row.judged) == (sum(scores), len(scores))
