"""Everything but the answers: models, runs, health, the guard at the door, the server itself."""

import os
import signal
import sqlite3
import sys
from io import BytesIO
from pathlib import Path

import aiohttp
import anyio
import openai
import pytest
from anyio.streams.text import TextReceiveStream

from batuta.clients import ScriptedClient
from batuta.core import Outcome
from batuta.errors import ConfigError
from batuta.gateway import Catalogue, run_server, served_models
from batuta.gateway.http.request_slots import MAX_BODY
from batuta.store import Store
from gateway.keyed_server import ADMIN, KeyedServer
from gateway.live_server import HI, PRICE, Halting, Serving, pool_of, scripted_state, stored

pytestmark = pytest.mark.anyio

ASK = {"model": "batuta-mini", "messages": HI}


async def test_models():
    async with Serving(ada=ScriptedClient([]), bob=ScriptedClient([])) as server:
        names = [model.id async for model in server.openai.models.list()]
        assert names == ["batuta-mini", "batuta-ultra", "worker/ada", "worker/bob"]
        one = await server.openai.models.retrieve("worker/ada")
        assert (one.id, one.object, one.owned_by) == ("worker/ada", "model", "batuta")
        with pytest.raises(openai.NotFoundError) as caught:
            await server.openai.models.retrieve("worker/eve")
    assert caught.value.code == "model_not_found"


async def test_runs_are_listed_read_and_judged(store):
    app_state = scripted_state({"ada": ScriptedClient(lambda _: "Yes.", price=PRICE)}, store=store)
    async with Serving(app_state) as server:
        ids = []
        for _ in range(3):
            _, headers, _ = await server.post(json=ASK)
            ids.append(headers["x-batuta-run-id"])
        status, page = await server.get("/v1/runs?limit=2")
        assert status == 200
        assert [run["id"] for run in page["data"]] == [ids[2], ids[1]]
        assert page["has_more"] is True
        _, rest = await server.get("/v1/runs", params={"after": page["next_cursor"]})
        assert [run["id"] for run in rest["data"]] == [ids[0]]
        assert (rest["has_more"], rest["next_cursor"]) == (False, None)
        status, run = await server.get(f"/v1/runs/{ids[0]}")
        assert (status, run["outcome"], run["model"]) == (200, "answered", "batuta-mini")
        assert run["trace"]["answer"] == "Yes."
        assert float(run["cost_usd"]) > 0
        path = f"/v1/runs/{ids[0]}/feedback"
        status, _, got = await server.post(path, json={"score": 0.5, "comment": "fine"})
        assert (status, got["score"]) == (200, 0.5)
        _, run = await server.get(f"/v1/runs/{ids[0]}")
        assert (run["score"], run["comment"]) == (0.5, "fine")
        status, _, _ = await server.post(path, json={"score": None})
        assert status == 200
        _, page = await server.get("/v1/runs?model=batuta-ultra")
        assert page["data"] == []


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("/v1/runs?limit=0", "limit"),
        ("/v1/runs?limit=x", "limit"),
        ("/v1/runs?limit=1000000000000", "limit"),
        ("/v1/runs?after=x", "after"),
        ("/v1/runs?after=nan_", "after"),
        ("/v1/runs?outcome=x", "outcome"),
        ("/v1/runs?since=gestern", "since"),
        ("/v1/runs?until=2026-13-01", "until"),
        ("/v1/runs?since=24h&since=7d", "since"),
        ("/v1/runs?limit=2&sort=price", "sort"),
        ("/v1/runs?sort=cost&after=1795800948.6_run_1", "after"),
        ("/v1/runs?sort=cost&order=up", "order"),
        ("/v1/runs?min_cost=much", "min_cost"),
        ("/v1/runs?max_seconds=nan", "max_seconds"),
        ("/v1/runs?judged=maybe", "judged"),
        ("/v1/runs?worker=", "worker"),
        ("/v1/runs?price=1", "price"),
        ("/v1/runs/totals?limit=2", "limit"),
        ("/v1/runs/totals?outcome=answered,x", "outcome"),
        (f"/v1/runs?q={'x' * 501}", "q"),
        ("/v1/runs?" + "&".join(f"tag={n}" for n in range(9)), "tag"),
        ("/v1/runs/run_x?trace=1", "trace"),
    ],
)
async def test_bad_questions_about_runs(store, path, param):
    async with Serving(scripted_state({"ada": ScriptedClient([])}, store=store)) as server:
        status, body = await server.get(path)
    assert (status, body["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("body", "status"),
    [({}, 400), ({"score": 2}, 400), ({"score": "1"}, 400), ({"score": 1, "comment": 1}, 400)],
)
async def test_bad_feedback(store, body, status):
    async with Serving(scripted_state({"ada": ScriptedClient([])}, store=store)) as server:
        got, _, _ = await server.post("/v1/runs/run_1/feedback", json=body)
        assert got == status
        got, _, error = await server.post("/v1/runs/run_1/feedback", json={"score": 1})
    assert (got, error["error"]["code"]) == (404, "not_found")


async def test_without_a_store_there_are_no_runs():
    async with Serving() as server:
        assert (await server.get("/v1/runs"))[0] == 404
        assert (await server.get("/readyz"))[0] == 200


async def test_health(store):
    async with Serving(scripted_state({"ada": ScriptedClient([])}, store=store)) as server:
        assert await server.get("/healthz") == (200, {"status": "ok"})
        assert await server.get("/readyz") == (200, {"status": "ok", "store": True})


async def test_a_store_that_others_have_locked_is_not_ready(store):
    async with Serving(scripted_state({"ada": ScriptedClient([])}, store=store)) as server:
        other = sqlite3.connect(store.url.database, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with anyio.fail_after(60):
            status, body = await server.get("/readyz")
            assert (status, body["status"], body["store"]) == (503, "unavailable", False)
            assert body["message"].startswith("The store cannot be read and written now")
            assert (await server.get("/healthz"))[0] == 200
            other.execute("ROLLBACK")
            while (await server.get("/readyz"))[0] != 200:
                await anyio.sleep(0.1)
        other.close()


async def test_a_store_whose_file_is_damaged_is_not_ready(store):
    async with Serving(scripted_state({"ada": ScriptedClient([])}, store=store)) as server:
        assert (await server.get("/readyz"))[0] == 200
        await store.database.checkpoint()
        file = Path(store.url.database)
        file.write_bytes(b"x" * file.stat().st_size)
        with anyio.fail_after(60):
            while (await server.get("/readyz"))[0] != 503:
                await anyio.sleep(0.1)


async def test_many_who_ask_whether_it_is_ready_ask_the_store_once(tmp_path):
    asked = []

    class Asked(Store):
        async def is_ready(self):
            asked.append(1)
            await anyio.sleep(0.2)
            return await super().is_ready()

    async with Asked(tmp_path / "runs.db") as store:
        async with Serving(scripted_state({"ada": ScriptedClient([])}, store=store)) as server:
            async with anyio.create_task_group() as tasks:
                for _ in range(50):
                    tasks.start_soon(server.get, "/readyz")
            assert await server.get("/readyz") == (200, {"status": "ok", "store": True})
    assert len(asked) == 1


async def test_a_store_that_is_closed_is_not_ready_and_loses_no_answer(tmp_path):
    app_state = scripted_state({"ada": ScriptedClient(["Yes."])}, store=Store(tmp_path / "runs.db"))
    async with Serving(app_state) as server:
        assert (await server.get("/readyz"))[0] == 503
        assert (await server.post(json=ASK))[0] == 200
        status, body = await server.get("/v1/runs")
    assert (status, body["error"]["code"]) == (503, "overloaded")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/v1/models/", 404, "model_not_found"),
        ("POST", "/v1/images", 404, "not_found"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/runs", 405, "method_not_allowed"),
        ("GET", "/v1/runs/run_unknown", 404, "not_found"),
    ],
)
async def test_what_is_not_there(store, method, path, status, code):
    async with Serving(scripted_state({"ada": ScriptedClient([])}, store=store)) as server:
        async with server.http.request(method, path) as response:
            body = await response.json()
    assert (response.status, body["error"]["code"]) == (status, code)
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/chat/completions", "POST"),
        ("/v1/runs/run_x", "DELETE, GET, HEAD"),
        ("/v1/admin/tenants/acme", "DELETE, PUT"),
        ("/v1/admin/keys/x", "GET, HEAD, PATCH"),
    ],
)
async def test_a_method_that_is_not_there_is_told_all_that_are(store, path, allowed):
    async with KeyedServer(store) as keyed:
        status, headers, body = await keyed.ask(ADMIN, path, "OPTIONS")
    assert (status, headers["allow"]) == (405, allowed)
    assert body["error"]["message"].endswith(f"must be {allowed}.")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/json; charset=utf-8"}, 400),
        ({"host": "evil.example"}, 403),
        ({"host": "[::1]:80"}, 400),
        ({"host": "localhost:1"}, 400),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"x-junk": "x" * 7000, "x-more": "y" * 7000}, 400),
        ({"authorization": "Bearer anything"}, 400),
    ],
)
async def test_the_guard_at_the_door(headers, status):
    async with Serving() as server:
        got, _, _ = await server.post(body=b"{}", headers=headers)
    assert got == status


async def test_headers_that_are_too_large():
    async with Serving() as server:
        headers = {f"x-{n}": "y" * 7000 for n in range(10)}
        got, _, body = await server.post(body=b"{}", headers=headers)
    assert (got, body["error"]["code"]) == (431, "headers_too_large")


async def test_bodies_that_are_too_large():
    async def pieces():
        for _ in range(MAX_BODY // 2**20 + 1):
            yield b" " * 2**20

    async with Serving() as server:
        for body in (BytesIO(b" " * (MAX_BODY + 1)), pieces()):
            got, _, answer = await server.post(body=body)
            assert (got, answer["error"]["code"]) == (413, "request_too_large")
        got, _, _ = await server.post(body=BytesIO(b" " * MAX_BODY))
        assert got == 400


async def test_a_request_id_of_the_caller_is_kept_if_it_is_sane():
    async with Serving() as server:
        _, headers, _ = await server.post(body=b"{}", headers={"x-request-id": "abc-1"})
        assert headers["x-request-id"] == "abc-1"
        _, headers, _ = await server.post(body=b"{}", headers={"x-request-id": "a b"})
        assert headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "example.org", "::"])
async def test_only_the_loopback_is_served(host):
    app_state = scripted_state({"ada": ScriptedClient([])})
    with pytest.raises(ConfigError, match="not a loopback address"):
        await run_server(app_state, host, 0)


async def test_a_port_in_use_is_one_sentence():
    async with Serving() as server:
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(
            ConfigError, match=f"^port {port} on 127.0.0.1 .* another port with --port$"
        ):
            await run_server(server.app_state, port=port)


async def test_the_end_of_the_server_cancels_and_stores(store):
    ada = Halting()
    app_state = scripted_state({"ada": ada}, store=store)
    answers = []
    async with Serving(app_state) as server:

        async def ask():
            answers.append(await server.post(json=ASK))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await ada.started.wait()
            app_state.request_scopes.close()
    (row,) = await stored(store)
    assert row.outcome is Outcome.CANCELLED
    assert answers[0][0] == 503
    assert answers[0][2]["error"]["code"] == "overloaded"


SCRIPT = """
import sys, anyio
from batuta.gateway import LOOP_OPTIONS, run_server
from batuta.store import Store
from gateway.live_server import Halting, scripted_state

async def main():
    ada = Halting()

    async def tell():
        await ada.started.wait()
        print("started", flush=True)

    async with Store(sys.argv[1]) as store, anyio.create_task_group() as tasks:
        tasks.start_soon(tell)
        app_state = scripted_state({"ada": ada}, store=store)
        await run_server(app_state, port=0, on_ready=lambda url: print(url, flush=True), grace_seconds=0.1)

anyio.run(main, backend_options=LOOP_OPTIONS)
print("closed")
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_process_and_loses_no_run(tmp_path, number):
    path = tmp_path / "runs.db"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    command = [sys.executable, "-c", SCRIPT, str(path)]
    async with await anyio.open_process(command, env=environment, stderr=None) as process:
        lines = TextReceiveStream(process.stdout)  # pyright: ignore[reportArgumentType]
        url = (await lines.receive()).strip()
        said = []

        async def ask():
            async with aiohttp.ClientSession() as http:
                async with http.post(f"{url}/v1/chat/completions", json=ASK) as response:
                    assert response.status == 503

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            while "started" not in "".join(said):
                said.append(await lines.receive())
            process.send_signal(number)
            said += [text async for text in lines]
        assert "".join(said).split() == ["started", "closed"]
        assert await process.wait() == 0
    async with Store(path) as store:
        (row,) = await store.list()
    assert row.outcome is Outcome.CANCELLED


def test_a_configuration_that_cannot_run_is_refused():
    pool = pool_of("ada")
    with pytest.raises(ConfigError, match="no client"):
        Catalogue(pool=pool, clients={}, models=served_models(pool))
    with pytest.raises(ConfigError, match="at least one"):
        Catalogue(pool=pool, clients={"ada": ScriptedClient([])}, models=())  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="same name"):
        Catalogue(pool=pool, clients={"ada": ScriptedClient([])}, models=served_models(pool) * 2)  # pyright: ignore[reportArgumentType]
