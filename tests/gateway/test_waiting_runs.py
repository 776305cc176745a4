"""Runs that wait for tools, over replicas: one set of laws for Redis and both databases."""

from __future__ import annotations

import logging
import subprocess
import sys
import uuid
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from sqlalchemy import func, select

from batuta.clients import RedisConnections, ScriptedClient
from batuta.conductors import sequential_chain
from batuta.core import Finish, Reply, RunId, ToolCall
from batuta.engine import strip_prompts
from batuta.errors import StoreError
from batuta.gateway.access.caller import Authenticator
from batuta.gateway.serving.waiting_runs import RedisWaitingRuns, SharedWaitingRuns
from batuta.store import Store
from batuta.store.key_hasher import KeyHasher
from batuta.store.key_permissions import KeyPermissions
from batuta.store.models import WAITING_RUNS
from batuta.store.sealing import RunSealer
from batuta.store.waiting_runs import WAITING_SECONDS, WaitingTable
from gateway.live_server import HI, Serving, scripted_state
from gateway.test_session_memory import find_redis
from gateway.test_tenant_memory import waiting_run
from store.conftest import postgres  # noqa: F401 - a fixture

pytestmark = pytest.mark.anyio
SECRET = KeyHasher(b"s" * 32)
SEALER = RunSealer(SECRET, "redis")
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


@pytest.fixture(params=["redis", "sqlite", "postgresql"])
def where(request, tmp_path):
    """The kind of a place, and its address."""
    if request.param == "postgresql":
        return request.param, request.getfixturevalue("postgres")
    return request.param, tmp_path / "s.db"


@pytest.fixture
async def places(where, anyio_backend):
    """Makes what two replicas have of one place, which may hold so much of a tenant."""
    kind, address = where
    async with AsyncExitStack() as stack:
        if kind == "redis":
            url = await find_redis()
            connections = [RedisConnections(url, 2, patience=10.0) for _ in range(2)]
            for one in connections:
                stack.push_async_callback(one.close)

            def redis_places(**limits):
                return [RedisWaitingRuns(one, SEALER.name_tenant, **limits) for one in connections]

            yield redis_places
            return
        stores = [await stack.enter_async_context(Store.open(address)) for _ in range(2)]
        yield lambda **limits: [WaitingTable(one.database, **limits) for one in stores]


def a_tenant():
    return f"t-{uuid.uuid4().hex[:12]}"


def named(run, number):
    return replace(run, header=replace(run.header, id=RunId(f"run_{number:024x}")))


async def test_what_one_replica_puts_the_other_gets_and_nobody_else(places):
    (one, other), tenant, run = places(), a_tenant(), await waiting_run()
    assert await other.get(tenant, run.id) is None
    await one.put(tenant, run, b"\x00sealed\xff")
    await one.put(tenant, run, b"again")
    assert await other.get(tenant, run.id) == b"\x00sealed\xff", "a run waits once"
    assert await other.get(a_tenant(), run.id) is None
    assert await other.get(tenant, RunId("run_" + "9" * 24)) is None


async def test_a_tenant_pushes_out_its_own_oldest_by_number_and_by_bytes(places):
    run = await waiting_run()
    runs = [named(run, number) for number in range(6)]
    for limits, kept in (({"most": 3}, 3), ({"most_bytes": 25}, 2)):
        (one, other), loud, quiet = places(**limits), a_tenant(), a_tenant()
        await one.put(quiet, runs[0], b"q" * 10)
        for each in runs:
            await one.put(loud, each, b"x" * 10)
        left = [each.id for each in runs if await other.get(loud, each.id)]
        assert left == [each.id for each in runs[-kept:]]
        assert await other.get(quiet, runs[0].id)
    (one, other), huge = places(most_bytes=25), a_tenant()
    await one.put(huge, runs[0], b"x" * 26)
    assert await other.get(huge, runs[0].id) is None
    await one.put(huge, runs[1], b"x")
    assert await other.get(huge, runs[1].id) == b"x"


async def test_dismissed_runs_are_gone_and_make_room(places):
    run = await waiting_run()
    runs, tenant, another = [named(run, number) for number in range(3)], a_tenant(), a_tenant()
    one, other = places(most=3)
    for each in runs:
        await one.put(tenant, each, b"x")
    await one.put(another, runs[0], b"y")
    await other.dismiss(tenant, [])
    await other.dismiss(tenant, [runs[1].id])
    assert [await one.get(tenant, each.id) for each in runs] == [b"x", None, b"x"]
    await one.put(tenant, named(run, 7), b"z")
    assert await other.get(tenant, runs[0].id) == b"x"
    await one.dismiss(tenant)
    assert [await other.get(tenant, each.id) for each in runs] == [None] * 3
    assert await one.get(another, runs[0].id) == b"y"


async def test_what_a_place_holds_is_sealed_and_lives_for_an_hour():
    url, tenant, secret_word = await find_redis(), a_tenant(), "zebra-4711"
    connections = RedisConnections(url, 2, patience=10.0)
    shared = SharedWaitingRuns(RedisWaitingRuns(connections, SEALER.name_tenant), SEALER)
    run = strip_prompts(await waiting_run(0, secret_word))
    await shared.add(run, tenant)
    prefix = f"batuta:waiting:{{{SEALER.name_tenant(tenant)}}}"
    assert tenant not in prefix
    for name in (f"{prefix}:run:{run.id}", f"{prefix}:order", f"{prefix}:held"):
        left = await connections.ask(lambda redis, name=name: redis.ttl(name))
        assert left is not None and 3590 < left <= 3600
    body = await connections.ask(lambda redis: redis.get(f"{prefix}:run:{run.id}"))
    assert body and secret_word.encode() not in body and run.id.encode() not in body
    assert await shared.find(run.id, tenant) == run
    await connections.close()


async def test_a_row_that_is_older_than_an_hour_is_not_there(tmp_path):
    now, run = [1000.0], await waiting_run()
    async with Store.open(tmp_path / "s.db") as store:
        table = WaitingTable(store.database, clock=lambda: now[0])
        await table.put("t", run, b"x")
        now[0] += WAITING_SECONDS - 1
        assert await table.get("t", run.id) == b"x"
        now[0] += 2
        assert await table.get("t", run.id) is None
        await table.put("t", named(run, 5), b"y")
        count = select(func.count().label("n")).select_from(WAITING_RUNS)
        assert await store.database.fetch_rows(count) == [{"n": 1}], "nothing old lies about"


async def test_a_run_that_was_deleted_while_it_went_on_is_not_kept(tmp_path):
    run = await waiting_run()
    async with Store.open(tmp_path / "s.db") as store:
        await store.forgetting.forget_runs([run.id], "t")
        await store.waiting.put("t", run, b"x")
        assert await store.waiting.get("t", run.id) is None
        await store.forgetting.forget_tenant("gone")
        await store.waiting.put("gone", named(run, 3), b"x")
        assert await store.waiting.get("gone", RunId(f"run_{3:024x}")) is None


async def test_a_sealed_run_opens_for_its_tenant_its_id_and_its_secret_alone():
    run = strip_prompts(await waiting_run())
    body = SEALER.seal(run, "acme")
    assert await SEALER.open(body, "acme", run.id) == run
    assert SEALER.seal(run, "acme") != body, "no two seals are alike"
    stranger = RunSealer(KeyHasher(b"z" * 32), "redis")
    changed = bytes([*body[:-1], body[-1] ^ 1])
    for sealer, text, tenant, name in (
        (SEALER, body, "zeta", run.id),
        (SEALER, body, "acme", RunId("run_" + "1" * 24)),
        (stranger, body, "acme", run.id),
        (SEALER, changed, "acme", run.id),
        (SEALER, body[:11], "acme", run.id),
        (SEALER, b"", "acme", run.id),
    ):
        with pytest.raises(StoreError, match="cannot be opened"):
            await sealer.open(text, tenant, name)


def test_a_server_without_the_cipher_says_what_to_install():
    program = (
        "import sys; sys.modules['cryptography.exceptions'] = None\n"
        "from batuta.store.key_hasher import KeyHasher\n"
        "from batuta.store.sealing import RunSealer\n"
        "RunSealer(KeyHasher(b's' * 32), 'postgres')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert "runs that replicas share are encrypted, which needs the extra" in ended.stderr
    assert "[postgres]" in ended.stderr and "ConfigError" in ended.stderr


async def test_a_place_that_fails_costs_the_other_replicas_and_not_the_answer(caplog):
    class Failing:
        async def put(self, tenant, run, body):
            raise StoreError("the database cannot be reached")

        async def get(self, tenant, run_id):
            raise StoreError("the database cannot be reached")

        async def dismiss(self, tenant, run_ids=None):
            raise StoreError("the database cannot be reached")

    shared, run = SharedWaitingRuns(Failing(), SEALER), await waiting_run()
    with caplog.at_level(logging.WARNING):
        await shared.add(run, "t")
        assert await shared.find(run.id, "t") is None
    assert "StoreError in add" in caplog.text and "StoreError in find" in caplog.text
    away = RedisWaitingRuns(RedisConnections("redis://127.0.0.1:1", 2), SEALER.name_tenant)
    await away.put("t", run, b"x")
    assert await away.get("t", run.id) is None


# -- two servers ------------------------------------------------------------------------------


def looks_then(text):
    """Calls the tool until a result is there."""

    def say(request):
        if any(part.kind == "tool_result" for m in request.messages for part in m.parts):
            return text
        call = ToolCall(id="prov", name="look", arguments="{}")
        return Reply(text="", tool_calls=(call,), finish=Finish.TOOL_CALLS)

    return ScriptedClient(say)


@pytest.fixture(params=["redis", "postgresql"])
async def shared_pair(request, postgres, anyio_backend):  # noqa: F811 - the fixture
    """What two replicas share, each over connections of its own, and one store for keys."""
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(Store.open(postgres)) for _ in range(2)]
        if request.param == "postgresql":
            pair = [SharedWaitingRuns(one.waiting, SEALER) for one in stores]
        else:
            redis = [RedisConnections(await find_redis(), 2, patience=10.0) for _ in range(2)]
            for one in redis:
                stack.push_async_callback(one.close)
            pair = [
                SharedWaitingRuns(RedisWaitingRuns(one, SEALER.name_tenant), SEALER)
                for one in redis
            ]
        yield list(zip(stores, pair, strict=True))


class Pair:
    """Two replicas that have the same workers and keys."""

    def __init__(self, shared_pair, *, share=True):
        self.clients = {
            "eve": ScriptedClient(lambda _: "Look at the picture."),
            "ada": looks_then("It holds a cat."),
            "bob": ScriptedClient(lambda _: "A cat."),
        }
        chain = sequential_chain(["Think.", "Look.", "Answer."], ["eve", "ada", "bob"])
        self.store = shared_pair[0][0]
        self.servers = [
            Serving(
                scripted_state(
                    self.clients,
                    conductor=chain,
                    store=store,
                    waiting_runs=shared if share else None,
                    authenticator=Authenticator(store, SECRET, "the-admins-own-token"),
                )
            )
            for store, shared in shared_pair
        ]

    async def __aenter__(self):
        self.stack = AsyncExitStack()
        for one in self.servers:
            await self.stack.enter_async_context(one)
        self.tenants = [a_tenant(), a_tenant()]
        self.keys = [
            (await self.store.keys.create(SECRET, tenant, "k", KeyPermissions()))[1].text
            for tenant in self.tenants
        ]
        return self

    async def __aexit__(self, *error):
        await self.stack.aclose()

    async def send(self, at, messages, key=0):
        body = {"model": "batuta-ultra", "tools": [TOOL], "store": False, "messages": messages}
        head = {"authorization": f"Bearer {self.keys[key]}"}
        status, _, answer = await self.servers[at].post(json=body, headers=head)
        assert status == 200, answer
        return answer["choices"][0]["message"]

    def asked(self):
        return [len(client.requests) for client in self.clients.values()]


def with_result(said):
    (call,) = said["tool_calls"]
    return [*HI, said, {"role": "tool", "tool_call_id": call["id"], "content": "cat"}]


async def test_a_tool_s_result_at_another_replica_goes_on_where_the_run_was(shared_pair):
    async with Pair(shared_pair) as pair:
        said = await pair.send(0, HI)
        assert pair.asked() == [1, 1, 0]
        answer = await pair.send(1, with_result(said))
        assert answer["content"] == "A cat."
        assert pair.asked() == [1, 2, 1], "eve's step is not paid twice"


async def test_a_forged_call_id_of_another_tenant_opens_nothing(shared_pair):
    async with Pair(shared_pair) as pair:
        said = await pair.send(0, HI)
        answer = await pair.send(1, with_result(said), key=1)
        assert pair.asked() == [2, 2, 1], "the stranger's conversation is planned anew"
        assert answer["content"] == "A cat."
        bob = pair.clients["bob"].requests[0]
        assert "Look at the picture." in str(bob.messages), "from the stranger's own run"


async def test_without_a_place_that_is_shared_the_other_replica_begins_anew(shared_pair):
    async with Pair(shared_pair, share=False) as pair:
        said = await pair.send(0, HI)
        await pair.send(1, with_result(said))
        assert pair.asked() == [2, 2, 1]
        await pair.send(0, with_result(said))
        assert pair.asked() == [2, 3, 2]


async def test_a_deleted_tenant_leaves_no_waiting_run(shared_pair):
    async with Pair(shared_pair) as pair:
        said = await pair.send(0, HI)
        run_id, tenant = RunId(f"run_{said['tool_calls'][0]['id'].split('_')[1]}"), pair.tenants[0]
        (_, one), (_, other) = shared_pair
        assert await other.find(run_id, tenant) is not None
        head = {"authorization": "Bearer the-admins-own-token"}
        where = f"/v1/admin/tenants/{tenant}"
        async with pair.servers[1].http.delete(where, headers=head) as response:
            assert response.status == 200, await response.text()
        assert await one.find(run_id, tenant) is None and await other.find(run_id, tenant) is None
