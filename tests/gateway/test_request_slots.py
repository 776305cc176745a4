"""More requests than one server takes on, and a server that stops while some are served."""

import os
import signal
import sys
from pathlib import Path

import aiohttp
import anyio
import pytest
from anyio.streams.text import TextReceiveStream

from batuta.gateway.errors import APIError
from batuta.gateway.http.body import read_body
from batuta.gateway.http.request_slots import ConcurrencyLimiter
from batuta.gateway.http.server_limits import ConcurrencyLimits

from .house import HI, Halting, Serving, orchestra

ASK = {"model": "worker/ada", "messages": HI}


async def test_a_full_server_queues_and_then_turns_away():
    ada = Halting()
    house = orchestra(
        {"ada": ada},
        limiter=ConcurrencyLimiter(
            ConcurrencyLimits(max_running=1, max_waiting=1, queue_timeout=30)
        ),
    )
    async with Serving(house) as server, anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: server.post(json=ASK))
        with anyio.fail_after(30):
            await ada.started.wait()
            tasks.start_soon(lambda: server.post(json=ASK))
            while not house.limiter.waiting:
                await anyio.sleep(0.01)
            status, headers, body = await server.post(json=ASK)
            assert (status, body["error"]["code"], headers["retry-after"]) == (
                503,
                "overloaded",
                "2",
            )
            assert (await server.get("/v1/models"))[0] == 200, "what is quick is let in"
        assert (house.limiter.running, house.limiter.waiting, house.limiter.rejected) == (1, 1, 1)
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
    with anyio.fail_after(30):
        await limiter.wait_until_empty()


def test_traffic_that_cannot_be():
    with pytest.raises(ValueError, match="at least one"):
        ConcurrencyLimits(max_running=0)


async def test_a_body_that_comes_too_slowly_is_refused():
    async def receive():
        await anyio.sleep_forever()

    with pytest.raises(APIError, match=r"within 0\.01 seconds") as told:
        await read_body(receive, 0.01)  # pyright: ignore[reportArgumentType]
    assert told.value.status == 408


SCRIPT = """
import sys
import anyio
from batuta.clients import ScriptedClient
from batuta.gateway import LOOP_OPTIONS, run_server
from gateway.house import orchestra

async def main():
    ada = ScriptedClient(lambda _: "Served to the end.", latency=1.5)
    await run_server(orchestra({"ada": ada}), port=0, on_ready=lambda url: print(url, flush=True), grace_seconds=20)

anyio.run(main, backend_options=LOOP_OPTIONS)
print("closed")
"""


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
            with anyio.fail_after(20):
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
        with anyio.fail_after(10):
            assert "".join([text async for text in lines]).strip() == "closed"
            assert await process.wait() == 0
    assert answers == [(200, "Served to the end.")]
