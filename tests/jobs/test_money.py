"""What a background job holds of its key's budget, and what is billed, whatever ends its server."""

import re
import signal
import time
from decimal import Decimal

import anyio
import pytest

from batuta.store import Store
from batuta.store.ledger import Bucket, usd_to_nano, utc_day
from batuta.store.spend_report import report_spending
from fakes.server import KEY
from fakes.serving import Server

from .test_served import ASK, Gated, answer, settings

CALL = Decimal("0.00004")
"""Dollars of a call: 20 tokens in at $1 and 10 out at $2 a million."""
CAP = Decimal("0.12")
"""Dollars a day."""


class Counting(Gated):
    """Counts the calls that were answered: those are owed."""

    served = 0

    async def handle(self, request):
        response = await super().handle(request)
        self.served += 1
        return response


def make_key(command_line, folder):
    command = ("keys", "create", "ci", "--per-day", str(CAP))
    done = command_line.run(*command, cwd=folder, env=Server(folder).environ)
    return re.search(r"batuta_\w{12}_\S+", done.stdout)[0]


class Books:
    """What the database says of a key, read beside the server."""

    def __init__(self, folder, key):
        self.path = folder / "home" / "runs.db"
        self.bucket = Bucket(f"key:{key.split('_')[1]}", utc_day(time.time()), usd_to_nano(CAP))

    async def budget(self):
        async with Store(self.path) as store:
            [full] = await store.budgets.budget_status([self.bucket])
        return full.spent, full.reserved

    async def lines(self):
        """By kind: the dollars, and calls of unknown price."""
        async with Store(self.path) as store:
            found = await report_spending(store.database, ("kind",))
        return {one.group[0]: (one.cost.usd, one.cost.unpriced_calls) for one in found}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_job_is_billed_once_however_its_server_ended(command_line, tmp_path, number):
    key = make_key(command_line, tmp_path)
    books = Books(tmp_path, key)
    async with Counting() as provider:
        options = ("--pool", settings(tmp_path, provider))
        signed = {"authorization": f"Bearer {key}"}
        async with Server(tmp_path, *options, PROVIDER_KEY=KEY) as server:
            server.http.headers.update(signed)
            async with server.http.post("/v1/responses", json=ASK) as response:
                name = (await response.json())["id"]
            with anyio.fail_after(60):
                await provider.reached.wait()
            _, held = await books.budget()
            assert 0 < held <= usd_to_nano(CAP), "what its calls in flight may cost"
            await server.end(number)
        assert await books.budget() == (0, held), "what the job holds waits for it"
        assert await books.lines() == {}
        provider.gate.set()
        async with Server(tmp_path, *options, PROVIDER_KEY=KEY) as server:
            server.http.headers.update(signed)
            body = await answer(server, name)
            assert body["status"] == "completed", body
            run = f"/v1/runs/{name.replace('resp', 'run')}"
            async with server.http.get(run) as response:
                assert (await response.json())["outcome"] == "answered"
            await server.end(signal.SIGTERM)
    owed = CALL * provider.served
    assert provider.served >= 4
    lines = await books.lines()
    assert (lines["worker"], "lost" in lines) == ((owed, 0), False)
    assert await books.budget() == (usd_to_nano(owed), 0)


async def test_a_cancelled_job_is_billed_for_what_it_did_and_holds_nothing(command_line, tmp_path):
    key = make_key(command_line, tmp_path)
    books = Books(tmp_path, key)
    async with Counting() as provider:
        options = ("--pool", settings(tmp_path, provider))
        async with Server(tmp_path, *options, PROVIDER_KEY=KEY) as server:
            server.http.headers.update({"authorization": f"Bearer {key}"})
            async with server.http.post("/v1/responses", json=ASK) as response:
                name = (await response.json())["id"]
            with anyio.fail_after(60):
                await provider.reached.wait()
            async with server.http.post(f"/v1/responses/{name}/cancel") as response:
                assert (await response.json())["status"] == "cancelled"
            await server.end(signal.SIGTERM)
    lines = await books.lines()
    assert lines["worker"][0] >= CALL * provider.served, "and a guess for what was cut off"
    spent, held = await books.budget()
    assert spent > usd_to_nano(lines["worker"][0]), "budgets count all that the cut call may cost"
    assert held == 0


async def test_what_a_job_holds_is_found_again_and_ends_with_its_run(tmp_path):
    from batuta.core import RunId

    bucket = Bucket("key:k", "2026-11-22", 100)
    path = tmp_path / "runs.db"
    async with Store(path) as store:
        held = await store.budgets.reserve(RunId("run_1"), 60, (bucket,), for_job=True)
        await store.budgets.reserve(RunId("run_2"), 30, (bucket,))
    async with Store(path) as store:
        caps = {"key:k": (100, None)}
        found = await store.budgets.find_job_reservation(RunId("run_1"), caps)
        assert found is not None and found[0] == held
        assert await store.budgets.find_job_reservation(RunId("run_2"), caps) is None
        now = time.monotonic()
        assert await store.budgets.reap(now) == 0, "its process may live"
        assert await store.budgets.reap(now + 100) == 1
        [full] = await store.budgets.budget_status([bucket])
        assert full.reserved == 60
        await store.budgets.renew(time.time())
        assert await store.budgets.reap(now + 100, time.time() + 25 * 3600) == 1
        assert not await store.budgets.is_settled(RunId("run_1")), (
            "a lost run can still be executed"
        )
