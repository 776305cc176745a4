"""How long a provider may say nothing: models that reason do, and what they think is billed."""

import asyncio
import socket
import struct

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from batuta.clients import HttpTransport, RetryPolicy, WorkerSpec, open_client
from batuta.clients.http_target import HttpTarget
from batuta.config.load import load_config
from batuta.core import Request, Worker, WorkerId, user_message
from batuta.errors import ClientError, ProviderTimeoutError, ProviderUnreachableError
from fakes.openai import FakeOpenAI

pytestmark = pytest.mark.anyio
ASK = Request(messages=(user_message("Think about it."),))


@pytest.mark.parametrize("written", ["", "[resilience]\nstep_timeout_s = 0.1\n"])
async def test_a_call_is_given_up_after_a_silence(tmp_path, written):
    async with HttpTransport(idle=0.3) as http, thinking() as server:
        with pytest.raises(ProviderTimeoutError, match=r"sent nothing for 0\.3 seconds"):
            await ask(server, http, tmp_path, written)


async def test_a_step_that_may_take_longer_may_be_silent_for_as_long(tmp_path):
    async with HttpTransport(idle=0.3) as http, thinking() as server:
        reply = await ask(server, http, tmp_path, "[resilience]\nstep_timeout_s = 60\n")
        assert reply.text == "42"


@pytest.mark.parametrize(("limit", "calls"), [(10.0, 3), (0.1, 1)])
async def test_a_call_that_was_silent_for_long_is_not_made_again(limit, calls):
    async with HttpTransport(idle=0.3) as http, thinking() as server:
        client = ada(server.url, http, limit)
        with pytest.raises(ProviderTimeoutError):
            await client.complete(ASK)
        assert len(server.requests) == calls


@pytest.mark.parametrize("status", [408, 504, 524])
@pytest.mark.parametrize(("limit", "calls"), [(10.0, 3), (0.1, 1)])
async def test_neither_is_one_that_a_proxy_gave_up(status, limit, calls):
    asked = []

    async def gateway(request):
        asked.append(request.path)
        await asyncio.sleep(0.2)
        return web.Response(status=status, text="<html>no answer in time</html>")

    app = web.Application()
    app.router.add_post("/v1/chat/completions", gateway)
    async with HttpTransport() as http, TestServer(app) as server:
        client = ada(str(server.make_url("/v1")), http, limit)
        with pytest.raises(ClientError):
            await client.complete(ASK)
    assert len(asked) == calls


def ada(url, http, limit):
    policy = RetryPolicy(base=0.0, max_silence=limit)
    spec = WorkerSpec(worker=Worker(id=WorkerId("ada"), model="m"), base_url=url)
    return open_client(spec, http, policy=policy)


def thinking():
    return FakeOpenAI("42", latency=0.8, check=False)


async def ask(server, http, folder, written):
    path = folder / "batuta.toml"
    worker = f'[[workers]]\nid = "ada"\nmodel = "m"\nbase_url = "{server.url}"\n'
    path.write_text(f"{worker}{written}")
    config = await load_config(http, pool=str(path), environ={})
    return await config.clients[WorkerId("ada")].complete(ASK)


async def test_a_connection_that_breaks_before_the_answer_is_not_called_unmade():
    async def reset(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        linger = struct.pack("ii", 1, 0)  # closing sends a reset
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    server = await asyncio.start_server(reset, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, HttpTransport() as http:
        with pytest.raises(ProviderUnreachableError, match="broke before it answered"):
            await http.get(HttpTarget(url=f"http://127.0.0.1:{port}/models"))
