"""When a key that was revoked stops to be believed, and what runs for it ends."""

from __future__ import annotations

import json
from decimal import Decimal
from time import monotonic, time

import anyio
import pytest

from batuta.gateway.access.caller import CACHE_SECONDS, Authenticator, CallerRole
from batuta.gateway.access.key_watch import WATCH_SECONDS, KeyWatch
from batuta.gateway.errors import APIError
from batuta.store.key_hasher import KeyHasher, parse_key_id
from batuta.store.key_permissions import KeyPermissions
from batuta.store.ledger import Bucket, usd_to_nano, utc_day
from gateway.keyed_server import ADMIN, CHAT, KeyedServer
from gateway.live_server import Halting, stored

pytestmark = pytest.mark.anyio
HASHER = KeyHasher(b"x" * 32)


class SlowStore:
    """A store in which a key that was read arrives only when it may."""

    def __init__(self, store):
        self._store, self.keys = store, self
        self.database = store.database
        self.was_read, self.may_arrive = anyio.Event(), anyio.Event()

    async def has_keys(self):
        return True

    async def find(self, name):
        found = await self._store.keys.find(name)
        self.was_read.set()
        await self.may_arrive.wait()
        return found


async def new_key(store):
    return await store.keys.create(HASHER, "acme", "a key", KeyPermissions())


async def test_other_replicas_believe_a_revoked_key_for_10_seconds_at_most(store):
    assert CACHE_SECONDS <= 10
    key, issued = await new_key(store)
    others = [Authenticator(store, HASHER, cache_seconds=0.5) for _ in range(3)]
    looked_up = monotonic()
    for other in others:
        assert (await other.authenticate(issued.text)).role is CallerRole.KEY
    await store.keys.revoke(key.id)  # as another process does
    await anyio.sleep(max(0.0, looked_up + 0.6 - monotonic()))
    for other in others:
        with pytest.raises(APIError, match=r"revoked|not valid"):
            await other.authenticate(issued.text)


async def test_a_key_is_believed_from_the_moment_at_which_it_was_read(store):
    """A slow database makes no key live longer."""
    key, issued = await new_key(store)
    slow = SlowStore(store)
    other = Authenticator(slow, HASHER, cache_seconds=0.5)  # pyright: ignore[reportArgumentType]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other.authenticate, issued.text)
        await slow.was_read.wait()
        await store.keys.revoke(key.id)
        await anyio.sleep(0.6)
        slow.may_arrive.set()
    with pytest.raises(APIError, match=r"revoked|not valid"):
        await other.authenticate(issued.text)


async def test_a_key_that_is_being_read_while_it_is_revoked_here_is_dead_at_once(store):
    key, issued = await new_key(store)
    slow = SlowStore(store)
    gate = Authenticator(slow, HASHER)  # pyright: ignore[reportArgumentType]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(gate.authenticate, issued.text)
        await slow.was_read.wait()
        await store.keys.revoke(key.id)
        gate.forget(key.id)
        slow.may_arrive.set()
    with pytest.raises(APIError, match=r"revoked|not valid"):
        await gate.authenticate(issued.text)


def served(store, *, seconds=0.05, **options):
    """A server whose worker says a word and never ends, and that worker."""
    ada = Halting(("Well",))
    keyed = KeyedServer(store, ada=ada, **options)
    keyed.gate.key_watch = KeyWatch(store, keyed.gate.forget, seconds=seconds)
    return keyed, ada


async def streamed(keyed, key, told):
    headers = {"authorization": f"Bearer {key}"}
    body = {**CHAT, "stream": True}
    async with keyed.serving.http.post("/v1/chat/completions", json=body, headers=headers) as one:
        told.append((one.status, await one.text()))


async def whole(keyed, key, told):
    status, _, body = await keyed.chat(key)
    told.append((status, json.dumps(body)))


async def end_by_store(keyed, key):
    await keyed.store.keys.revoke(key)  # as another process does


async def end_by_time(keyed, key):
    await keyed.store.keys.change(key, expires=time() - 1)


async def end_by_admin(keyed, key):
    await keyed.ask(ADMIN, f"/v1/admin/keys/{key}/revoke")


async def end_by_tenant(keyed, key):
    await keyed.store.forgetting.forget_tenant("acme")


@pytest.mark.parametrize(
    ("end", "says"),
    [(end_by_store, "revoked"), (end_by_time, "expired"), (end_by_tenant, "not valid here")],
)
@pytest.mark.parametrize("ask", [streamed, whole])
async def test_what_runs_for_a_key_ends_with_the_key(store, ask, end, says):
    assert WATCH_SECONDS <= 10
    keyed, ada = served(store)
    async with keyed:
        key, told = await keyed.key(per_day=Decimal(5)), []
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, keyed, key, told)
                await ada.started.wait()
                await end(keyed, parse_key_id(key))
            await ada.cancelled.wait()
        ((status, text),) = told
        assert status == (200 if ask is streamed else 401)
        assert (await keyed.chat(key))[0] == 401, "it is known at once to have ended"
        assert says in text
        assert "invalid_api_key" in text
        if end is not end_by_tenant:
            assert [row.outcome for row in await stored(store)] == ["cancelled"]
            await store.flush()
            day = Bucket(f"key:{parse_key_id(key)}", utc_day(time()), usd_to_nano(Decimal(5)))
            (budget,) = await store.budgets.budget_status([day])
            assert (budget.reserved, budget.spent > 0) == (0, True)


async def test_the_admins_route_ends_what_runs_at_once(store):
    keyed, ada = served(store, seconds=3600)
    async with keyed:
        key, told = await keyed.key(), []
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(streamed, keyed, key, told)
                await ada.started.wait()
                await keyed.ask(ADMIN, f"/v1/admin/keys/{parse_key_id(key)}/revoke")
        assert "revoked" in told[0][1]


async def test_a_background_response_ends_with_its_key(store):
    keyed, ada = served(store, background=True)
    async with keyed:
        key = await keyed.key(per_day=Decimal(5))
        other = await keyed.key()
        body = {"model": "worker/ada", "input": "hi", "background": True}
        _, _, queued = await keyed.ask(key, "/v1/responses", json=body)
        with anyio.fail_after(60):
            await ada.started.wait()
            await store.keys.revoke(parse_key_id(key))
            await ada.cancelled.wait()
            response = queued
            while response["status"] in {"queued", "in_progress"}:
                await anyio.sleep(0.02)
                _, _, response = await keyed.ask(other, f"/v1/responses/{queued['id']}", "GET")
        assert (response["status"], response["error"]["code"]) == ("failed", "invalid_api_key")
        assert "revoked" in response["error"]["message"]
        assert [row.outcome for row in await stored(store)] == ["cancelled"]
        assert not await store.budgets.job_reservations()


async def test_the_run_of_one_key_of_a_user_ends_with_that_key(store):
    keyed, ada = served(store)
    async with keyed:
        entry = await store.keys.enter_user(
            keyed.mint,
            "iss eve",
            "Eve",
            tenant="acme",
            is_admin=False,
            permissions=KeyPermissions(),
        )
        keys = [
            (await store.keys.create(keyed.mint, "acme", "hers", user=entry.id))[1].text
            for _ in range(2)
        ]
        told = []
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(streamed, keyed, keys[0], told)
                await ada.started.wait()
                await store.keys.revoke(parse_key_id(keys[1]))
                await anyio.sleep(0.3)
                assert not ada.cancelled.is_set()
                await store.keys.revoke(parse_key_id(keys[0]))
        assert "revoked" in told[0][1]


async def test_a_database_that_fails_ends_no_run(store):
    watch = KeyWatch(store)
    key, _ = await new_key(store)
    await store.database.close()
    with watch.watch(key.id) as work:
        await watch.end_invalid()
    assert work.refusal is None


async def read_stream(keyed, key, path, told, begun):
    headers = {"authorization": f"Bearer {key}"}
    async with keyed.serving.http.get(path, headers=headers) as answer:
        assert answer.status == 200
        async for line in answer.content:
            told.append(line.decode())
            begun.set()


@pytest.mark.parametrize(
    ("end", "says"),
    [(end_by_store, "revoked"), (end_by_time, "expired"), (end_by_admin, "revoked")],
)
async def test_who_reads_what_another_key_runs_reads_no_longer_than_their_key(store, end, says):
    keyed, ada = served(store, background=True)
    async with keyed:
        runner, reader = await keyed.key(), await keyed.key()
        body = {"model": "worker/ada", "input": "hi", "background": True}
        _, _, queued = await keyed.ask(runner, "/v1/responses", json=body)
        told, begun = [], anyio.Event()
        path = f"/v1/responses/{queued['id']}?stream=true"
        with anyio.fail_after(60):
            await ada.started.wait()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read_stream, keyed, reader, path, told, begun)
                await begun.wait()
                await end(keyed, parse_key_id(reader))
        (last,) = (line for line in told[-3:] if line.startswith("data: "))
        event = json.loads(last.removeprefix("data: "))
        assert (event["type"], event["code"]) == ("error", "invalid_api_key")
        assert says in event["message"] and event["sequence_number"] > 0
        assert not ada.cancelled.is_set(), "it goes on for whose it is"
        _, _, response = await keyed.ask(runner, f"/v1/responses/{queued['id']}", "GET")
        assert response["status"] == "in_progress"
