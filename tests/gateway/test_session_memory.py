"""The states of sessions: one set of laws for the memory of a process and for Redis."""

from __future__ import annotations

import os
import uuid
from dataclasses import replace
from decimal import Decimal

import anyio
import pytest

from batuta.clients import RedisConnections
from batuta.conductors.sessions.state import (
    MOST_THREADS,
    NEW_SESSION,
    SessionEntry,
    SessionThread,
    WarmPrefix,
)
from batuta.core import Cost, WorkerId
from batuta.gateway.serving.shared_sessions import RedisSessions
from batuta.gateway.serving.tenant_memory import KEPT_SECONDS, LocalSessions
from batuta.store.key_permissions import KeyPermissions, permissions_json, read_permissions
from gateway.keyed_server import COST, KeyedServer
from gateway.live_server import HI

pytestmark = pytest.mark.anyio
REDIS = os.environ.get("BATUTA_TEST_REDIS", "redis://127.0.0.1:6379")
A = WorkerId("a")


async def find_redis():
    client = pytest.importorskip("redis.asyncio").Redis.from_url(REDIS, socket_connect_timeout=1)
    try:
        await client.ping()
    except Exception as error:
        pytest.skip(f"no Redis server at {REDIS}: {error}")
    finally:
        await client.aclose()
    return REDIS


@pytest.fixture
async def redis(anyio_backend):
    return await find_redis()


@pytest.fixture(params=["local", "redis"])
async def replicas(request, anyio_backend):
    """Two replicas' memories of the same sessions."""
    if request.param == "local":
        memory = LocalSessions()
        yield memory, memory
        return
    url = await find_redis()
    connections = [RedisConnections(url, 2, patience=10.0) for _ in range(2)]
    yield tuple(map(RedisSessions, connections))
    for one in connections:
        await one.close()


def entry(thread="t", turn="1", usd="0.1", **known):
    after = SessionThread(
        acting=A, turn=turn, tokens=9, warm={A: WarmPrefix(9, 1700000000.5)}, **known
    )
    return SessionEntry(thread=thread, after=after, cost=Cost(Decimal(usd), 1), consultations=1)


async def test_what_one_replica_notes_the_other_knows(replicas):
    one, other = replicas
    name = f"ses_{uuid.uuid4().hex}"
    assert await one.load("", name) == NEW_SESSION
    noted = await one.note("", name, entry())
    assert await other.load("", name) == noted == NEW_SESSION.with_entry(entry())
    assert noted.threads["t"].warm[A] == WarmPrefix(9, 1700000000.5)
    noted = await other.note("", name, entry(turn="1"))
    assert (noted.turns, noted.consultations, noted.cost) == (1, 2, Cost(Decimal("0.2"), 2))
    assert (await one.note("", name, entry(turn="2"))).turns == 2


async def test_no_entry_is_lost_where_many_come_at_once(replicas):
    name = f"ses_{uuid.uuid4().hex}"

    async def note(number):
        await replicas[number % 2].note("", name, entry(thread=f"t{number % 3}", usd="0.001"))

    async with anyio.create_task_group() as group:
        for number in range(60):
            group.start_soon(note, number)
    state = await replicas[0].load("", name)
    assert state.cost == Cost(Decimal("0.06"), 60) and state.turns == 3
    assert state.threads.keys() == {"t0", "t1", "t2"}


async def test_a_session_keeps_its_newest_threads_and_no_more(replicas):
    name = f"ses_{uuid.uuid4().hex}"
    for number in range(MOST_THREADS + 4):
        await replicas[0].note("", name, entry(thread=f"t{number}"))
        await replicas[1].note("", name, entry(thread="t0"))
    state = await replicas[0].load("", name)
    newest = [f"t{number}" for number in range(5, MOST_THREADS + 4)]
    assert list(state.threads) == [*newest, "t0"]


async def test_a_compacted_thread_goes_on_in_another_ones_place_and_is_no_new_turn(replicas):
    name, (one, other) = f"ses_{uuid.uuid4().hex}", replicas
    marked = entry(waits=True, failures={"f": 1}, forgotten={"": 2}, compacted=True)
    noted = await one.note("", name, marked)
    assert await other.load("", name) == noted == NEW_SESSION.with_entry(marked)
    goes_on = replace(entry(thread="new", turn="2"), replaces="t")
    state = await other.note("", name, goes_on)
    assert await one.load("", name) == state == noted.with_entry(goes_on)
    assert state.threads.keys() == {"new"} and state.turns == 1
    again = replace(entry(thread="new", turn="3"), replaces="new")
    assert (await one.note("", name, again)).turns == 1


async def test_what_is_only_counted_keeps_no_thread(replicas):
    name = f"ses_{uuid.uuid4().hex}"
    state = await replicas[0].note("", name, entry(thread=""))
    assert not state.threads and state.turns == 0 and state.cost.usd == Decimal("0.1")


async def test_sessions_in_memory_are_bounded_by_tenant_and_expire():
    now = [0.0]
    memory = LocalSessions(most=10, clock=lambda: now[0])
    await memory.note("quiet", "mine", entry())
    for number in range(50):
        await memory.note("loud", f"s{number}", entry())
    assert len(memory) == 10
    assert (await memory.load("quiet", "mine")).turns == 1
    assert (await memory.load("loud", "s0")) == NEW_SESSION
    assert (await memory.load("loud", "mine")) == NEW_SESSION
    now[0] = KEPT_SECONDS + 1
    assert (await memory.load("quiet", "mine")) == NEW_SESSION and len(memory) == 0


async def test_redis_that_is_away_leaves_each_replica_its_own_sessions():
    memory = RedisSessions(RedisConnections("redis://127.0.0.1:1", 2, patience=1.0))
    await memory.note("t", "s", entry())
    assert (await memory.load("t", "s")).cost.usd == Decimal("0.1")


async def test_what_cannot_be_read_in_redis_is_not_there(redis):
    connections = RedisConnections(redis, patience=10.0)
    memory, name = RedisSessions(connections), f"ses_{uuid.uuid4().hex}"
    await memory.note("", name, entry())
    await connections.ask(
        lambda it: it.hset(f"batuta:session:{{{name}}}", "thread:t", "of another version")
    )
    state = await memory.load("", name)
    assert state.threads == {} and state.turns == 1
    await connections.close()


async def test_another_tenants_name_of_a_session_gives_nothing_of_it(store):
    async with KeyedServer(store) as server:
        mine, theirs = await server.key("acme"), await server.key("other")

        async def ask(key, **limits):
            session = {"session": limits} if limits else {}
            body = {"model": "worker/ada", "messages": HI, "orchestration": session}
            head = {"authorization": f"Bearer {key}", "x-session-id": "the-secret-name"}
            status, headers, _ = await server.serving.post(json=body, headers=head)
            return status, headers.get("x-batuta-session"), headers.get("x-batuta-session-cost")

        _, session, cost = await ask(mine)
        assert cost == str(COST)
        assert (await ask(mine))[1:] == (session, str(2 * COST))
        status, forged, cost = await ask(theirs)
        assert status == 200 and forged != session and cost == str(COST)
        # nor does it count what they do: the other's spending ends no session of mine
        assert (await ask(theirs, max_cost_usd=0.002))[0] == 429
        assert (await ask(mine, max_cost_usd=1))[2] == str(3 * COST)
        # and who sends the id itself names a session of their own
        body = {"model": "worker/ada", "messages": HI}
        head = {"authorization": f"Bearer {theirs}", "x-session-id": session}
        _, headers, _ = await server.serving.post(json=body, headers=head)
        assert headers["x-batuta-session"] not in {session, forged}
        assert headers["x-batuta-session-cost"] == str(COST)


async def test_a_key_s_limits_of_a_session_hold_whatever_the_request_asks(store):
    async with KeyedServer(store) as server:
        costs = await server.key("acme", session_max_cost=Decimal("0.0015"))
        turns = await server.key("other", session_max_turns=1)

        async def ask(key, words, session="s"):
            said = [{"role": "user", "content": words}]
            wish = {"session": {"max_cost_usd": 100, "max_turns": 100}}
            body = {"model": "worker/ada", "messages": said, "orchestration": wish}
            head = {"authorization": f"Bearer {key}", "x-session-id": session}
            status, _, answer = await server.serving.post(json=body, headers=head)
            return status, answer.get("error", {}).get("message", "")

        while (told := await ask(costs, "hi"))[0] == 200:
            pass
        assert told[0] == 429 and "may cost $0.0015" in told[1]
        assert (await ask(costs, "hi", "another"))[0] == 200
        assert (await ask(turns, "hi"))[0] == 200
        assert (await ask(turns, "hi"))[0] == 200, "the same turn, sent again"
        status, message = await ask(turns, "something else")
        assert status == 429 and "has had 1 turns and may have 1" in message


def test_limits_of_a_session_are_written_and_read_and_old_replicas_read_keys_without_them():
    limits = KeyPermissions(session_max_cost=Decimal("2.5"), session_max_turns=40)
    written = permissions_json(limits)
    assert (written["session_max_cost"], written["session_max_turns"]) == ("2.5", 40)
    assert read_permissions(written) == limits
    assert not {"session_max_cost", "session_max_turns"} & permissions_json(KeyPermissions()).keys()
    for wrong in ({"session_max_cost": -1}, {"session_max_turns": 0}, {"session_max_turns": True}):
        with pytest.raises(ValueError, match="session_max"):
            read_permissions(wrong)
