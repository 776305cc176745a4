"""What is deleted is nowhere any more: not in a table, not in a file's free pages, not later."""

from contextlib import asynccontextmanager

import anyio
import pytest

from batuta.clients import ScriptedClient
from batuta.core import Reply, Role, ToolCall
from batuta.gateway.access.caller import Authenticator
from batuta.jobs import open_jobs
from batuta.store import Store
from batuta.store.key_hasher import KeyHasher
from gateway.keyed_server import ADMIN
from gateway.live_server import HI, PRICE, Halting, Serving, scripted_state

pytestmark = pytest.mark.anyio
CANARY = "kanarienvogel"
SAYS = f"The {CANARY} sang."
ASK = {"messages": [{"role": "user", "content": f"Where is the {CANARY}?"}]}


@asynccontextmanager
async def app_state(folder, ada=None, *, authenticator=None):
    """A server whose runs and jobs are in files of that folder."""
    async with Store(folder / "runs.db") as store:
        async with anyio.create_task_group() as tasks:
            async with open_jobs(folder / "jobs.db") as jobs:
                built = scripted_state(
                    {"ada": ada or ScriptedClient(lambda _: SAYS, price=PRICE)},
                    store=store,
                    jobs=jobs,
                    authenticator=authenticator(store) if authenticator else None,
                )
                async with Serving(built) as server:
                    yield server, store
            tasks.cancel_scope.cancel()


def seen(folder):
    """The files of the folder in which the canary can be read."""
    return {path.name for path in folder.iterdir() if CANARY.encode() in path.read_bytes()}


async def ended(server, name):
    with anyio.fail_after(60):
        while True:
            _, body = await server.get(f"/v1/responses/{name}")
            if body["status"] not in {"queued", "in_progress"}:
                return body
            await anyio.sleep(0.05)


async def delete(server, path, **options):
    async with server.http.delete(path, **options) as response:
        return response.status, await response.json()


async def test_a_run_is_forgotten_with_what_was_kept_to_repeat_it(tmp_path):
    async with app_state(tmp_path) as (server, store):
        asked = {"json": {"model": "batuta-ultra", **ASK}, "headers": {"idempotency-key": "k"}}
        _, headers, _ = await server.post(**asked)
        run = headers["x-batuta-run-id"]
        await server.post(f"/v1/runs/{run}/feedback", json={"score": 1, "comment": CANARY})
        await store.flush()
        assert seen(tmp_path)
        assert (await delete(server, f"/v1/runs/{run}"))[1] == {"id": run, "object": "run", "deleted": True, "runs": [run]}  # fmt: skip
        assert seen(tmp_path) == set()
        assert (await server.get(f"/v1/runs/{run}"))[0] == 404
        assert (await delete(server, f"/v1/runs/{run}"))[0] == 404
        _, headers, _ = await server.post(**asked)
        assert headers["x-batuta-run-id"] != run, "it is run anew, not repeated"
        rows = await store.database.run_read(lambda c: c.exec_driver_sql("select usd from ledger where run_id = ?", (run,)).all())  # fmt: skip
        assert rows, "the ledger of money stays"
    assert seen(tmp_path), "the second one is another run"


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_is_forgotten_with_its_run_and_its_job(tmp_path, background, stream):
    async with app_state(tmp_path) as (server, store):
        body = {
            "model": "batuta-ultra",
            "input": CANARY,
            "background": background,
            "stream": stream,
        }
        async with server.http.post("/v1/responses", json=body) as got:
            text = await got.text()
        name = text.partition('"id":"')[2].partition('"')[0]
        await ended(server, name)
        await store.flush()
        assert "runs.db-wal" in seen(tmp_path) or "runs.db" in seen(tmp_path)
        if background:
            assert seen(tmp_path) & {"jobs.db", "jobs.db-wal"}
        assert (await delete(server, f"/v1/responses/{name}"))[0] == 200
        assert seen(tmp_path) == set()
        assert (await server.get(f"/v1/responses/{name}"))[0] == 404
        assert (await server.get("/v1/runs"))[1]["data"] == []
    assert seen(tmp_path) == set()


async def test_what_repeats_a_response_is_forgotten_too(tmp_path):
    async with app_state(tmp_path, ScriptedClient(lambda _: "Fine.")) as (server, store):
        ids = []
        for said in (CANARY, "And then?", "And then?"):
            previous = {"previous_response_id": ids[-1]} if ids else {}
            body = {"model": "batuta-mini", "input": said, "background": len(ids) == 1, **previous}
            _, _, made = await server.post("/v1/responses", json=body)
            ids.append((await ended(server, made["id"]))["id"])
        await store.flush()
        assert (await delete(server, f"/v1/responses/{ids[0]}"))[0] == 200
        assert seen(tmp_path) == set()
        assert (await server.get(f"/v1/responses/{ids[1]}"))[0] == 200


async def test_a_conversation_is_forgotten_whichever_response_is_named(tmp_path):
    async with app_state(tmp_path) as (server, _store):
        ids = []
        for _ in range(4):
            previous = {"previous_response_id": ids[min(len(ids), 2) - 1]} if ids else {}
            body = {"model": "batuta-mini", "input": CANARY, **previous}
            ids.append((await server.post("/v1/responses", json=body))[2]["id"])
        _, _, other = await server.post("/v1/responses", json={"model": "batuta-mini", "input": "hi"})  # fmt: skip
        _, said = await delete(server, f"/v1/responses/{ids[3]}?conversation=true")
        assert sorted(said["responses"]) == sorted(ids)
        for name in ids:
            assert (await server.get(f"/v1/responses/{name}"))[0] == 404
        assert (await server.get(f"/v1/responses/{other['id']}"))[0] == 200


async def test_what_is_deleted_while_it_is_run_is_not_written_later(tmp_path):
    ada = Halting()
    async with app_state(tmp_path, ada) as (server, store):
        body = {"model": "batuta-mini", "input": CANARY, "background": True}
        _, _, made = await server.post("/v1/responses", json=body)
        with anyio.fail_after(60):
            await ada.started.wait()
        assert (await delete(server, f"/v1/responses/{made['id']}"))[0] == 200
        with anyio.fail_after(60):
            await ada.cancelled.wait()
        await anyio.sleep(0.5)
        await store.flush()
        assert seen(tmp_path) == set()
        assert (await server.get("/v1/runs"))[1]["data"] == []
    assert seen(tmp_path) == set()


async def test_runs_that_went_on_from_a_run_are_forgotten_with_it(tmp_path):
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]

    thoughts_sent = []

    def answer(request):
        if any(message.role is Role.TOOL for message in request.messages):
            thoughts_sent.append([thought.text for m in request.messages for thought in m.thoughts])
            return SAYS
        call = ToolCall(id="c1", name="look", arguments="{}")
        return Reply(text="", tool_calls=(call,), reasoning=CANARY)

    async with app_state(tmp_path, ScriptedClient(answer)) as (server, _store):
        first = {"model": "batuta-ultra", **ASK, "tools": tools}
        _, headers, body = await server.post(json=first)
        run, message = headers["x-batuta-run-id"], body["choices"][0]["message"]
        assert message["tool_calls"]
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": "seen"}
            for call in message["tool_calls"]
        ]
        message.pop("reasoning_content", None)
        again = {**first, "messages": [*ASK["messages"], message, *results]}
        _, headers, _ = await server.post(json=again)
        second = headers["x-batuta-run-id"]
        assert thoughts_sent == [[CANARY]]
        _, said = await delete(server, f"/v1/runs/{run}")
        assert sorted(said["runs"]) == sorted([run, second])
        _, headers, _ = await server.post(json=again)
        assert thoughts_sent[1:] == [[]]
        await delete(server, f"/v1/runs/{headers['x-batuta-run-id']}")
    assert seen(tmp_path) == set()


async def test_a_tenant_is_forgotten_and_nobody_else(tmp_path):
    mint = KeyHasher(b"x" * 32)
    async with app_state(
        tmp_path,
        ScriptedClient(lambda _: "Fine."),
        authenticator=lambda store: Authenticator(store, mint, ADMIN),
    ) as (server, store):
        keys = {}
        for tenant in ("acme", "other"):
            _, issued = await store.keys.create(mint, tenant, "a key")
            keys[tenant] = {"headers": {"authorization": f"Bearer {issued.text}"}}
        admin = {"headers": {"authorization": f"Bearer {ADMIN}"}}
        asked = {"model": "batuta-mini", "input": CANARY}
        await server.post("/v1/responses", json={**asked, "background": True}, **keys["acme"])
        await server.post(json={"model": "batuta-ultra", **ASK}, **keys["acme"])
        await server.post(json={"model": "batuta-ultra", "messages": HI}, **keys["other"])
        await anyio.sleep(1)
        await store.flush()
        assert seen(tmp_path)
        path = "/v1/admin/tenants/acme"
        assert (await delete(server, path, **keys["other"]))[0] == 403
        assert (await delete(server, path, **admin))[0] == 200
        assert seen(tmp_path) == set()
        assert await said_by(store) == {"other": 1}
        assert (await server.post(json={"model": "batuta-mini", **ASK}, **keys["acme"]))[0] == 401
        assert (await delete(server, path, **admin))[0] == 404
        _, issued = await store.keys.create(mint, "acme", "a new one")
        again = {"headers": {"authorization": f"Bearer {issued.text}"}}
        assert (await server.post(json={"model": "batuta-mini", "messages": HI}, **again))[0] == 200  # pyright: ignore[reportArgumentType]
        await store.flush()
        assert await said_by(store) == {"other": 1, "acme": 1}, "a new tenant of that name"


async def said_by(store):
    """How many runs of each tenant are kept."""
    rows = await store.database.run_read(
        lambda c: c.exec_driver_sql("select tenant, count(*) from runs group by tenant").all()
    )
    return {row[0]: row[1] for row in rows}
