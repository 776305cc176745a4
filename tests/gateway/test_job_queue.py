"""Background responses of a tenant that wait: so many as may, and no more."""

from dataclasses import replace

import anyio
import pytest

from batuta.jobs import open_jobs
from gateway.keyed_server import KeyedServer
from gateway.live_server import Halting

pytestmark = pytest.mark.anyio
ASK = {"model": "worker/ada", "input": "hi", "background": True}


@pytest.fixture
async def jobs(anyio_backend, tmp_path):
    """One job runs, and two of a tenant may wait."""
    async with open_jobs(tmp_path / "jobs.db", concurrency=1, most_waiting=2) as jobs:
        yield jobs


async def test_a_tenant_has_so_many_waiting_background_responses_as_may(store, jobs):
    ada, told = Halting(), []
    keyed = KeyedServer(store, ada=ada)
    keyed.serving.app_state = replace(keyed.serving.app_state, jobs=jobs)
    async with keyed:
        key, other, stranger = await keyed.key(rpm=20), await keyed.key(), await keyed.key("zeta")
        await keyed.ask(key, "/v1/responses", json=ASK)
        with anyio.fail_after(60):
            await ada.started.wait()

        async def ask(who):
            told.append(await keyed.ask(who, "/v1/responses", json=ASK))

        async with anyio.create_task_group() as tasks:
            for number in range(12):
                tasks.start_soon(ask, (key, other)[number % 2])
        taken = [body["id"] for status, _, body in told if status == 200]
        refused = [(headers, body) for status, headers, body in told if status == 429]
        # What is asked for at once may be refused though there would have been room.
        assert len(taken) <= 2
        assert len(taken) + len(refused) == 12
        while len(taken) < 2:
            taken.append((await keyed.ask(key, "/v1/responses", json=ASK))[2]["id"])
        status, headers, body = await keyed.ask(key, "/v1/responses", json=ASK)
        assert (status, body["error"]["code"]) == (429, "rate_limit_exceeded")
        assert "2 background responses in the queue" in body["error"]["message"]
        assert int(headers["retry-after"]) > 0
        assert (await keyed.ask(stranger, "/v1/responses", json=ASK))[0] == 200
        await keyed.ask(key, f"/v1/responses/{taken[0]}/cancel")
        assert (await keyed.ask(key, "/v1/responses", json=ASK))[0] == 200


async def test_who_is_refused_keeps_its_rate_and_leaves_no_response(store, jobs):
    ada = Halting()
    keyed = KeyedServer(store, ada=ada)
    keyed.serving.app_state = replace(keyed.serving.app_state, jobs=jobs)
    async with keyed:
        key = await keyed.key(rpm=4)
        await keyed.ask(key, "/v1/responses", json=ASK)
        with anyio.fail_after(60):
            await ada.started.wait()
        told = [await keyed.ask(key, "/v1/responses", json=ASK) for _ in range(8)]
        assert [status for status, _, _ in told] == [200] * 2 + [429] * 6
        assert all("in the queue" in body["error"]["message"] for _, _, body in told[2:])
        ids = [body["id"] for status, _, body in told if status == 200]
        await keyed.ask(key, f"/v1/responses/{ids[0]}/cancel")
        assert (await keyed.ask(key, "/v1/responses", json=ASK))[0] == 200
