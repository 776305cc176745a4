"""A server that is killed while it pays from leases loses no money: what its provider was asked counts."""

from __future__ import annotations

import signal
import time
from contextlib import AsyncExitStack
from decimal import Decimal

import aiohttp
import anyio
import pytest
from sqlalchemy import text

from batuta.store import Store
from batuta.store.budgets import LEASE_SECONDS
from batuta.store.ledger import LEASE_PREFIX, Bucket, usd_to_nano, utc_day
from batuta.store.spend_report import report_spending
from fakes.openai import FakeOpenAI
from fakes.server import KEY
from fakes.serving import Server

pytestmark = pytest.mark.anyio
ADMIN = {"authorization": "Bearer the-admins-own-token"}
POOL = """
[[workers]]
id = "ada"
provider = "compatible"
base_url = "{url}"
key_env = "PROVIDER_KEY"
model = "m"
price = {{ input = 1, output = 2 }}
"""
CAP = Decimal(5)
CALL_NANO = 20 * 1_000 + 10 * 2_000
"""Billionths of a dollar that the provider bills for each call."""
UNWRITTEN_SECONDS = 5.0
"""Seconds before a server dies of which it may have written nothing, on a busy machine."""


class Load:
    """Asks servers again and again, and remembers what was answered when."""

    def __init__(self, key):
        self.headers = {"authorization": f"Bearer {key}"}
        self.body = {"model": "worker/ada", "messages": [{"role": "user", "content": "hi"}]}
        self.answered = {}
        self.is_over = False

    async def ask(self, server, number):
        while not self.is_over:
            try:
                async with server.http.post(
                    "/v1/chat/completions", json=self.body, headers=self.headers
                ) as response:
                    assert response.status == 200, await response.text()
                    await response.read()
                    run = response.headers["x-batuta-run-id"]
                    self.answered[run] = (number, time.monotonic())
            except aiohttp.ClientError:
                return  # it was killed


async def new_key(server):
    limits = {"per_day": str(CAP), "per_month": "50"}
    body = {"name": "k", "tenant": "acme", "limits": limits}
    async with server.http.post("/v1/admin/keys", json=body, headers=ADMIN) as response:
        return (await response.json())["key"]


async def held(store):
    found = await store.database.fetch_rows(text("SELECT id FROM reservations"))
    return [row["id"] for row in found]


async def until_leased(store, load, servers):
    """Until each of so many servers pays from a lease."""
    owners = set()
    with anyio.fail_after(60):
        while len(owners) < servers or len(load.answered) < 50:
            await anyio.sleep(0.05)
            found = await store.database.fetch_rows(text("SELECT id, owner FROM reservations"))
            owners = {row["owner"] for row in found if row["id"].startswith(LEASE_PREFIX)}


async def test_a_server_is_killed_and_another_goes_on(tmp_path, target):
    """Beside it where they share a PostgreSQL, after it where an SQLite file has one server."""
    shared = isinstance(target, str)
    environ = {
        "BATUTA_STORE": str(target),
        "BATUTA_SECRET": "s" * 32,
        "BATUTA_ADMIN_TOKEN": "the-admins-own-token",
        "PROVIDER_KEY": KEY,
    }
    async with (
        FakeOpenAI(lambda _: "hello", strict_openai=False) as provider,
        AsyncExitStack() as stack,
    ):
        file = tmp_path / "batuta.toml"
        file.write_text(POOL.format(url=provider.url))
        one, two = (
            Server(tmp_path / name, "--pool", str(file), **environ) for name in ("one", "two")
        )
        await stack.enter_async_context(one)
        store = await stack.enter_async_context(Store(target))
        key = await new_key(one)
        load = Load(key)
        if shared:
            await stack.enter_async_context(two)
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(load.ask, one, 1)
                if shared:
                    tasks.start_soon(load.ask, two, 2)
            await until_leased(store, load, 1 + shared)
            killed = time.monotonic()
            await one.end(signal.SIGKILL)
            if not shared:
                await stack.enter_async_context(two)
                for _ in range(4):
                    tasks.start_soon(load.ask, two, 2)
            await anyio.sleep(1)
            load.is_over = True
        assert any(number == 2 and at > killed for number, at in load.answered.values())
        await two.end(signal.SIGTERM)
        await check_books(store, load, killed, len(provider.requests))


async def still_status(store, bucket):
    """The budget once nothing changes it: the database may still do what the dead one had sent."""
    before = None
    while True:
        [status] = await store.budgets.budget_status([bucket])
        if status == before:
            return status
        before = status
        await anyio.sleep(0.5)


async def check_books(store, load, killed, asked):
    name = load.headers["authorization"].split("_")[1]
    day = Bucket(f"key:{name}", utc_day(time.time()), usd_to_nano(CAP))
    assert any(name.startswith(LEASE_PREFIX) for name in await held(store))
    status = await still_status(store, day)
    assert status.reserved > 0, "what the dead one had is held for now"
    before = status.spent + status.reserved
    now = time.monotonic()
    await store.budgets.reap(now)
    await store.budgets.reap(now + LEASE_SECONDS + 1)
    assert await held(store) == []
    [status] = await store.budgets.budget_status([day])
    kinds = {one.group[0]: one for one in await report_spending(store.database, ("kind",))}
    assert (status.spent, status.reserved) == (before, 0)
    assert asked * CALL_NANO <= status.spent <= CAP * 10**9
    lost = kinds["lost"]
    assert lost.cost.unpriced_calls >= 1
    told = usd_to_nano(kinds["worker"].cost.usd + lost.assumed_usd)
    assert status.spent == told, "the ledger tells why"
    lines = await store.database.fetch_rows(text("SELECT run_id, assumed_usd FROM ledger"))
    single = [row for row in lines if not row["run_id"].startswith(LEASE_PREFIX)]
    each = max((Decimal(row["assumed_usd"]) for row in single), default=Decimal(0))
    unwritten = set(load.answered) - {row["run_id"] for row in lines}
    # A lease has a sixteenth to hand out, beside what runs hold of it until they are written: the
    # faster the machine, the more of them a server has answered when it dies.
    assert lost.assumed_usd < CAP / 8 + each * len(unwritten)
    for run in unwritten:
        number, at = load.answered[run]
        assert number == 1 and at > killed - UNWRITTEN_SECONDS
