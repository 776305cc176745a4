"""A session over two replicas of which one is killed: the client asks the other, and nothing is paid twice."""

from __future__ import annotations

import signal

import anyio
import pytest
from bench.session import REQUESTS, claude_body, codex_body, kill_in_session

from fakes.openai import FakeOpenAI
from fakes.server import Said
from fakes.serving import Server
from gateway.test_session_memory import redis  # noqa: F401 - a fixture
from store.conftest import postgres  # noqa: F401 - a fixture

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("postgres", "redis")]


@pytest.mark.parametrize(
    ("make", "moment"),
    [
        pytest.param(claude_body, "in a call", id="Claude Code, in a call"),
        pytest.param(codex_body, "between", id="Codex, between a call and its result"),
        pytest.param(codex_body, "in a call", id="Codex, in a call", marks=pytest.mark.long),
    ],
)
async def test_a_killed_replica_loses_no_turn_and_pays_none_twice(make, moment):
    ended = await kill_in_session(make, moment)
    assert ended.answered == REQUESTS and ended.turned >= REQUESTS // 2
    assert ended.asked == REQUESTS + (moment == "in a call")
    assert ended.written <= ended.billed <= ended.asked
    assert ended.is_whole(), ended


SETTINGS = """
[[workers]]
id = "thinker"
provider = "compatible"
model = "thinker"
base_url = "{url}"
key_env = "SCRIPTED_API_KEY"

[[workers]]
id = "hand"
provider = "compatible"
model = "hand"
base_url = "{url}"
key_env = "SCRIPTED_API_KEY"
tags = ["tools"]

[models.chain]
workflow = "chain.txt"

[ultra]
conductor = "best"
"""
CHAIN = """model_id = ["thinker", "hand"]
subtasks = ["Think.", "Act."]
access_list = [[], ["all"]]
"""
SCHEMA = {"type": "object"}
ASKS = {"role": "user", "content": "Mend it."}


def chat(answer=None):
    """The request of a chat; with an answer, the one that brings what its call returned."""
    said = []
    if answer:
        told = answer["choices"][0]["message"]
        call = told["tool_calls"][0]["id"]
        said = [told, {"role": "tool", "tool_call_id": call, "content": "42"}]
    tools = [{"type": "function", "function": {"name": "Bash", "parameters": SCHEMA}}]
    return "/v1/chat/completions", {"messages": [ASKS, *said], "tools": tools, "store": False}


def claude(answer=None):
    """The same as Claude Code sends it."""
    said = []
    if answer:
        made = [block for block in answer["content"] if block["type"] == "tool_use"]
        result = {"type": "tool_result", "tool_use_id": made[0]["id"], "content": "42"}
        said = [
            {"role": "assistant", "content": answer["content"]},
            {"role": "user", "content": [result]},
        ]
    tools = [{"name": "Bash", "input_schema": SCHEMA}]
    return "/v1/messages", {"messages": [ASKS, *said], "tools": tools, "max_tokens": 100}


def codex(answer=None):
    """The same as Codex sends it."""
    said = []
    if answer:
        made = [item for item in answer["output"] if item["type"] == "function_call"]
        result = {"type": "function_call_output", "call_id": made[0]["call_id"], "output": "42"}
        said = [*made, result]
    tools = [{"type": "function", "name": "Bash", "parameters": SCHEMA}]
    return "/v1/responses", {"input": [ASKS, *said], "tools": tools, "store": False}


async def send(server, request):
    path, body = request
    async with server.http.post(path, json={"model": "chain", **body}) as response:
        answer = await response.json()
        assert response.status == 200, answer
        return answer


async def wait_until_stored(server):
    """Wait until the other replica sees the run of the client that cannot say `store: false`."""
    with anyio.fail_after(60):
        while True:
            async with server.http.get("/v1/runs") as response:
                if (await response.json())["data"]:
                    return
            await anyio.sleep(0.05)


async def test_a_workflow_of_a_killed_replica_goes_on_at_another_one(
    tmp_path,
    postgres,  # noqa: F811 - the fixture
    redis,  # noqa: F811 - the fixture
):
    """Its first step was paid by the replica that is gone, and is not asked for again."""

    def reply(body):
        if body["model"] == "thinker":
            return Said("The thought.")
        if any(message["role"] == "tool" for message in body["messages"]):
            return Said("Mended.")
        return Said("", calls=(("call_1", "Bash", {}),))

    async with FakeOpenAI(reply, strict_openai=False) as provider:
        (tmp_path / "chain.txt").write_text(CHAIN)
        pool = tmp_path / "batuta.toml"
        pool.write_text(SETTINGS.format(url=provider.url))
        environ = {
            "BATUTA_STORE": postgres,
            "BATUTA_REDIS": redis,
            "BATUTA_SECRET": "s" * 32,
            "SCRIPTED_API_KEY": provider.key,
        }
        first, second = (
            Server(tmp_path / name, "--pool", str(pool), **environ) for name in ("1", "2")
        )
        async with first, second:
            clients = (chat, claude, codex)
            waiting = [await send(first, client()) for client in clients]
            await wait_until_stored(second)
            await first.end(signal.SIGKILL)
            ended = [
                await send(second, client(answer))
                for client, answer in zip(clients, waiting, strict=True)
            ]
    assert not provider.wrong, provider.wrong
    assert all("Mended." in str(answer) for answer in ended)
    asked = [received.body["model"] for received in provider.requests]
    assert (asked.count("thinker"), asked.count("hand")) == (3, 6), asked
    told = ["The thought." in str(one.body) for one in provider.requests[-3:]]
    assert told == [True] * 3, [one.body for one in provider.requests[-3:]]
