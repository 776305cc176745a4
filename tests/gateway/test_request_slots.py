"""More requests than one server takes on, and a server that stops while some are served."""

import asyncio
import gc
import os
import signal
import sys
import weakref
from contextlib import suppress
from pathlib import Path

import aiohttp
import anyio
import pytest
from anyio.streams.text import TextReceiveStream
from hypothesis import given, settings
from hypothesis import strategies as st

from batuta.gateway.errors import APIError
from batuta.gateway.http.body import read_body
from batuta.gateway.http.request_slots import BodyMemory, ConcurrencyLimiter, HeldMemory
from batuta.gateway.http.server_limits import ConcurrencyLimits

from .live_server import HI, Halting, Serving, scripted_state

ASK = {"model": "worker/ada", "messages": HI}


async def test_a_full_server_queues_and_then_turns_away():
    ada = Halting()
    app_state = scripted_state(
        {"ada": ada},
        limiter=ConcurrencyLimiter(
            ConcurrencyLimits(max_running=1, max_waiting=1, queue_timeout=30)
        ),
    )
    async with Serving(app_state) as server, anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: server.post(json=ASK))
        with anyio.fail_after(60):
            await ada.started.wait()
            tasks.start_soon(lambda: server.post(json=ASK))
            while not app_state.limiter.waiting:
                await anyio.sleep(0.01)
            status, headers, body = await server.post(json=ASK)
            assert (status, body["error"]["code"], headers["retry-after"]) == (
                503,
                "overloaded",
                "2",
            )
            for path in ("/v1/embeddings", "/v1/moderations", "/v1/responses/compact"):
                assert (await server.post(path, json={}))[0] == 503, "they call models too"
            assert (await server.get("/v1/models"))[0] == 200, "what is quick is let in"
        assert (
            app_state.limiter.running,
            app_state.limiter.waiting,
            app_state.limiter.rejected,
        ) == (1, 1, 4)
        tasks.cancel_scope.cancel()


async def test_who_waits_is_served_when_a_place_comes_free():
    limiter, order = ConcurrencyLimiter(ConcurrencyLimits(max_running=1, max_waiting=2)), []

    async def visit(name):
        async with limiter.slot():
            order.append(name)
            await anyio.sleep(0)

    async with anyio.create_task_group() as tasks:
        for name in "abc":
            tasks.start_soon(visit, name)
    assert order == ["a", "b", "c"] and (limiter.running, limiter.waiting) == (0, 0)


async def test_tenants_are_let_in_by_turns_and_none_fills_the_queue():
    limits = ConcurrencyLimits(max_running=1, max_waiting=4)
    limiter, order, refused = ConcurrencyLimiter(limits), [], []

    async def visit(tenant):
        try:
            async with limiter.slot(tenant):
                order.append(tenant)
                await anyio.sleep(0)
        except APIError:
            refused.append(tenant)

    async with anyio.create_task_group() as tasks:
        for tenant in "aaaaaaa" + "bc" + "aa":
            tasks.start_soon(visit, tenant)
    assert order == ["a", "a", "b", "c", "a"]
    assert refused == ["a"] * 6 and (limiter.running, limiter.waiting) == (0, 0)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.booleans()), max_size=40))
@settings(max_examples=settings().max_examples * 40 // 100, deadline=None)
def test_places_and_turns_are_counted_whatever_happens(visits):
    """However visits come, end and are given up, no more run than may, and none is left over."""

    async def tried():
        limiter = ConcurrencyLimiter(ConcurrencyLimits(max_running=2, max_waiting=3))

        async def visit(tenant, ticks, gives_up):
            with anyio.CancelScope() as scope:
                if gives_up:
                    asyncio.get_running_loop().call_soon(scope.cancel)
                with suppress(APIError):
                    async with limiter.slot(tenant):
                        assert limiter.running <= 2 and limiter.waiting <= 3
                        for _ in range(ticks):
                            await anyio.sleep(0)

        async with anyio.create_task_group() as tasks:
            for each in visits:
                tasks.start_soon(visit, *each)
                await anyio.sleep(0)
        assert (limiter.running, limiter.waiting, limiter._queues) == (0, 0, {})

    anyio.run(tried)


async def test_nobody_waits_longer_than_is_allowed():
    limiter = ConcurrencyLimiter(
        ConcurrencyLimits(max_running=1, max_waiting=5, queue_timeout=0.01)
    )
    async with limiter.slot():
        with pytest.raises(APIError, match="busy"):
            async with limiter.slot():
                pass
    assert (limiter.running, limiter.waiting, limiter.rejected) == (0, 0, 1)


async def test_a_closed_limiter_empties_and_lets_nobody_in():
    limiter = ConcurrencyLimiter(ConcurrencyLimits(max_running=1))
    async with limiter.slot():
        limiter.close()
        with pytest.raises(APIError, match="shutting down"):
            async with limiter.slot():
                pass
        with anyio.move_on_after(0.01) as soon:
            await limiter.wait_until_empty()
        assert soon.cancelled_caught
    with anyio.fail_after(60):
        await limiter.wait_until_empty()


async def test_who_waits_is_refused_as_soon_as_the_limiter_closes():
    limiter, refused = ConcurrencyLimiter(ConcurrencyLimits(max_running=1)), []

    async def visit(tenant):
        try:
            async with limiter.slot(tenant):
                pass
        except APIError as error:
            refused.append((tenant, error.status, error.message.partition(";")[0]))

    async with limiter.slot():
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for tenant in "aab":
                    tasks.start_soon(visit, tenant)
                while limiter.waiting < 3:
                    await anyio.sleep(0)
                limiter.close()
        assert (limiter.running, limiter.waiting) == (1, 0)
    assert sorted(refused) == [(name, 503, "The server is shutting down") for name in "aab"]


def test_traffic_that_cannot_be():
    with pytest.raises(ValueError, match="at least 1"):
        ConcurrencyLimits(max_running=0)


async def test_a_body_that_comes_too_slowly_is_refused():
    async def receive():
        await anyio.sleep_forever()

    with pytest.raises(APIError, match=r"within 0\.01 seconds") as told:
        await read_body(receive, 0.01)  # pyright: ignore[reportArgumentType]
    assert told.value.status == 408


SCRIPT = """
import sys
import weakref
import anyio
from batuta.clients import ScriptedClient
from batuta.gateway import LOOP_OPTIONS, run_server
from gateway.live_server import scripted_state

async def main():
    ada = ScriptedClient(lambda _: "Served to the end.", latency=1.5)
    await run_server(scripted_state({"ada": ada}), port=0, on_ready=lambda url: print(url, flush=True), grace_seconds=20)

anyio.run(main, backend_options=LOOP_OPTIONS)
print("closed")
"""


@pytest.mark.slow
async def test_sigterm_serves_what_has_begun_and_tells_that_it_is_not_ready():
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    answers = []
    async with await anyio.open_process(
        [sys.executable, "-c", SCRIPT], env=environment, stderr=None
    ) as process:
        lines = TextReceiveStream(process.stdout)  # pyright: ignore[reportArgumentType]
        url = (await lines.receive()).strip()

        async def ask():
            async with (
                aiohttp.ClientSession() as http,
                http.post(f"{url}/v1/chat/completions", json=ASK) as got,
            ):
                answers.append((got.status, (await got.json())["choices"][0]["message"]["content"]))

        async with aiohttp.ClientSession(url) as http, anyio.create_task_group() as tasks:
            with anyio.fail_after(60):
                async with http.get("/readyz") as ready:
                    assert ready.status == 200
                tasks.start_soon(ask)
                await anyio.sleep(0.3)
                process.send_signal(signal.SIGTERM)
                status = 200
                while status == 200:
                    async with http.get("/readyz") as ready:
                        status, body = ready.status, await ready.json()
                assert (status, body["status"]) == (503, "closing")
                async with http.post("/v1/chat/completions", json=ASK) as got:
                    assert got.status == 503 and got.headers["retry-after"] == "1"
        with anyio.fail_after(60):
            assert "".join([text async for text in lines]).strip() == "closed"
            assert await process.wait() == 0
    assert answers == [(200, "Served to the end.")]


def test_a_request_that_has_ended_does_not_wait_for_the_garbage_collector():
    scope = {"type": "http", "headers": [(b"host", b"localhost")]}
    held = HeldMemory.of_request(scope, BodyMemory())
    ended = weakref.ref(held)
    gc.disable()
    try:
        held.release()
        del held, scope
        assert ended() is None, "its scope and what it holds know each other"
    finally:
        gc.enable()
