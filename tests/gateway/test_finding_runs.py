"""`GET /v1/runs` and its totals: what a request says of itself is found again, by its tenant alone."""

import pytest

from batuta.clients import ScriptedClient
from batuta.core import Reply
from batuta.gateway.http.body import Fields
from batuta.gateway.serving.parsed_call import request_labels
from batuta.store.rows import NO_LABELS
from gateway.keyed_server import KeyedServer
from gateway.live_server import HI, Serving, scripted_state, stored

pytestmark = pytest.mark.anyio


async def test_every_dialect_keeps_user_and_metadata_and_runs_are_found_by_them(store):
    bodies = (
        ("/v1/chat/completions", {"messages": HI, "user": "alice", "metadata": {"app": "web"}}),
        ("/v1/responses", {"input": "hi", "safety_identifier": "alice", "metadata": {"app": "web"}}),
        ("/v1/messages", {"messages": HI, "max_tokens": 9, "metadata": {"user_id": "alice"}}),
    )  # fmt: skip
    async with Serving(scripted_state({"ada": ScriptedClient(lambda _: Reply(text="Hello."))}, store=store)) as server:  # fmt: skip
        for path, body in bodies:
            status, _, _ = await server.post(path, json={"model": "worker/ada", **body})
            assert status == 200
        await stored(store, 3)
        _, found = await server.get("/v1/runs?user=alice&sort=seconds&order=asc&since=1h")
        assert len(found["data"]) == 3 and found["searched_to"] is None
        times = [run["seconds"] for run in found["data"]]
        assert times == sorted(times)
        _, tagged = await server.get("/v1/runs", params={"tag": "app=web", "worker": "ada"})
        assert [(run["user"], run["tags"], run["workers"]) for run in tagged["data"]] == [
            ("alice", ["app=web"], ["ada"])
        ] * 2
        status, totals = await server.get("/v1/runs/totals?user=alice")
        assert (status, totals["runs"], totals["unanswered"]) == (200, 3, 0)
        assert totals["seconds_p50"] <= totals["seconds_p95"]
        _, none = await server.get("/v1/runs/totals?error=timed_out")
        assert (none["runs"], none["cost_usd"], none["seconds_p50"]) == (0, "0", None)


async def test_a_tenant_finds_its_own_runs_and_may_not_name_another(store):
    async with KeyedServer(store) as server:
        keys = {name: await server.key(tenant=name) for name in ("acme", "zeta")}
        for key in keys.values():
            body = {"model": "worker/ada", "messages": HI, "user": "alice"}
            headers = {"authorization": f"Bearer {key}"}
            await server.serving.post(json=body, headers=headers)
        await stored(store, 2)
        for query in ("user=alice", "worker=ada&sort=cost", "q=hi", ""):
            _, _, found = await server.ask(keys["acme"], f"/v1/runs?{query}", "GET")
            assert len(found["data"]) == 1
            _, _, totals = await server.ask(keys["acme"], f"/v1/runs/totals?{query}", "GET")
            assert totals["runs"] == 1
        status, _, error = await server.ask(keys["acme"], "/v1/runs?tenant=zeta", "GET")
        assert (status, error["error"]["param"]) == (400, "tenant")


@pytest.mark.parametrize(
    ("body", "user", "tags"),
    [
        ({}, "", ()),
        ({"user": "alice", "metadata": {"app": "web", "n": 1}}, "alice", ("app=web",)),
        ({"metadata": {"user_id": "user_1_account__session_2"}}, "user_1_account_", ()),
        ({"metadata": {"user_id": '{"account_uuid": "u1", "session_id": "s"}'}}, "u1", ()),
        ({"metadata": {"user_id": '{"broken'}}, '{"broken', ()),
        ({"metadata": [1], "user": 7}, "", ()),
        ({"user": "x" * 5000}, "", ()),
        ({"metadata": {f"k{n}": "v" for n in range(40)}}, "", tuple(f"k{n}=v" for n in range(16))),
    ],
)  # fmt: skip
def test_what_a_request_says_of_itself(body, user, tags):
    said = request_labels(Fields(body))
    assert (said.user, said.tags) == (user, tags)
    assert (said == NO_LABELS) == (not user and not tags)
