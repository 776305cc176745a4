"""A small request costs the server little: whatever its schema is, others are served meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from decimal import Decimal
from io import BytesIO
from pathlib import Path

import aiohttp
import anyio
import pytest
from anyio.streams.text import TextReceiveStream
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batuta.clients import ScriptedClient
from batuta.core import Limits, Outcome, Question, RunFinished, RunHeader, RunId, user_message
from batuta.engine import Recorder
from batuta.gateway.errors import APIError
from batuta.gateway.http.body import MAX_VALUES, check_value_count
from batuta.gateway.serving.error_mapping import error_of_run
from gateway.keyed_server import KeyedServer
from gateway.live_server import HI, Serving, pool_of
from gateway.loop_steps import LoopbackApp, attacks, hold, watched_steps
from schemas.hostile import branching, nested, towers

pytestmark = pytest.mark.anyio

HOLDS = 0.25
"""Seconds that one step may take in a test, on machines of any speed; `bench/fuzz.py` has 0.05."""
LATE = 4.0
"""Seconds of the loop's own processor time; a held loop takes many. A processor that others use as well
needs two or three of its seconds for one."""


def chat(schema):
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    return "/v1/chat/completions", {
        "model": "worker/ada",
        "messages": HI,
        "response_format": wanted,
    }


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
    async with Serving(ada=ScriptedClient(lambda _: '"x"')) as server:
        began = time.thread_time()
        status, _, said = await server.post(path, json=body)
        assert time.thread_time() - began < LATE
    assert status == 400 and "schema has more than" in json.dumps(said), said


async def test_a_check_without_end_is_a_400_and_others_are_served_meanwhile():
    path, body = chat(branching(7))
    async with Serving(ada=ScriptedClient(lambda _: towers())) as server:
        served = 0

        async def others():
            nonlocal served
            while True:
                assert (await server.get("/healthz"))[0] == 200
                served += 1
                await anyio.sleep(0.02)

        began = time.thread_time()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(others)
            status, _, said = await server.post(path, json=body)
            tasks.cancel_scope.cancel()
        assert time.thread_time() - began < LATE
    assert status == 400, said  # "before": another test's check in this process took so long
    assert re.search("too long (to check|before)", said["error"]["message"]), said
    assert served >= 5


async def test_a_schema_is_looked_at_after_the_key_its_rates_and_its_money(store):
    path, body = chat({"type": "no such type"})
    async with KeyedServer(store) as keyed:
        assert (await keyed.ask(None, path, json=body))[0] == 401
        narrow = await keyed.key(models=("worker/bob",))
        assert (await keyed.ask(narrow, path, json=body))[2]["error"]["code"] == "model_not_allowed"
        slow = await keyed.key(rpm=1)
        assert (await keyed.ask(slow, path, json=body))[2]["error"]["code"] == "invalid_value"
        assert (await keyed.ask(slow, path, json=body))[0] == 429
        poor = await keyed.key(per_day=Decimal("0.000001"))
        assert (await keyed.ask(poor, path, json=body))[2]["error"]["code"] == "budget_exceeded"


async def test_a_refused_schema_gives_back_what_was_set_apart(store):
    path, body = chat({"type": "no such type"})
    async with KeyedServer(store) as keyed:
        key = await keyed.key(concurrency=1, per_day=Decimal("0.1"))
        for _ in range(5):
            assert (await keyed.ask(key, path, json=body))[0] == 400
        assert (await keyed.chat(key, max_tokens=500))[0] == 200


@pytest.mark.parametrize("levels", [65, 240, 500, 900])
async def test_deep_tool_schemas_are_refused_or_passed_on(levels):
    deep = '{"items":' * levels + "{}" + "}" * levels
    tool = f'{{"type":"function","function":{{"name":"f","parameters":{deep}}}}}'
    body = f'{{"model":"worker/ada","messages":{json.dumps(HI)},"tools":[{tool}]}}'
    async with Serving() as server:
        status, _, said = await server.post(body=body)
    assert status == 400 and "levels" in said["error"]["message"]


@pytest.mark.parametrize("kind", ["tool_use", "mcp_tool_use"])
@pytest.mark.parametrize("levels", [100, 300, 900, 960, 985, 2000])
async def test_deep_arguments_are_refused_or_passed_on(kind, levels):
    deep = f'{{"a":{"[" * levels}{"]" * levels}}}'
    call = f'{{"type":"{kind}","id":"c1","name":"f","server_name":"s","input":{deep}}}'
    turn = f'{{"role":"assistant","content":[{call}]}}'
    body = f'{{"model":"worker/ada","max_tokens":9,"messages":[{json.dumps(HI[0])},{turn}]}}'
    async with Serving() as server:
        status, _, said = await server.post("/v1/messages", body=body)
    assert status in ({200} if levels <= 900 else {200, 400}), said


async def test_a_poisoned_background_response_fails_alone_and_for_good(store):
    path, body = response(branching(6), background=True)
    async with KeyedServer(
        store,
        background=True,
        ada=ScriptedClient(lambda _: towers()),
        bob=ScriptedClient(lambda _: "b"),
    ) as keyed:
        key = await keyed.key()
        status, _, made = await keyed.ask(key, path, json=body)
        assert (status, made["status"]) == (200, "queued"), made
        place = f"{path}/{made['id']}"
        with anyio.fail_after(60):
            while (said := (await keyed.ask(key, place, "GET"))[2])["status"] != "failed":
                other = await keyed.ask(key, json={"model": "worker/bob", "messages": HI})
                assert other[0] == 200
                await anyio.sleep(0.05)
    assert said["error"]["code"] and "too long" in said["error"]["message"], said


@pytest.mark.parametrize("piece", ["[],", "1,", '{"a":1},'])
async def test_a_body_of_millions_of_values_is_refused_before_it_is_read(piece):
    body = '{"a":[' + piece * (2_000_000 // len(piece)) + "1]}"
    async with Serving() as server:
        began = time.thread_time()
        status, _, said = await server.post(body=BytesIO(body.encode()))
        assert time.thread_time() - began < LATE
    assert (status, said["error"]["code"]) == (413, "request_too_large")
    assert "values" in said["error"]["message"]


def test_signs_within_texts_are_no_values():
    check_value_count(json.dumps({"a": ',[{"\\' * 100_000}).encode())
    check_value_count(b'{"a":"' + b',\\"' * 100_000)
    with pytest.raises(APIError):
        check_value_count(json.dumps([",", 1] * 100_000).encode())


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(st.text(st.sampled_from('\\",[{}]:a\n é'), max_size=8), st.booleans())
def test_values_are_counted_whatever_texts_say(text, as_key):
    """To the last one: a list of so many, or an object of so many keys."""
    for count, is_refused in ((MAX_VALUES, False), (MAX_VALUES + 1, True)):
        many = {f"{text}{number}": text for number in range(count)} if as_key else [text] * count
        for ascii_only in (True, False):
            body = json.dumps(many, ensure_ascii=ascii_only).encode()
            with pytest.raises(APIError) if is_refused else nullcontext():
                check_value_count(body)


def test_an_error_of_64_kb_is_told_at_once():
    """On the version before: ten seconds."""
    for error in ("a." * 32_000, "http://" * 9_000, "sk-" * 20_000, "a" * 64_000, " " * 64_000):
        run = replace(_failed_run(), error=error)
        began = time.thread_time()
        refusal = error_of_run(run)
        assert refusal is not None and len(refusal.message) < 1_000
        assert time.thread_time() - began < LATE


def _failed_run():
    header = RunHeader(
        id=RunId("run_1"),
        question=Question(messages=(user_message("hi"),)),
        pool=pool_of("ada"),
        seed=None,
        limits=Limits(),
        conductor="c",
    )
    failure = RunFinished(
        outcome=Outcome.FAILED,
        answer=None,
        reply=None,
        error="x",
        error_code="wrong_form",
        limit=None,
        seconds=1.0,
    )
    recorder = Recorder()
    recorder.add(header)
    recorder.add(failure)
    return recorder.run()


HELD = """
import sys, time, anyio
from batuta.clients import ScriptedClient
from batuta.gateway import LOOP_OPTIONS, run_server
from gateway.live_server import scripted_state

def hold(_):
    print("held", flush=True)
    while True:
        pass

async def main():
    app_state = scripted_state({"ada": ScriptedClient(hold)})
    await run_server(app_state, port=0, on_ready=lambda url: print(url, flush=True), grace_seconds=0.1)

anyio.run(main, backend_options=LOOP_OPTIONS)
"""


@pytest.mark.slow
async def test_a_signal_is_obeyed_by_a_server_whose_loop_is_held():
    """On the version before: never."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    command = [sys.executable, "-c", HELD]
    async with await anyio.open_process(command, env=environment) as process:
        lines = TextReceiveStream(process.stdout)  # pyright: ignore[reportArgumentType]
        url = (await lines.receive()).strip()

        async def ask():
            async with aiohttp.ClientSession() as http:
                with pytest.raises(aiohttp.ClientError):
                    await http.post(
                        f"{url}/v1/chat/completions", json={"model": "worker/ada", "messages": HI}
                    )

        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                with anyio.fail_after(60):
                    said = ""
                    while "held" not in said:
                        said += await lines.receive()
                    process.terminate()
                    assert await process.wait() == 1
        finally:
            if process.returncode is None:
                process.kill()


@settings(
    max_examples=settings().max_examples * 40 // 100,
    deadline=None,
    suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType]
)
@given(st.lists(attacks(), min_size=3, max_size=3))
def test_requests_under_64_kb_do_not_hold_the_loop(found):
    """`python bench/fuzz.py 10` hunts for longer, and by a tighter measure."""

    async def hunt():
        loopback = LoopbackApp()
        with watched_steps() as steps:
            for path, body in found:
                held, status = await hold(loopback, steps, path, body)
                assert held < HOLDS and status != 500, (held, status, path, body[:300])

    asyncio.run(hunt())
