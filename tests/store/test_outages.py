"""PostgreSQL does not answer, goes away and comes back: what a server says and does meanwhile."""

import asyncio
import re
import signal
import sys
import time
from contextlib import asynccontextmanager, suppress
from decimal import Decimal
from functools import partial

import anyio
import pytest
from anyio import to_thread
from sqlalchemy import make_url

from batuta.errors import StoreError
from batuta.jobs import open_jobs
from batuta.store import Store
from batuta.store.key_hasher import KeyHasher
from batuta.store.key_permissions import KeyPermissions
from batuta.store.ledger import Bucket, utc_day
from batuta.store.spend_report import report_spending
from fakes.openai import FakeOpenAI
from fakes.proxy import Proxy
from fakes.server import KEY
from fakes.serving import Server

from .conftest import tell

pytestmark = pytest.mark.anyio
SECRET = "s" * 32
CALL = Decimal("0.00004")
"""Dollars of a call: 20 tokens in at $1 and 10 out at $2 a million."""
POOL = """
[conductor]
worker = "best"

[[workers]]
id = "ada"
provider = "compatible"
base_url = "{url}"
key_env = "PROVIDER_KEY"
model = "m"
price = {{ input = 1, output = 2 }}
"""


class Provider(FakeOpenAI):
    """Counts what it answered; waits at its gate first."""

    def __init__(self):
        super().__init__("Hello.", strict_openai=False)
        self.gate, self.arrived = asyncio.Event(), asyncio.Event()
        self.gate.set()
        self.served = 0

    async def handle(self, request):
        self.arrived.set()
        await self.gate.wait()
        response = await super().handle(request)
        self.served += 1
        return response


class Asked:
    """The server, asked with one key or the other."""

    def __init__(self, server, keys):
        self.http = server.http
        self.keys = keys

    async def __call__(self, key, path="/v1/chat/completions", method="POST", **body):
        headers = {"authorization": f"Bearer {self.keys[key]}"}
        options = {"json": body} if body else {}
        with anyio.fail_after(60):
            async with self.http.request(method, path, headers=headers, **options) as response:
                return response.status, response.headers, await response.json()

    async def chat(self, key):
        return await self(
            key, model="worker/ada", messages=[{"role": "user", "content": "hi"}], max_tokens=50
        )

    async def ready(self):
        async with self.http.get("/readyz") as response:
            return response.status

    async def until(self, status):
        """Waits until it is so ready."""
        with anyio.fail_after(60):
            while await self.ready() != status:
                await anyio.sleep(0.1)


def pool_of(folder, provider):
    file = folder / "batuta.toml"
    file.write_text(POOL.format(url=provider.url))
    return ("--pool", str(file))


@pytest.fixture
async def wire(postgres):
    """A wire to an empty database of the test's own, and the database's URL through it."""
    await to_thread.run_sync(tell, postgres, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    url = make_url(postgres)
    async with Proxy(url.host or "127.0.0.1", url.port or 5432) as proxy:
        through = url.set(host="127.0.0.1", port=proxy.port)
        yield proxy, through.render_as_string(hide_password=False)


async def keys_of(postgres):
    """Two keys: one without a budget, one with."""
    async with Store(postgres) as store:
        mint, made = KeyHasher(SECRET.encode()), {}
        for name, policy in (
            ("free", KeyPermissions()),
            ("bound", KeyPermissions(per_day=Decimal(1))),
        ):
            _, issued = await store.keys.create(mint, "acme", name, policy)
            made[name] = issued.text
    return made


@asynccontextmanager
async def serving(folder, postgres, url):
    """The provider, the server before it and the one who asks; the store is reached by `url`."""
    keys = await keys_of(postgres)
    async with Provider() as provider:
        environ = {"PROVIDER_KEY": KEY, "BATUTA_STORE": url, "BATUTA_SECRET": SECRET}
        async with Server(folder, *pool_of(folder, provider), **environ) as server:
            yield provider, server, Asked(server, keys)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cut", "mute"])
async def test_a_server_does_not_start_without_its_database(tmp_path, wire, how):
    proxy, url = wire
    await getattr(proxy, how)()
    server = Server(tmp_path, "--pool", "rehearsal", BATUTA_STORE=url)
    with anyio.fail_after(60):
        done = await anyio.run_process(
            [sys.executable, "-m", "batuta", *server.command], env=server.environ, check=False
        )
    said = done.stderr.decode()
    assert done.returncode == 2
    assert len(said.strip().splitlines()) == 1, said
    assert "check that the server runs" in said and "Traceback" not in said


async def test_it_goes_away_and_comes_back(tmp_path, postgres, wire):
    proxy, url = wire
    async with serving(tmp_path, postgres, url) as (provider, server, ask):
        assert [(await ask.chat(key))[0] for key in ask.keys] == [200, 200]
        provider.gate.clear()
        provider.arrived.clear()
        _, _, queued = await ask("bound", "/v1/responses", model="worker/ada", input="hi", background=True)  # fmt: skip
        with anyio.fail_after(60):
            await provider.arrived.wait()
        assert await ask.ready() == 200

        await proxy.cut()
        provider.gate.set()
        await ask.until(503)
        during = time.monotonic()
        status, headers, said = await ask.chat("bound")
        assert (status, said["error"]["code"]) == (503, "overloaded")
        assert int(headers["retry-after"]) >= 1
        status, headers, _ = await ask("free", "/v1/runs", "GET")
        assert (status, headers["retry-after"]) == (503, "1")
        status, headers, _ = await ask("free", "/v1/responses", model="worker/ada", input="hi", background=True)  # fmt: skip
        assert (status, headers["retry-after"]) == (503, "1")
        assert time.monotonic() - during < 60, "nobody waits for what is not there"

        await proxy.mend()
        await ask.until(200)
        status, headers, _ = await ask.chat("bound")
        assert status == 200
        with anyio.fail_after(60):
            body = queued
            while body["status"] in {"queued", "in_progress"}:
                await anyio.sleep(0.2)
                _, _, body = await ask("bound", f"/v1/responses/{queued['id']}", "GET")
        assert body["status"] == "completed", body
        await server.end(signal.SIGTERM)
    served = provider.served
    async with Store(postgres) as store:
        [found] = await report_spending(store.database, ("tenant",))
        bucket = Bucket(f"key:{ask.keys['bound'].split('_')[1]}", utc_day(time.time()), 10**9)
        [full] = await store.budgets.budget_status([bucket])
    assert served >= 4
    assert (found.cost.usd, found.cost.unpriced_calls) == (served * CALL, 0)
    assert (full.spent, full.reserved) == ((served - 1) * CALL * 10**9, 0)


async def test_what_was_answered_meanwhile_is_kept_and_billed(tmp_path, postgres, wire):
    """A key that was seen a moment ago and has no budget is served; its run waits in memory."""
    proxy, url = wire
    async with serving(tmp_path, postgres, url) as (provider, server, ask):
        await ask.chat("free")
        await proxy.mute()
        status, headers, said = await ask.chat("free")
        assert status == 200, said
        await ask.until(503)
        await proxy.mend()
        await ask.until(200)
        run = f"/v1/runs/{headers['x-batuta-run-id']}"
        with anyio.fail_after(60):  # one more connection may turn out to be lost
            status, _, found = await ask("free", run, "GET")
            while status == 503:
                await anyio.sleep(0.1)
                status, _, found = await ask("free", run, "GET")
        assert (status, found["outcome"]) == (200, "answered")
        await server.end(signal.SIGTERM)
    async with Store(postgres) as store:
        [found] = await report_spending(store.database, ("tenant",))
    assert found.cost.usd == provider.served * CALL == 2 * CALL


async def test_a_server_that_hangs_keeps_nobody_for_long(tmp_path, postgres, wire):
    """It keeps its connections and says nothing on them, as one that is stopped or out of disk."""
    proxy, url = wire
    body = {"model": "worker/ada", "input": "hi", "background": True}
    async with serving(tmp_path, postgres, url) as (_, _, ask):
        assert [(await ask.chat(key))[0] for key in ask.keys] == [200, 200]
        await anyio.sleep(1)  # until the runs are written
        proxy.freeze()
        await anyio.sleep(11)  # until the keys have to be looked up again
        told = []

        async def tell(question, *args, **fields):
            began = time.monotonic()
            status, headers, _ = await question(*args, **fields)
            told.append((status, "retry-after" in headers, time.monotonic() - began))

        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(tell, ask.chat, "free")
                tasks.start_soon(tell, ask.chat, "bound")
                tasks.start_soon(tell, ask, "free", "/v1/runs", "GET")
                tasks.start_soon(partial(tell, ask, "free", "/v1/responses", **body))
        assert {(status, retry) for status, retry, _ in told} == {(503, True)}
        assert max(seconds for *_, seconds in told) < 10
        await proxy.mend()
        await ask.until(200)
        assert [(await ask.chat(key))[0] for key in ask.keys] == [200, 200]
        assert (await ask("free", "/v1/responses", **body))[0] == 200


async def test_jobs_wait_no_longer_for_a_server_that_hangs(postgres, wire):
    proxy, url = wire
    async with open_jobs(url) as jobs:
        assert await jobs.status("none", "ada") is None
        proxy.freeze()
        began = time.monotonic()
        with pytest.raises(StoreError, match="does not answer"):
            await jobs.status("none", "ada")
        assert time.monotonic() - began < 10
        await proxy.mend()
        with anyio.fail_after(60):
            while True:
                with suppress(StoreError):
                    assert await jobs.status("none", "ada") is None
                    break


async def test_a_server_can_be_stopped_while_it_is_away(tmp_path, postgres, wire):
    proxy, url = wire
    async with serving(tmp_path, postgres, url) as (_, server, ask):
        await ask.chat("free")
        await proxy.cut()
        await ask.until(503)
        await anyio.sleep(2)  # for those that look around from time to time
        assert (await ask.chat("free"))[0] == 200
        assert await server.end(signal.SIGTERM) == 2
        server.said += (await server.process.stderr.receive(100_000)).decode()
    last = server.said.strip().splitlines()[-1]
    assert re.search(r"[12] runs? could not be written", last) and "Traceback" not in server.said
