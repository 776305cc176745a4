"""`batuta mcp` as a host uses it: started as a process, asked by the client of the official package."""

import os
import re
import subprocess
import sys

import anyio
import pytest

pytest.importorskip("mcp", reason="needs the extra mcp")

import httpx2
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from batuta.cli.mcp_server import build_server
from batuta.clients import ScriptedClient
from batuta.core import Pool, Worker, WorkerId
from batuta.errors import RateLimitError
from batuta.session.session import Session

pytestmark = pytest.mark.anyio
A = WorkerId("a")


def said_by(result):
    return "".join(part.text for part in result.content)


async def test_a_host_starts_it_asks_plans_and_lists(tmp_path):
    command = ["-m", "batuta", "mcp", "--pool", "rehearsal"]
    host = StdioServerParameters(
        command=sys.executable, args=command, env={**os.environ, "BATUTA_HOME": str(tmp_path)}
    )
    question = "Compute the result: begin at 45; square it."
    async with Client(host) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"ask", "plan", "runs"}
        assert tools["plan"].annotations.read_only_hint and not tools["ask"].annotations
        assert said_by(await client.call_tool("runs", {})) == "There are no runs yet."
        planned = said_by(await client.call_tool("plan", {"question": question}))
        assert planned.startswith("1. ") and "Expected: " in planned
        answer = said_by(await client.call_tool("ask", {"question": question}))
        assert "2025" in answer and "[run_" in answer
        listed = said_by(await client.call_tool("runs", {"limit": 1}))
        assert listed.startswith("run_") and "begin at 45" in listed


@pytest.mark.slow
async def test_a_host_asks_it_by_http(tmp_path):
    command = [sys.executable, "-m", "batuta", "mcp", "--pool", "rehearsal", "--port", "0"]
    environ = {**os.environ, "BATUTA_HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    async with await anyio.open_process(command, env=environ, stderr=subprocess.STDOUT) as served:
        assert served.stdout is not None
        said = ""
        with anyio.fail_after(60):
            while not (found := re.search(r"http://127\.0\.0\.1:\d+/v1/mcp", said)):
                said += (await served.stdout.receive()).decode()
        async with httpx2.AsyncClient(timeout=60) as http:
            async with Client(streamable_http_client(found[0], http_client=http)) as client:
                asked = {"question": "Compute the result: begin at 45; square it."}
                assert "2025" in said_by(await client.call_tool("ask", asked))
        served.terminate()


async def test_what_fails_is_an_error_of_one_sentence(tmp_path):
    clients = {A: ScriptedClient([RateLimitError("slow down"), RateLimitError("slow down")])}
    async with Session(Pool((Worker(id=A, model="m"),)), clients=clients, store=False) as session:
        async with Client(build_server(session, str(tmp_path / "runs.db"))) as client:
            for question in ("", "hi"):
                result = await client.call_tool("ask", {"question": question})
                assert result.is_error and "\n" not in said_by(result)
