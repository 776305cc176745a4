"""A worker that leaves its interval: the models, the metrics and the page say so."""

from dataclasses import replace

import pytest

from batuta.clients import ScriptedClient
from batuta.core import Pool, Skill
from batuta.gateway import served_models
from batuta.gateway.serving import drift as serving_drift

from .live_server import HI, Serving, pool_of, server_state
from .test_watching import samples, value

pytestmark = pytest.mark.anyio


def app_state(store):
    (ada,) = pool_of("ada")
    pool = Pool((replace(ada, skills=(Skill(family="x", share=0.9, questions=200),)),))
    clients = {"ada": ScriptedClient(lambda _: "42")}
    return server_state(pool, clients, served_models(pool), store=store)


async def test_a_worker_below_its_card_is_told_everywhere(store):
    assert serving_drift.CACHE_SECONDS < 10
    async with Serving(app_state(store)) as server:
        status, models = await server.get("/v1/models/worker/ada")
        assert status == 200 and "drift" not in models
        for _ in range(25):
            _, headers, _ = await server.post(json={"model": "worker/ada", "messages": HI})
            status, _, _ = await server.post(
                f"/v1/runs/{headers['x-batuta-run-id']}/feedback", json={"score": 0}
            )
            assert status == 200
    async with Serving(app_state(store)) as server:  # another replica, whose first look it is
        _, model = await server.get("/v1/models/worker/ada")
        right = model["drift"]["right"]
        assert right["state"] == "below" and right["values"] == 25 and right["since"]
        assert right["recent"] == 0 and 0.8 < right["low"] < 0.9 < right["high"]
        assert model["drift"]["seconds"]["state"] == "learning"
        found = await samples(server)
        labels = {"worker": "ada", "kind": "right"}
        assert value(found, "worker_drift", **labels, side="below") == 1
        assert value(found, "worker_drift", **labels, side="above") == 0
        assert value(found, "worker_drift_values_total", **labels) == 25
        async with server.http.get("/ui/pool") as response:
            page = await response.text()
        assert "answers below its card" in page and "below its interval" in page


async def test_without_a_store_nothing_is_watched():
    async with Serving(app_state(None)) as server:
        await server.post(json={"model": "worker/ada", "messages": HI})
        _, listed = await server.get("/v1/models")
        assert all("drift" not in model for model in listed["data"])
        assert await samples(server)
