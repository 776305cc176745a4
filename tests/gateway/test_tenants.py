"""Who may do what, for how much: every route with every role, rates, budgets, no secret told."""

from __future__ import annotations

import json
import logging
import re
import time
from decimal import Decimal

import anyio
import pytest

from batuta.clients import ScriptedClient
from batuta.core import Reply, Usage
from batuta.errors import ConfigError
from batuta.gateway.access.caller import Authenticator
from batuta.gateway.serve import open_socket
from batuta.store.ledger import Bucket, utc_day
from batuta.store.spend_report import report_spending
from batuta.usage import ZERO_COST
from gateway.keyed_server import ADMIN, CHAT, COST, HELLO, KeyedServer
from gateway.live_server import HI, Halting, Serving, scripted_state

pytestmark = pytest.mark.anyio


@pytest.fixture
async def keyed(store):
    async with KeyedServer(store) as keyed:
        yield keyed


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
    ("POST", "/v1/files", {}),
    ("GET", "/v1/files", None),
    ("GET", "/v1/files/file-1", None),
    ("DELETE", "/v1/files/file-1", None),
    ("GET", "/v1/files/file-1/content", None),
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
    ("GET", "/v1/admin/audit", None),
    ("GET", "/v1/admin/approvals", None),
    ("POST", "/v1/admin/approvals/run_1:0", {"decision": "approve", "digest": "x"}),
    ("GET", "/v1/nothing", None),
    ("GET", "/v1", None),
]
RUN_PATHS = {"/v1/chat/completions", "/v1/responses", "/v1/messages"}


async def test_every_route_with_every_role(keyed):
    good = await keyed.key()
    expired = await keyed.key(expires=time.time() - 1)
    gone = await keyed.key()
    await keyed.store.keys.revoke(gone.split("_")[1])
    wrong = good[:-4] + "AAAA"
    for method, path, body in ROUTES:
        options = {} if body is None else {"json": body}
        for bad in (None, wrong, expired, gone, "sk-any", "\u00e9", ADMIN + "x"):
            status, headers, said = await keyed.ask(bad, path, method, **options)
            assert status == 401, (path, bad)
            assert "authentication_error" in str(said)
            assert headers["www-authenticate"] == "Bearer"
        status, _, said = await keyed.ask(good, path, method, **options)
        assert (status == 403) == path.startswith("/v1/admin"), (path, said)
        status, _, said = await keyed.ask(ADMIN, path, method, **options)
        assert status != 401
        assert (status == 403) == (path in RUN_PATHS), (path, said)


async def test_the_open_routes_need_no_key(keyed):
    for path in ("/healthz", "/readyz"):
        assert (await keyed.ask(None, path, "GET"))[0] == 200


@pytest.mark.parametrize(
    "path", ["/.//v1/runs", "/v1//runs", "/V1/runs", "/x/../v1/runs", "/v1;/runs"]
)
async def test_odd_paths_and_hosts_open_nothing(keyed, path):
    async with keyed.serving.http.get(path, headers={"host": "evil.example/healthz?"}) as response:
        assert response.status in {401, 404}


async def test_a_tenant_sees_its_own_runs_only(keyed):
    mine, other = await keyed.key("acme"), await keyed.key("other")
    _, headers, _ = await keyed.chat(mine)
    run = headers["x-batuta-run-id"]
    assert (await keyed.ask(mine, f"/v1/runs/{run}", "GET"))[0] == 200
    assert (await keyed.ask(ADMIN, f"/v1/runs/{run}", "GET"))[0] == 200
    assert (await keyed.ask(other, f"/v1/runs/{run}", "GET"))[0] == 404
    given = await keyed.ask(other, f"/v1/runs/{run}/feedback", json={"score": 0})
    assert given[0] == 404
    for key, count in ((mine, 1), (other, 0), (ADMIN, 1)):
        _, _, page = await keyed.ask(key, "/v1/runs", "GET")
        assert len(page["data"]) == count


async def test_a_tenant_has_its_own_responses_only(keyed):
    mine, other = await keyed.key("acme"), await keyed.key("other")
    body = {"model": "worker/ada", "input": "hi"}
    _, _, made = await keyed.ask(mine, "/v1/responses", json=body)
    path = f"/v1/responses/{made['id']}"
    assert (await keyed.ask(mine, path, "GET"))[0] == 200
    for method, at in (("GET", path), ("DELETE", path), ("GET", f"{path}/input_items"), ("POST", f"{path}/cancel")):  # fmt: skip
        assert (await keyed.ask(other, at, method))[0] == 404
    follow = {**body, "previous_response_id": made["id"]}
    assert (await keyed.ask(other, "/v1/responses", json=follow))[0] in {400, 404}


async def test_scopes(keyed):
    key = await keyed.key(models=("worker/*",), workers_deny=("bob",))
    assert (await keyed.chat(key))[0] == 200
    status, _, said = await keyed.chat(key, model="batuta-mini")
    assert (status, said["error"]["code"]) == (403, "model_not_allowed")
    status, _, said = await keyed.chat(key, model="worker/bob")
    assert (status, said["error"]["code"]) == (403, "permission_denied")
    _, _, page = await keyed.ask(key, "/v1/models", "GET")
    assert {model["id"] for model in page["data"]} == {"worker/ada"}


async def test_a_denied_worker_hears_nothing(store):
    heard = []
    bob = ScriptedClient(lambda request: heard.append(request) or "no")
    async with KeyedServer(store, ada=ScriptedClient(lambda _: "yes"), bob=bob) as keyed:
        key = await keyed.key(workers_deny=("bob",))
        for model in ("batuta-mini", "batuta-ultra", "worker/bob"):
            await keyed.chat(key, model=model)
        workflow = {"steps": [{"worker": "bob", "subtask": "x"}]}
        await keyed.chat(key, model="batuta-ultra", orchestration={"workflow": workflow})
        await keyed.chat(key, model="batuta-ultra", orchestration={"workers_allow": ["bob"]})
        assert heard == []


async def test_revoked_at_once_over_http_and_rotated_with_grace(keyed):
    key = await keyed.key()
    name = key.split("_")[1]
    assert (await keyed.chat(key))[0] == 200
    rotated = await keyed.ask(ADMIN, f"/v1/admin/keys/{name}/rotate", json={"grace_s": 60})
    new = rotated[2]["key"]
    assert [(await keyed.chat(each))[0] for each in (key, new)] == [200, 200]
    newest = (await keyed.ask(ADMIN, f"/v1/admin/keys/{name}/rotate", json={"grace_s": 0}))[2][
        "key"
    ]
    assert [(await keyed.chat(each))[0] for each in (key, new, newest)] == [401, 401, 200]
    assert (await keyed.ask(ADMIN, f"/v1/admin/keys/{name}/revoke"))[0] == 200
    assert (await keyed.chat(newest))[0] == 401


async def test_requests_a_minute(keyed):
    key = await keyed.key(rpm=2)
    for left in ("1", "0"):
        status, headers, _ = await keyed.chat(key)
        assert (status, headers["x-ratelimit-remaining-requests"]) == (200, left)
        assert headers["x-ratelimit-limit-requests"] == "2"
    status, headers, said = await keyed.chat(key)
    assert (status, said["error"]["code"]) == (429, "rate_limit_exceeded")
    assert int(headers["retry-after"]) >= 1
    assert int(headers["retry-after-ms"]) > 0


async def test_tokens_a_minute_count_what_was_really_used(keyed):
    key = await keyed.key(tpm=1000)
    assert (await keyed.chat(key))[0] == 200  # it took 1,500
    assert (await keyed.chat(key))[2]["error"]["code"] == "rate_limit_exceeded"


async def test_tokens_that_no_call_used_are_free_again(store):
    small = Reply(text="Hello.", usage=Usage(calls=1, input=20, output=2), cost=ZERO_COST)
    long = [{"role": "user", "content": "word " * 700}]
    async with KeyedServer(store, ada=ScriptedClient(lambda _: small)) as keyed:
        key = await keyed.key(tpm=1000)
        for _ in range(3):  # each is expected to have more than half of the tokens
            assert (await keyed.chat(key, messages=long))[0] == 200
        poor = await keyed.key(tpm=1000, per_day=Decimal("0.000001"))
        codes = [(await keyed.chat(poor, messages=long))[2]["error"]["code"] for _ in range(3)]
        assert codes == ["budget_exceeded"] * 3  # nothing was run: the rate is untouched


async def test_requests_at_the_same_time(store):
    ada = Halting(("so",))
    async with KeyedServer(store, ada=ada) as keyed:
        key = await keyed.key(concurrency=1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keyed.chat, key)
            await ada.started.wait()
            status, _, said = await keyed.chat(key)
            assert (status, said["error"]["code"]) == (429, "rate_limit_exceeded")
            tasks.cancel_scope.cancel()
        ada.started = anyio.Event()
        with anyio.fail_after(60):  # a moment later the seat is free again
            while not ada.started.is_set():
                with anyio.move_on_after(0.2):
                    await keyed.chat(key)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
@pytest.mark.parametrize("stream", [False, True])
async def test_no_endpoint_escapes_the_budget(keyed, path, stream):
    key = await keyed.key(per_day=Decimal("0.0205"))
    body = {"model": "worker/ada", "stream": stream, "max_tokens": 5000}
    body |= {"messages": HI} if "responses" not in path else {"input": "hi", "max_output_tokens": 5000}  # fmt: skip
    if "responses" in path:
        del body["max_tokens"]
    statuses = []
    for _ in range(14):
        headers = {"authorization": f"Bearer {key}"}
        async with keyed.serving.http.post(path, json=body, headers=headers) as response:
            statuses.append(response.status)
            text = await response.text()
    assert statuses[:2] == [200, 200]
    assert statuses[-1] == 429  # not even a short answer can be paid any more
    assert "budget" in text
    assert response.headers["x-should-retry"] == "false"
    await keyed.store.flush()
    [found] = await report_spending(keyed.store.database, ("tenant",))
    assert found.cost.usd == COST * statuses.count(200) <= Decimal("0.0205")
    [full] = await keyed.store.budgets.budget_status([bucket_of(key)])
    assert (full.spent, full.reserved) == (int(found.cost.usd * 10**9), 0)


def bucket_of(key):
    return Bucket(f"key:{key.split('_')[1]}", utc_day(time.time()), 10**12)


async def test_a_cancelled_stream_settles_what_it_spent(store):
    ada = Halting(("some", "words"))
    async with KeyedServer(store, ada=ada) as keyed:
        key = await keyed.key(per_day=Decimal(1))
        headers = {"authorization": f"Bearer {key}"}
        response = await keyed.serving.http.post(
            "/v1/chat/completions", json={**CHAT, "stream": True}, headers=headers
        )
        await ada.started.wait()
        [full] = await store.budgets.budget_status([bucket_of(key)])
        assert full.reserved > 0
        response.close()
        with anyio.fail_after(60):
            while full.reserved:
                await anyio.sleep(0.01)
                await store.flush()
                [full] = await store.budgets.budget_status([bucket_of(key)])
        assert full.spent > 0
        [found] = await report_spending(store.database, ("tenant",))
        assert found.estimated_calls == 1


async def test_a_run_that_is_not_stored_is_billed(keyed):
    key = await keyed.key(per_day=Decimal(1))
    await keyed.chat(key, store=False)
    await keyed.store.flush()
    assert await keyed.store.list() == []
    _, found = await report_spending(keyed.store.database, ("tenant", "kind"))
    assert found.group == ("acme", "worker")
    assert found.cost.usd == COST


async def test_a_request_may_cost_no_more_than_the_key_says(keyed):
    key = await keyed.key(max_cost=Decimal(0))
    status, headers, said = await keyed.chat(key)
    assert (status, said["error"]["code"]) == (429, "budget_exceeded")
    assert headers["x-should-retry"] == "false"


async def test_changes_of_one_key_at_once_all_stand(keyed):
    _, _, made = await keyed.ask(ADMIN, "/v1/admin/keys", json={"name": "ci"})
    path = f"/v1/admin/keys/{made['id']}"
    limits = {"rpm": 7, "tpm": 9000, "concurrency": 3, "per_day": "2.50", "session_max_turns": 8}

    async def change(name):
        body = {"limits": {name: limits[name]}}
        assert (await keyed.ask(ADMIN, path, "PATCH", json=body))[0] == 200

    async with anyio.create_task_group() as tasks:
        for name in limits:
            tasks.start_soon(change, name)
    _, _, said = await keyed.ask(ADMIN, path, "GET")
    assert {name: said["limits"][name] for name in limits} == limits


async def test_the_admin_makes_limits_and_reads_spending(keyed):
    body = {"name": "ci", "tenant": "acme", "limits": {"rpm": 5, "per_day": "2.50"}}
    status, _, made = await keyed.ask(ADMIN, "/v1/admin/keys", json=body)
    assert status == 201
    key, path = made.pop("key"), f"/v1/admin/keys/{made['id']}"
    assert (await keyed.ask(ADMIN, path, "GET"))[2] == made
    status, _, said = await keyed.ask(ADMIN, path, "PATCH", json={"limits": {"rpm": 7}})
    assert (said["limits"]["rpm"], said["limits"]["per_day"]) == (7, "2.50")
    for bad in (
        {"limits": {"rmp": 1}},
        {"tenant": "other"},
        {"digest": "x"},
        {"limits": {"rpm": 0}},
        {"name": " \n"},
        {"name": "x" * 201},
    ):
        assert (await keyed.ask(ADMIN, path, "PATCH", json=bad))[0] == 400
    await keyed.chat(key)
    await keyed.store.flush()
    _, _, page = await keyed.ask(ADMIN, "/v1/admin/spend?by=tenant,worker", "GET")
    assert ("acme", "ada", str(COST)) in [(r["tenant"], r["worker"], f"{Decimal(r['usd']).normalize():f}") for r in page["data"]]  # fmt: skip
    assert (await keyed.ask(ADMIN, "/v1/admin/spend?by=digest", "GET"))[0] == 400
    assert (await keyed.ask(ADMIN, "/v1/admin/spend?since=x", "GET"))[0] == 400
    for place in ("keys?sort=x", "tenants?sort=x", "spend?sort=x", f"keys/{made['id']}?sort=x"):
        status, _, said = await keyed.ask(ADMIN, f"/v1/admin/{place}", "GET")
        assert (status, said["error"]["code"]) == (400, "unknown_parameter")
        assert said["error"]["param"] == "sort"
    budget = {"per_day": "0", "per_month": None}
    assert (await keyed.ask(ADMIN, "/v1/admin/tenants/acme", "PUT", json=budget))[0] == 200
    status, _, said = await keyed.chat(key)
    assert (status, said["error"]["code"]) == (429, "budget_exceeded")
    assert "tenant's budget" in said["error"]["message"]


async def test_keys_and_tenants_are_listed_a_page_at_a_time(keyed):
    for number in range(5):
        await keyed.key(f"t{number}")
    for path, name in (("/v1/admin/keys", "id"), ("/v1/admin/tenants", "name")):
        whole = (await keyed.ask(ADMIN, path, "GET"))[2]
        assert (whole["has_more"], whole["next_cursor"]) == (False, None)
        seen, after = [], ""
        while after is not None:
            _, _, page = await keyed.ask(ADMIN, f"{path}?limit=2{after}", "GET")
            assert len(page["data"]) <= 2
            seen += [one[name] for one in page["data"]]
            after = page["next_cursor"] and f"&after={page['next_cursor']}"
        assert seen == [one[name] for one in whole["data"]]
        assert len(seen) >= 5
        for limit in ("0", "101", "x", "1e9", "-1"):
            assert (await keyed.ask(ADMIN, f"{path}?limit={limit}", "GET"))[0] == 400
    status, _, said = await keyed.ask(ADMIN, "/v1/admin/keys?after=x", "GET")
    assert (status, said["error"]["param"]) == (400, "after")


@pytest.mark.parametrize(
    ("method", "path", "body", "param"),
    [
        ("POST", "keys", {"name": "k", "tenant": "no tenant"}, "tenant"),
        ("POST", "keys", {"name": " "}, "name"),
        ("POST", "keys", {"name": "k", "limits": {"rpm": 0}}, "limits"),
        ("PUT", "tenants/acme", {"per_day": "much"}, "per_day"),
        ("PUT", "tenants/acme", {"per_month": "-1"}, "per_month"),
        ("PUT", "tenants/no%20tenant", {"per_day": "1"}, "name"),
        ("GET", "spend?since=tomorrow", None, "since"),
        ("POST", "approvals/run_1:0", {"digest": "x", "decision": "approve", "cause": ""}, "cause"),
        (
            "POST",
            "approvals/run_1:0",
            {"digest": "x", "decision": "edit", "steps": json.loads("[" * 300 + "]" * 300)},
            "steps",
        ),
    ],
)
async def test_the_admin_hears_which_value_is_wrong(keyed, method, path, body, param):
    status, _, said = await keyed.ask(ADMIN, f"/v1/admin/{path}", method, json=body)
    assert (status, said["error"]["param"]) == (400, param)


async def test_no_key_is_told(keyed, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    key = await keyed.key(per_day=Decimal(0))
    heard = []
    for shown in (key, key[:-2] + "AA", ADMIN):
        for path in ("/v1/chat/completions", "/v1/runs/nothing", "/v1/admin/keys"):
            heard += [str(await keyed.ask(shown, path, "POST", json=CHAT))]
    found = (await keyed.store.keys.list())[0]
    text = "".join([*heard, caplog.text, *capfd.readouterr(), repr(found), repr(keyed.mint), repr(keyed.gate)])  # fmt: skip
    secret = key.rpartition(key.split("_")[1] + "_")[2]
    assert secret[:20] not in text
    assert ADMIN not in text
    assert found.digest.hex() not in text
    assert not re.search(r"digest|x{32}", repr(found) + repr(keyed.mint))


async def test_without_keys_anybody_here_is_the_local_tenant_until_there_is_one(store):
    keyed = KeyedServer(store)
    gate = Authenticator(store, keyed.mint, cache_seconds=0)
    keyed.serving = Serving(
        scripted_state({"ada": ScriptedClient(lambda _: HELLO)}, store=store, authenticator=gate)
    )
    async with keyed:
        assert (await keyed.chat("anything"))[0] == 200
        assert (await keyed.chat(None))[0] == 200
        key = await keyed.key()
        assert (await keyed.chat(None))[0] == 401
        await keyed.store.keys.revoke(key.split("_")[1])
        assert (await keyed.chat(None))[0] == 401  # it does not open again


async def test_a_session_ends_with_its_key(keyed):
    key = await keyed.key()
    session = await keyed.gate.open_session(key)
    assert (await keyed.gate.authenticate(None, session)).tenant == "acme"
    assert (await keyed.gate.authenticate(None, session + "0")).role.value == "nobody"
    name, until, signature = session.split(".")
    longer = f"{name}.{int(until) + 9}.{signature}"
    assert (await keyed.gate.authenticate(None, longer)).role.value == "nobody"
    await keyed.store.keys.rotate(keyed.mint, name, 60)
    assert (await keyed.gate.authenticate(None, session)).role.value == "nobody"
    admin = await keyed.gate.open_session(ADMIN)
    assert (await keyed.gate.authenticate(None, admin)).role.value == "admin"


def test_another_address_needs_keys():
    with pytest.raises(ConfigError, match="batuta keys create"):
        open_socket("0.0.0.0", 0)
    open_socket("0.0.0.0", 0, needs_key=True).close()


def test_an_admins_token_that_can_be_guessed_is_refused():
    with pytest.raises(ConfigError, match="16 characters"):
        Authenticator(None, None, "short")
