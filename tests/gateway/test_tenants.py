"""Who may do what, for how much: every route with every role, rates, budgets, no secret told."""

from __future__ import annotations

import logging
import re
import time
from decimal import Decimal

import anyio
import pytest

from batuta.clients import ScriptedClient
from batuta.errors import ConfigError
from batuta.gateway.access.caller import Authenticator
from batuta.gateway.serve import open_socket
from batuta.store.ledger import Bucket, utc_day
from batuta.store.spend_report import report_spending
from gateway.house import HI, Halting, Serving, orchestra
from gateway.town import ADMIN, CHAT, COST, HELLO, Town

pytestmark = pytest.mark.anyio


@pytest.fixture
async def town(store):
    async with Town(store) as town:
        yield town


ROUTES = [
    ("POST", "/v1/chat/completions", CHAT),
    ("POST", "/v1/responses", {"model": "worker/ada", "input": "hi"}),
    ("POST", "/v1/messages", {"model": "worker/ada", "max_tokens": 9, "messages": HI}),
    ("GET", "/v1/models", None),
    ("GET", "/v1/models/worker/ada", None),
    ("GET", "/v1/runs", None),
    ("GET", "/v1/runs/run_1", None),
    ("DELETE", "/v1/runs/run_1", None),
    ("POST", "/v1/runs/run_1/feedback", {"score": 1}),
    ("GET", "/v1/responses/resp_1", None),
    ("DELETE", "/v1/responses/resp_1", None),
    ("POST", "/v1/responses/resp_1/cancel", {}),
    ("GET", "/v1/responses/resp_1/input_items", None),
    ("GET", "/v1/admin/keys", None),
    ("POST", "/v1/admin/keys", {"name": "n"}),
    ("GET", "/v1/admin/keys/x", None),
    ("PATCH", "/v1/admin/keys/x", {}),
    ("POST", "/v1/admin/keys/x/revoke", {}),
    ("POST", "/v1/admin/keys/x/rotate", {}),
    ("GET", "/v1/admin/tenants", None),
    ("PUT", "/v1/admin/tenants/t", {}),
    ("DELETE", "/v1/admin/tenants/t", None),
    ("GET", "/v1/admin/spend", None),
    ("GET", "/v1/nothing", None),
    ("GET", "/v1", None),
]
RUN_PATHS = {"/v1/chat/completions", "/v1/responses", "/v1/messages"}


async def test_every_route_with_every_role(town):
    good = await town.key()
    expired = await town.key(expires=time.time() - 1)
    gone = await town.key()
    await town.store.keys.revoke(gone.split("_")[1])
    wrong = good[:-4] + "AAAA"
    for method, path, body in ROUTES:
        options = {} if body is None else {"json": body}
        for bad in (None, wrong, expired, gone, "sk-any", "\u00e9", ADMIN + "x"):
            status, headers, said = await town.ask(bad, path, method, **options)
            assert status == 401, (path, bad)
            assert "authentication_error" in str(said)
            assert headers["www-authenticate"] == "Bearer"
        status, _, said = await town.ask(good, path, method, **options)
        assert (status == 403) == path.startswith("/v1/admin"), (path, said)
        status, _, said = await town.ask(ADMIN, path, method, **options)
        assert status != 401
        assert (status == 403) == (path in RUN_PATHS), (path, said)


async def test_the_open_routes_need_no_key(town):
    for path in ("/healthz", "/readyz"):
        assert (await town.ask(None, path, "GET"))[0] == 200


@pytest.mark.parametrize(
    "path", ["/.//v1/runs", "/v1//runs", "/V1/runs", "/x/../v1/runs", "/v1;/runs"]
)
async def test_odd_paths_and_hosts_open_nothing(town, path):
    async with town.serving.http.get(path, headers={"host": "evil.example/healthz?"}) as response:
        assert response.status in {401, 404}


async def test_a_tenant_sees_its_own_runs_only(town):
    mine, other = await town.key("acme"), await town.key("other")
    _, headers, _ = await town.chat(mine)
    run = headers["x-batuta-run-id"]
    assert (await town.ask(mine, f"/v1/runs/{run}", "GET"))[0] == 200
    assert (await town.ask(ADMIN, f"/v1/runs/{run}", "GET"))[0] == 200
    assert (await town.ask(other, f"/v1/runs/{run}", "GET"))[0] == 404
    given = await town.ask(other, f"/v1/runs/{run}/feedback", json={"score": 0})
    assert given[0] == 404
    for key, count in ((mine, 1), (other, 0), (ADMIN, 1)):
        _, _, page = await town.ask(key, "/v1/runs", "GET")
        assert len(page["data"]) == count


async def test_a_tenant_has_its_own_responses_only(town):
    mine, other = await town.key("acme"), await town.key("other")
    body = {"model": "worker/ada", "input": "hi"}
    _, _, made = await town.ask(mine, "/v1/responses", json=body)
    path = f"/v1/responses/{made['id']}"
    assert (await town.ask(mine, path, "GET"))[0] == 200
    for method, at in (("GET", path), ("DELETE", path), ("GET", f"{path}/input_items"), ("POST", f"{path}/cancel")):  # fmt: skip
        assert (await town.ask(other, at, method))[0] == 404
    follow = {**body, "previous_response_id": made["id"]}
    assert (await town.ask(other, "/v1/responses", json=follow))[0] in {400, 404}


async def test_scopes(town):
    key = await town.key(models=("worker/*",), workers_deny=("bob",))
    assert (await town.chat(key))[0] == 200
    status, _, said = await town.chat(key, model="batuta-mini")
    assert (status, said["error"]["code"]) == (403, "model_not_allowed")
    status, _, said = await town.chat(key, model="worker/bob")
    assert (status, said["error"]["code"]) == (403, "permission_denied")
    _, _, page = await town.ask(key, "/v1/models", "GET")
    assert {model["id"] for model in page["data"]} == {"worker/ada"}


async def test_a_denied_worker_hears_nothing(store):
    heard = []
    bob = ScriptedClient(lambda request: heard.append(request) or "no")
    async with Town(store, ada=ScriptedClient(lambda _: "yes"), bob=bob) as town:
        key = await town.key(workers_deny=("bob",))
        for model in ("batuta-mini", "batuta-ultra", "worker/bob"):
            await town.chat(key, model=model)
        workflow = {"steps": [{"worker": "bob", "subtask": "x"}]}
        await town.chat(key, model="batuta-ultra", orchestration={"workflow": workflow})
        await town.chat(key, model="batuta-ultra", orchestration={"workers_allow": ["bob"]})
        assert heard == []


async def test_revoked_at_once_over_http_and_rotated_with_grace(town):
    key = await town.key()
    name = key.split("_")[1]
    assert (await town.chat(key))[0] == 200
    rotated = await town.ask(ADMIN, f"/v1/admin/keys/{name}/rotate", json={"grace_s": 60})
    new = rotated[2]["key"]
    assert [(await town.chat(each))[0] for each in (key, new)] == [200, 200]
    newest = (await town.ask(ADMIN, f"/v1/admin/keys/{name}/rotate", json={"grace_s": 0}))[2]["key"]
    assert [(await town.chat(each))[0] for each in (key, new, newest)] == [401, 401, 200]
    assert (await town.ask(ADMIN, f"/v1/admin/keys/{name}/revoke"))[0] == 200
    assert (await town.chat(newest))[0] == 401


async def test_requests_a_minute(town):
    key = await town.key(rpm=2)
    for left in ("1", "0"):
        status, headers, _ = await town.chat(key)
        assert (status, headers["x-ratelimit-remaining-requests"]) == (200, left)
        assert headers["x-ratelimit-limit-requests"] == "2"
    status, headers, said = await town.chat(key)
    assert (status, said["error"]["code"]) == (429, "rate_limit_exceeded")
    assert int(headers["retry-after"]) >= 1
    assert int(headers["retry-after-ms"]) > 0


async def test_tokens_a_minute_count_what_was_really_used(town):
    key = await town.key(tpm=1000)
    assert (await town.chat(key))[0] == 200  # it took 1,500
    assert (await town.chat(key))[2]["error"]["code"] == "rate_limit_exceeded"


async def test_requests_at_the_same_time(store):
    ada = Halting(("so",))
    async with Town(store, ada=ada) as town:
        key = await town.key(concurrency=1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(town.chat, key)
            await ada.started.wait()
            status, _, said = await town.chat(key)
            assert (status, said["error"]["code"]) == (429, "rate_limit_exceeded")
            tasks.cancel_scope.cancel()
        ada.started = anyio.Event()
        with anyio.fail_after(30):  # a moment later the seat is free again
            while not ada.started.is_set():
                with anyio.move_on_after(0.2):
                    await town.chat(key)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
@pytest.mark.parametrize("stream", [False, True])
async def test_no_endpoint_escapes_the_budget(town, path, stream):
    key = await town.key(per_day=Decimal("0.0205"))
    body = {"model": "worker/ada", "stream": stream, "max_tokens": 5000}
    body |= {"messages": HI} if "responses" not in path else {"input": "hi", "max_output_tokens": 5000}  # fmt: skip
    if "responses" in path:
        del body["max_tokens"]
    statuses = []
    for _ in range(14):
        headers = {"authorization": f"Bearer {key}"}
        async with town.serving.http.post(path, json=body, headers=headers) as response:
            statuses.append(response.status)
            text = await response.text()
    assert statuses[:2] == [200, 200]
    assert statuses[-1] == 429  # not even a short answer can be paid any more
    assert "budget" in text
    assert response.headers["x-should-retry"] == "false"
    await town.store.flush()
    [found] = await report_spending(town.store.database, ("tenant",))
    assert found.cost.usd == COST * statuses.count(200) <= Decimal("0.0205")
    [full] = await town.store.budgets.budget_status([bucket_of(key)])
    assert (full.spent, full.reserved) == (int(found.cost.usd * 10**9), 0)


def bucket_of(key):
    return Bucket(f"key:{key.split('_')[1]}", utc_day(time.time()), 10**12)


async def test_a_cancelled_stream_settles_what_it_spent(store):
    ada = Halting(("some", "words"))
    async with Town(store, ada=ada) as town:
        key = await town.key(per_day=Decimal(1))
        headers = {"authorization": f"Bearer {key}"}
        response = await town.serving.http.post(
            "/v1/chat/completions", json={**CHAT, "stream": True}, headers=headers
        )
        await ada.started.wait()
        [full] = await store.budgets.budget_status([bucket_of(key)])
        assert full.reserved > 0
        response.close()
        with anyio.fail_after(30):
            while full.reserved:
                await anyio.sleep(0.01)
                await store.flush()
                [full] = await store.budgets.budget_status([bucket_of(key)])
        assert full.spent > 0
        [found] = await report_spending(store.database, ("tenant",))
        assert found.estimated_calls == 1


async def test_a_run_that_is_not_stored_is_billed(town):
    key = await town.key(per_day=Decimal(1))
    await town.chat(key, store=False)
    await town.store.flush()
    assert await town.store.list() == []
    _, found = await report_spending(town.store.database, ("tenant", "kind"))
    assert found.group == ("acme", "worker")
    assert found.cost.usd == COST


async def test_a_request_may_cost_no_more_than_the_key_says(town):
    key = await town.key(max_cost=Decimal(0))
    status, headers, said = await town.chat(key)
    assert (status, said["error"]["code"]) == (429, "budget_exceeded")
    assert headers["x-should-retry"] == "false"


async def test_the_admin_makes_limits_and_reads_spending(town):
    body = {"name": "ci", "tenant": "acme", "limits": {"rpm": 5, "per_day": "2.50"}}
    status, _, made = await town.ask(ADMIN, "/v1/admin/keys", json=body)
    assert status == 201
    key, path = made.pop("key"), f"/v1/admin/keys/{made['id']}"
    assert (await town.ask(ADMIN, path, "GET"))[2] == made
    status, _, said = await town.ask(ADMIN, path, "PATCH", json={"limits": {"rpm": 7}})
    assert (said["limits"]["rpm"], said["limits"]["per_day"]) == (7, "2.50")
    for bad in (
        {"limits": {"rmp": 1}},
        {"tenant": "other"},
        {"digest": "x"},
        {"limits": {"rpm": 0}},
    ):
        assert (await town.ask(ADMIN, path, "PATCH", json=bad))[0] == 400
    await town.chat(key)
    await town.store.flush()
    _, _, page = await town.ask(ADMIN, "/v1/admin/spend?by=tenant,worker", "GET")
    assert ("acme", "ada", str(COST)) in [(r["tenant"], r["worker"], f"{Decimal(r['usd']).normalize():f}") for r in page["data"]]  # fmt: skip
    assert (await town.ask(ADMIN, "/v1/admin/spend?by=digest", "GET"))[0] == 400
    assert (await town.ask(ADMIN, "/v1/admin/spend?since=x", "GET"))[0] == 400
    budget = {"per_day": "0", "per_month": None}
    assert (await town.ask(ADMIN, "/v1/admin/tenants/acme", "PUT", json=budget))[0] == 200
    status, _, said = await town.chat(key)
    assert (status, said["error"]["code"]) == (429, "budget_exceeded")
    assert "tenant's budget" in said["error"]["message"]


async def test_keys_and_tenants_are_listed_a_page_at_a_time(town):
    for number in range(5):
        await town.key(f"t{number}")
    for path, name in (("/v1/admin/keys", "id"), ("/v1/admin/tenants", "name")):
        whole = (await town.ask(ADMIN, path, "GET"))[2]
        assert (whole["has_more"], whole["next_cursor"]) == (False, None)
        seen, after = [], ""
        while after is not None:
            _, _, page = await town.ask(ADMIN, f"{path}?limit=2{after}", "GET")
            assert len(page["data"]) <= 2
            seen += [one[name] for one in page["data"]]
            after = page["next_cursor"] and f"&after={page['next_cursor']}"
        assert seen == [one[name] for one in whole["data"]]
        assert len(seen) >= 5
        for limit in ("0", "101", "x", "1e9", "-1"):
            assert (await town.ask(ADMIN, f"{path}?limit={limit}", "GET"))[0] == 400
    status, _, said = await town.ask(ADMIN, "/v1/admin/keys?after=x", "GET")
    assert (status, said["error"]["param"]) == (400, "after")


async def test_no_key_is_told(town, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    key = await town.key(per_day=Decimal(0))
    heard = []
    for shown in (key, key[:-2] + "AA", ADMIN):
        for path in ("/v1/chat/completions", "/v1/runs/nothing", "/v1/admin/keys"):
            heard += [str(await town.ask(shown, path, "POST", json=CHAT))]
    found = (await town.store.keys.list())[0]
    text = "".join([*heard, caplog.text, *capfd.readouterr(), repr(found), repr(town.mint), repr(town.gate)])  # fmt: skip
    secret = key.rpartition(key.split("_")[1] + "_")[2]
    assert secret[:20] not in text
    assert ADMIN not in text
    assert found.digest.hex() not in text
    assert not re.search(r"digest|x{32}", repr(found) + repr(town.mint))


async def test_without_keys_anybody_here_is_the_local_tenant_until_there_is_one(store):
    town = Town(store)
    gate = Authenticator(store, town.mint, cache_seconds=0)
    town.serving = Serving(
        orchestra({"ada": ScriptedClient(lambda _: HELLO)}, store=store, authenticator=gate)
    )
    async with town:
        assert (await town.chat("anything"))[0] == 200
        assert (await town.chat(None))[0] == 200
        key = await town.key()
        assert (await town.chat(None))[0] == 401
        await town.store.keys.revoke(key.split("_")[1])
        assert (await town.chat(None))[0] == 401  # it does not open again


async def test_a_session_ends_with_its_key(town):
    key = await town.key()
    session = await town.gate.open_session(key)
    assert (await town.gate.authenticate(None, session)).tenant == "acme"
    assert (await town.gate.authenticate(None, session + "0")).role.value == "nobody"
    name, until, signature = session.split(".")
    longer = f"{name}.{int(until) + 9}.{signature}"
    assert (await town.gate.authenticate(None, longer)).role.value == "nobody"
    await town.store.keys.rotate(town.mint, name, 60)
    assert (await town.gate.authenticate(None, session)).role.value == "nobody"
    admin = await town.gate.open_session(ADMIN)
    assert (await town.gate.authenticate(None, admin)).role.value == "admin"


def test_another_address_needs_keys():
    with pytest.raises(ConfigError, match="batuta keys create"):
        open_socket("0.0.0.0", 0)
    open_socket("0.0.0.0", 0, needs_key=True).close()


def test_an_admins_token_that_can_be_guessed_is_refused():
    with pytest.raises(ConfigError, match="16 characters"):
        Authenticator(None, None, "short")
