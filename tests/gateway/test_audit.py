"""The audit trail over HTTP and on the page: what is recorded, and what fails without a record."""

from __future__ import annotations

import json

import aiohttp
import anyio
import pytest

from batuta.gateway.access.failed_sign_ins import MAX_ADDRESSES, OTHERS, AuditKeeper, FailedSignIns
from batuta.gateway.assemble import record_settings
from batuta.store.models import AUDIT
from gateway.keyed_server import ADMIN, KeyedServer
from gateway.live_server import stored
from gateway.ui.test_page import sign_in, token_of

pytestmark = pytest.mark.anyio
WORDS = "a question that nobody else shall read"


@pytest.fixture
async def keyed(store):
    async with KeyedServer(store) as server:
        yield server


def visitor(url) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(url, cookie_jar=aiohttp.CookieJar(unsafe=True))


async def trail(store) -> list[tuple[str, str, str]]:
    """What was done by whom to what, oldest first."""
    return [(one.action, one.actor, one.subject) async for one in store.audit.read()]


async def test_the_life_of_a_key_is_recorded_and_listed_a_page_at_a_time(keyed):
    body = {"name": "laptop", "tenant": "acme", "limits": {"rpm": 5}}
    _, _, made = await keyed.ask(ADMIN, "/v1/admin/keys", json=body)
    at = f"/v1/admin/keys/{made['id']}"
    await keyed.ask(ADMIN, at, "PATCH", json={"limits": {"rpm": 6}})
    await keyed.ask(ADMIN, f"{at}/rotate", json={})
    await keyed.ask(ADMIN, f"{at}/revoke", json={})
    await keyed.ask(ADMIN, "/v1/admin/tenants/acme", "PUT", json={"per_day": "5"})
    _, _, first = await keyed.ask(ADMIN, "/v1/admin/audit?limit=3", "GET")
    after = first["next_cursor"]
    _, _, second = await keyed.ask(ADMIN, f"/v1/admin/audit?limit=3&after={after}", "GET")
    found = [*first["data"], *second["data"]]
    assert [one["action"] for one in found] == [
        "tenant.budget", "key.revoked", "key.rotated", "key.changed", "key.created"
    ]  # fmt: skip
    assert {one["actor"] for one in found} == {"admin"} and not second["has_more"]
    _, _, some = await keyed.ask(ADMIN, "/v1/admin/audit?action=tenant.", "GET")
    assert [one["details"] for one in some["data"]] == [{"per_day": "5", "per_month": None}]
    assert made["key"] not in json.dumps(found)


@pytest.mark.parametrize("query", ["after=x", "after=-1", "after=" + "9" * 19, "limit=0", "x=1"])
async def test_a_page_that_cannot_be_is_refused(keyed, query):
    assert (await keyed.ask(ADMIN, f"/v1/admin/audit?{query}", "GET"))[0] == 400


async def test_the_trail_is_the_administrators_alone(keyed):
    key = await keyed.key("acme")
    for credential, status in ((key, 403), ("", 401), ("btt_no_such", 401), (ADMIN, 200)):
        assert (await keyed.ask(credential, "/v1/admin/audit", "GET"))[0] == status


async def test_readings_and_deletions_of_others_runs_are_recorded_without_their_words(keyed):
    key = await keyed.key("acme")
    await keyed.chat(key, messages=[{"role": "user", "content": WORDS}])
    run = (await stored(keyed.store))[0].id
    assert (await keyed.ask(key, f"/v1/runs/{run}", "GET"))[0] == 200  # one's own is not told
    assert (await keyed.ask(ADMIN, f"/v1/runs/{run}", "GET"))[0] == 200
    assert (await keyed.ask(ADMIN, f"/v1/runs/{run}", "DELETE"))[0] == 200
    await keyed.ask(ADMIN, "/v1/admin/tenants/acme", "DELETE")
    done = (await trail(keyed.store))[1:]
    assert done == [
        ("run.read", "admin", run),
        ("run.deleted", "admin", run),
        ("tenant.deleted", "admin", "acme"),
    ]
    records = [one async for one in keyed.store.audit.read()]
    assert WORDS not in repr(records) and (await keyed.store.audit.verify()).broken_at is None


async def test_what_cannot_be_recorded_is_not_done(keyed):
    key = await keyed.key("acme")
    await keyed.chat(key)
    run = (await stored(keyed.store))[0].id
    await keyed.store.database.run_write(AUDIT.drop)
    for path, method in (
        (f"/v1/runs/{run}", "GET"),
        (f"/v1/runs/{run}", "DELETE"),
        (f"/v1/admin/keys/{key.split('_')[1]}/revoke", "POST"),
        ("/v1/admin/tenants/acme", "DELETE"),
    ):
        status, _, said = await keyed.ask(ADMIN, path, method, json={})
        assert status == 503 and said["error"]["code"] == "overloaded"
    assert (await keyed.ask(key, f"/v1/runs/{run}", "GET"))[0] == 200
    assert (await keyed.chat(key))[0] == 200


async def test_sign_ins_reads_and_exports_on_the_page(keyed):
    key = await keyed.key("acme")
    await keyed.chat(key)
    run = (await stored(keyed.store))[0].id
    url = keyed.serving.url
    async with visitor(url) as http, visitor(url) as user:
        form = {"key": "wrong", "token": await token_of(http, "/ui/sign-in")}
        for _ in range(5):
            async with http.post("/ui/sign-in", data=form) as response:
                assert response.status == 401
        await sign_in(http, ADMIN)
        await sign_in(user, key)
        for path in (f"/ui/runs/{run}", f"/ui/compare?a={run}", f"/ui/runs/{run}/export.json"):
            async with http.get(path) as response:
                assert response.status == 200
        async with user.get(f"/ui/runs/{run}") as response:
            assert response.status == 200
        async with user.get("/ui/audit") as response:
            assert response.status == 404
        async with http.get("/ui/audit?action=run.") as response:
            page = await response.text()
    name = key.split("_")[1]
    assert (await trail(keyed.store))[1:] == [
        ("sign_in.failed", "127.0.0.1", ""),
        ("sign_in", "admin", "admin"),
        ("sign_in", f"key:{name}", name),
        ("run.read", "admin", run),
        ("run.read", "admin", run),
        ("run.exported", "admin", run),
    ]
    assert page.count(run) == 3 and "sign_in" not in page


async def test_a_flood_of_failed_sign_ins_makes_few_records(store):
    now = [0.0]
    failures = FailedSignIns(store, lambda: now[0])
    for round_ in range(3):
        for number in range(MAX_ADDRESSES + 40):
            for _ in range(3):
                await failures.note(f"10.0.0.{number}")
        now[0] += 61.0 if round_ < 2 else 0.0
    now[0] += 61.0
    await failures.flush()
    found = [one async for one in store.audit.read()]
    assert len(found) == 3 * 2 * (MAX_ADDRESSES + 1)
    times = sum(json.loads(one.details)["times"] for one in found)
    assert times == 3 * 3 * (MAX_ADDRESSES + 40)
    assert OTHERS in {one.actor for one in found}
    await failures.flush()
    assert len([one async for one in store.audit.read()]) == len(found)


async def test_failed_sign_ins_at_the_same_time_are_counted_once(store):
    now = [0.0]
    failures = FailedSignIns(store, lambda: now[0])
    for work, times in ((lambda: failures.note("10.0.0.1"), [1]), (failures.flush, [1, 19])):
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(work)
        found = [json.loads(one.details)["times"] async for one in store.audit.read()]
        assert found == times
        now[0] += 61.0


async def test_the_settings_that_are_served_are_recorded_by_their_digest(store, tmp_path):
    import hashlib

    from batuta.clients import HttpTransport
    from batuta.config.load import load_config

    path = tmp_path / "batuta.toml"
    path.write_text(
        '[[workers]]\nid = "a"\nmodel = "m"\nbase_url = "http://127.0.0.1:9/v1"\n'
        "[audit]\nkept_days = 1\n"
    )
    async with HttpTransport() as http:
        config = await load_config(http, pool=str(path), environ={})
    assert config.audit.kept_days == 1
    await record_settings(store, config)
    record = (await store.audit.list(1))[0]
    assert (record.action, record.subject) == ("settings.loaded", str(path))
    assert json.loads(record.details)["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    old = await store.audit.append(_old_entry(), at=1.0)
    await store.database.execute(AUDIT.delete().where(AUDIT.c.seq < old.seq))
    keeper = AuditKeeper(store, FailedSignIns(store), config.audit.kept_days, started=2.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keeper.work)
        with anyio.fail_after(60):
            while (await store.audit.list(1))[0].action != "audit.cut":
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    assert [one.action for one in await store.audit.list(9)] == ["audit.cut"]


def _old_entry():
    from batuta.store.audit import AuditEntry

    return AuditEntry(actor="admin", action="key.created")
