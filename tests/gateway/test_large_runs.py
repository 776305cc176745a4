"""A run of very many parts: whoever reads it holds nobody else up."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from batuta.clients import ScriptedClient
from batuta.core import Message, Question, Role, Text
from batuta.gateway.ui.playground import MOST_PARTS
from batuta.store import decode_run, encode_run
from gateway.keyed_server import KeyedServer
from gateway.live_server import Serving, scripted_state
from gateway.loop_steps import watched_steps
from store.strategies import make_run

pytestmark = pytest.mark.anyio


def run_of(parts):
    message = Message(role=Role.USER, parts=(Text("x"),) * parts)
    run = make_run(parts)
    return replace(run, header=replace(run.header, question=Question(messages=(message,))))


async def test_its_trace_is_given_as_it_is_stored(store):
    run = run_of(3)
    async with KeyedServer(store) as keyed:
        key = await keyed.key()
        await store.append(run, "acme")
        for _ in range(2):  # from the memory of what is being written, and from the database
            _, _, body = await keyed.ask(key, f"/v1/runs/{run.header.id}", "GET")
            assert body["trace"] == json.loads(encode_run(run))
            await store.flush()
        other = await keyed.key("other")
        assert (await keyed.ask(other, f"/v1/runs/{run.header.id}", "GET"))[0] == 404


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/v1/runs/{}", "/ui/runs/{}", "/ui/runs/{}/export.json", "/ui/?again={}", "/ui/compare?a={}"])  # fmt: skip
async def test_reading_it_does_not_hold_the_loop(store, path):
    run = run_of(40_000)
    await store.append(run, "local")
    await store.flush()
    encoded = encode_run(run)
    began = time.thread_time()
    decode_run(encoded)
    decoding = time.thread_time() - began
    app_state = scripted_state({"ada": ScriptedClient("x")}, store=store)
    async with Serving(app_state) as server:
        with watched_steps() as steps:
            async with server.http.get(path.format(run.header.id)) as answer:
                text = await answer.text()
        assert answer.status in {200, 400}
        assert steps.longest < decoding / 2, steps.where
        if path == "/ui/runs/{}":
            assert "Too many parts to be shown" in text and "export.json" in text


async def test_a_run_that_is_not_too_large_is_shown(store):
    run = run_of(MOST_PARTS // 2)
    await store.append(run, "local")
    async with Serving(scripted_state({"ada": ScriptedClient("x")}, store=store)) as server:
        async with server.http.get(f"/ui/runs/{run.header.id}") as answer:
            assert "Too many parts" not in await answer.text()
