"""Connections that send nothing, too slowly, or too many: nobody else is shut out."""

import os
import resource
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import anyio
import pytest

from batuta.clients import ScriptedClient
from batuta.gateway import run_server
from batuta.gateway.http.connections import ConnectionTable
from batuta.gateway.http.server_limits import ConnectionLimits

from .live_server import HI, Halting, scripted_state

ASK = {"model": "worker/ada", "messages": HI}
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@asynccontextmanager
async def guarded(ada=None, **limits):
    """A server with those limits: its host and port, and its parts."""
    app_state = scripted_state({"ada": ada or ScriptedClient(lambda _: "Hello there, you.")})
    ready, at = anyio.Event(), []

    def told(url):
        at.append(int(url.rpartition(":")[2]))
        ready.set()

    async with anyio.create_task_group() as tasks:

        async def run():
            limited = ConnectionLimits(**limits)
            await run_server(app_state, port=0, on_ready=told, grace_seconds=0, connections=limited)

        tasks.start_soon(run)
        await ready.wait()
        yield at[0]
        tasks.cancel_scope.cancel()


async def answer(port, path="/healthz"):
    """The status that a fresh connection gets, or why it gets none."""
    try:
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"http://127.0.0.1:{port}{path}", timeout=aiohttp.ClientTimeout(5)) as got,
        ):
            return got.status
    except aiohttp.ClientError as error:
        return type(error).__name__


async def ends(stream, seconds):
    """What the server says on the connection until it closes it, within that time."""
    said = b""
    with anyio.fail_after(seconds):
        try:
            while True:
                said += await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return said


@pytest.mark.parametrize("start", [b"", b"G", b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n"])
async def test_headers_have_their_time(start):
    async with guarded(header_s=0.3) as port:
        stream = await anyio.connect_tcp("127.0.0.1", port)
        if start:
            await stream.send(start)
        assert await ends(stream, 3) == b""


async def test_a_head_that_comes_a_byte_at_a_time_has_no_more_time():
    async with guarded(header_s=0.5) as port:
        stream = await anyio.connect_tcp("127.0.0.1", port)
        began = anyio.current_time()
        with pytest.raises((anyio.BrokenResourceError, anyio.EndOfStream)):  # noqa: PT012
            for byte in GET + GET:
                await stream.send(bytes([byte]))
                await anyio.sleep(0.1)
        assert anyio.current_time() - began < 3


async def test_a_second_head_has_its_time_and_silence_before_it_has_more():
    async with guarded(header_s=0.3) as port:
        stream = await anyio.connect_tcp("127.0.0.1", port)
        await stream.send(GET)
        assert b"200 OK" in await stream.receive()
        await anyio.sleep(1.2)
        await stream.send(GET)
        assert b"200 OK" in await stream.receive(), (
            "an idle connection is kept for its next request"
        )
        await stream.send(GET[:-1])
        assert await ends(stream, 3) == b""


async def test_an_answer_that_takes_long_is_not_cut_by_the_time_for_headers():
    slow = ScriptedClient(lambda _: "At last.", latency=1.5)
    async with guarded(slow, header_s=0.2, body_s=0.2) as port, aiohttp.ClientSession() as http:
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        async with http.post(url, json=ASK) as got:
            assert (await got.json())["choices"][0]["message"]["content"] == "At last."


async def test_a_body_that_nobody_reads_has_its_time():
    async with guarded(body_s=0.3) as port:
        stream = await anyio.connect_tcp("127.0.0.1", port)
        await stream.send(
            b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{"
        )
        assert b"404" in await ends(stream, 3)


async def test_a_head_without_end_is_refused():
    async with guarded() as port:
        stream = await anyio.connect_tcp("127.0.0.1", port)
        await stream.send(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
        with anyio.fail_after(60):
            try:
                for _ in range(50):
                    await stream.send(b"x" * 4096)
                    await anyio.sleep(0.01)
            except anyio.BrokenResourceError:
                pass


async def test_the_idle_are_closed_first_and_answers_never():
    ada = Halting()
    async with guarded(ada, total=3, per_address=3) as port:
        async with anyio.create_task_group() as tasks:

            async def ask():
                async with (
                    aiohttp.ClientSession() as http,
                    http.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=ASK),
                ):
                    pass

            tasks.start_soon(ask)
            await ada.started.wait()
            first = await anyio.connect_tcp("127.0.0.1", port)
            await first.send(GET)
            assert b"200 OK" in await first.receive()
            second = await anyio.connect_tcp("127.0.0.1", port)
            await second.send(GET)
            assert b"200 OK" in await second.receive()
            assert await answer(port) == 200
            assert await ends(first, 1) == b"", "the one that was idle longest"
            await second.send(GET)
            assert b"200 OK" in await second.receive()
            assert not ada.cancelled.is_set()
            tasks.cancel_scope.cancel()


async def test_where_all_are_answered_the_next_one_is_refused():
    ada = Halting()
    async with guarded(ada, total=1, per_address=1) as port, anyio.create_task_group() as tasks:

        async def ask():
            async with (
                aiohttp.ClientSession() as http,
                http.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=ASK),
            ):
                pass

        tasks.start_soon(ask)
        await ada.started.wait()
        assert await answer(port) == 503
        assert not ada.cancelled.is_set()
        tasks.cancel_scope.cancel()


async def test_a_reader_that_does_not_read_is_closed():
    loud = ScriptedClient(lambda _: "x" * 30_000_000)
    async with guarded(loud, write_s=0.5) as port:
        sock = socket.create_connection(("127.0.0.1", port))
        body = b'{"model":"worker/ada","messages":[{"role":"user","content":"hi"}]}'
        head = (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        )
        sock.sendall(head % len(body) + body)
        await anyio.sleep(4)

        def drain():
            got = 0
            try:
                while part := sock.recv(1 << 20):
                    got += len(part)
            except ConnectionError:
                pass
            return got

        assert await anyio.to_thread.run_sync(drain) < 30_000_000
        assert await answer(port) == 200


class Named:
    """A connection of the table, without a socket."""

    def __init__(self, address):
        self.address = address
        self.is_drained = True
        self.aborted = False

    def abort(self):
        self.aborted = True


def test_one_address_has_its_share():
    table = ConnectionTable(ConnectionLimits(total=4, per_address=2))
    crowd = [Named("a"), Named("a")]
    assert all(table.add_connection(one) for one in crowd)  # pyright: ignore[reportArgumentType]
    assert table.add_connection(Named("b"))  # pyright: ignore[reportArgumentType]
    assert not table.add_connection(Named("a")), "its own are all answered"  # pyright: ignore[reportArgumentType]
    assert (len(table), table.refused) == (3, 1)


@pytest.mark.parametrize("limits", [{"total": 0}, {"per_address": 0}, {"header_s": 0}])
def test_limits_that_cannot_be(limits):
    with pytest.raises(ValueError, match=r"at least 1|must be positive"):
        ConnectionLimits(**limits)


SCRIPT = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
import anyio
from batuta.clients import ScriptedClient
from batuta.gateway import LOOP_OPTIONS, run_server
from gateway.live_server import scripted_state

async def main():
    ada = ScriptedClient(lambda _: "Served.")
    await run_server(scripted_state({"ada": ada}), port=0, on_ready=lambda url: print(url, flush=True))

anyio.run(main, backend_options=LOOP_OPTIONS)
"""


async def test_1100_connections_of_one_byte_shut_nobody_out():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4096), hard), hard))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    process = subprocess.Popen([sys.executable, "-c", SCRIPT], env=environment, stdout=-1)
    crowd = []
    try:
        port = int(process.stdout.readline().decode().rpartition(":")[2])

        def besiege():
            for _ in range(1100):
                one = socket.create_connection(("127.0.0.1", port), timeout=5)
                one.send(b"G")
                crowd.append(one)

        await anyio.to_thread.run_sync(besiege)
        for _ in range(5):
            began = anyio.current_time()
            async with (
                aiohttp.ClientSession() as http,
                http.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=ASK) as got,
            ):
                assert got.status == 200
            assert anyio.current_time() - began < 8
    finally:
        for one in crowd:
            one.close()
        process.kill()
        process.wait()
        process.stdout.close()


FEW_FILES = """
import resource
from batuta.gateway.http.server_limits import openable_connection_count
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
print(openable_connection_count(1), openable_connection_count(100))
"""


def test_a_low_limit_of_open_files_does_not_raise_the_number_of_connections():
    process = subprocess.run([sys.executable, "-c", FEW_FILES], capture_output=True, check=True)
    assert process.stdout.split() == [b"1", b"8"]
