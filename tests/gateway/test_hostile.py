"""A small request costs the server little: whatever its schema is, others are served meanwhile."""

from __future__ import annotations

import json
import time
from decimal import Decimal

import anyio
import pytest

from batuta.clients import Scripted
from gateway.house import HI, Serving
from gateway.town import Town
from schemas.hostile import branching, nested, towers

pytestmark = pytest.mark.anyio

LATE = 1.0
"""Seconds of the loop's own processor time; a held loop takes many."""


def chat(schema):
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    return "/v1/chat/completions", {"model": "worker/ada", "messages": HI, "response_format": wanted}


def response(schema, **more):
    wanted = {"format": {"type": "json_schema", "name": "n", "schema": schema}}
    return "/v1/responses", {"model": "worker/ada", "input": "hi", "text": wanted, **more}


def message(schema):
    wanted = {"format": {"type": "json_schema", "schema": schema}}
    body = {"model": "worker/ada", "messages": HI, "max_tokens": 99, "output_config": wanted}
    return "/v1/messages", body


DIALECTS = [chat, response, message]
TOO_LARGE = {
    "nested": nested(7),
    "deeper": nested(9, keyword="anyOf"),
    "wide": {"properties": {f"p{at}": {} for at in range(10_000)}},
    "pattern": {"pattern": "(" * 600 + ")*" * 600},
}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", TOO_LARGE)
async def test_a_schema_that_is_too_large_is_refused_before_anything_is_done(dialect, name):
    path, body = dialect(TOO_LARGE[name])
    async with Serving(ada=Scripted(lambda _: '"x"')) as server:
        began = time.thread_time()
        status, _, said = await server.post(path, json=body)
        assert time.thread_time() - began < LATE
    assert status == 400 and "schema has more than" in json.dumps(said), said


async def test_a_check_without_end_is_a_400_and_others_are_served_meanwhile():
    path, body = chat(branching(7))
    async with Serving(ada=Scripted(lambda _: towers())) as server:
        slowest = 0.0

        async def others():
            nonlocal slowest
            while True:
                began = time.perf_counter()
                assert (await server.get("/healthz"))[0] == 200
                slowest = max(slowest, time.perf_counter() - began)
                await anyio.sleep(0.02)

        began = time.thread_time()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(others)
            status, _, said = await server.post(path, json=body)
            tasks.cancel_scope.cancel()
        assert time.thread_time() - began < LATE
    assert status == 400 and "too long to check" in json.dumps(said), said
    assert slowest < LATE


async def test_a_schema_is_looked_at_after_the_key_its_rates_and_its_money(store):
    path, body = chat({"type": "no such type"})
    async with Town(store) as town:
        assert (await town.ask(None, path, json=body))[0] == 401
        narrow = await town.key(models=("worker/bob",))
        assert (await town.ask(narrow, path, json=body))[2]["error"]["code"] == "model_not_allowed"
        slow = await town.key(rpm=1)
        assert (await town.ask(slow, path, json=body))[2]["error"]["code"] == "invalid_value"
        assert (await town.ask(slow, path, json=body))[0] == 429
        poor = await town.key(per_day=Decimal("0.000001"))
        assert (await town.ask(poor, path, json=body))[2]["error"]["code"] == "budget_exceeded"


async def test_a_refused_schema_gives_back_what_was_set_apart(store):
    path, body = chat({"type": "no such type"})
    async with Town(store) as town:
        key = await town.key(concurrency=1, per_day=Decimal("0.1"))
        for _ in range(5):
            assert (await town.ask(key, path, json=body))[0] == 400
        assert (await town.chat(key, max_tokens=500))[0] == 200


@pytest.mark.parametrize("levels", [65, 240, 500, 900])
async def test_deep_tool_schemas_are_refused_or_passed_on(levels):
    deep = '{"items":' * levels + "{}" + "}" * levels
    tool = '{"type":"function","function":{"name":"f","parameters":%s}}' % deep
    body = f'{{"model":"worker/ada","messages":{json.dumps(HI)},"tools":[{tool}]}}'
    async with Serving() as server:
        status, _, said = await server.post(body=body)
    assert status == 400 and "levels" in said["error"]["message"]


async def test_a_poisoned_background_response_fails_alone_and_for_good(store):
    path, body = response(branching(6), background=True)
    async with Town(store, ada=Scripted(lambda _: towers()), bob=Scripted(lambda _: "b")) as town:
        key = await town.key()
        status, _, made = await town.ask(key, path, json=body)
        assert (status, made["status"]) == (200, "queued"), made
        place = f"{path}/{made['id']}"
        with anyio.fail_after(30):
            while (said := (await town.ask(key, place, "GET"))[2])["status"] not in {"failed"}:
                other = await town.ask(key, json={"model": "worker/bob", "messages": HI})
                assert other[0] == 200
                await anyio.sleep(0.05)
    assert said["error"]["code"] and "too long" in said["error"]["message"], said
