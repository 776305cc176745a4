"""Money that running requests hold is not spent: who is refused for it is told to come again."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from decimal import Decimal
from functools import partial

import anyio
import pytest

from batuta.clients import ScriptedClient
from batuta.core import Cost
from batuta.core.conductor import NULL_LISTENER
from batuta.store import Store
from gateway.keyed_server import ADMIN, HELLO, KeyedServer
from gateway.live_server import HI

pytestmark = pytest.mark.anyio
CALLS = {
    "chat": ("/v1/chat/completions", {"model": "worker/ada", "messages": HI}),
    "completions": ("/v1/completions", {"model": "worker/ada", "prompt": "hi"}),
    "responses": ("/v1/responses", {"model": "worker/ada", "input": "hi"}),
    "messages": ("/v1/messages", {"model": "worker/ada", "messages": HI, "max_tokens": 4096}),
    "ultra": ("/v1/chat/completions", {"model": "batuta-ultra", "messages": HI}),
}


class Waits:
    """Answers when it may; until then its calls hold what they reserved."""

    def __init__(self) -> None:
        self.started, self.may_end = 0, anyio.Event()

    async def complete(self, request, listener=NULL_LISTENER):
        self.started += 1
        await self.may_end.wait()
        return HELLO


@pytest.fixture
async def waiting(tmp_path):
    """A server whose worker is waited for, and a key all of whose budget a request can hold."""
    ada = Waits()
    async with Store(tmp_path / "runs.db") as store, KeyedServer(store, ada=ada, bob=ada) as keyed:
        yield keyed, ada


@asynccontextmanager
async def holding(keyed, ada, key, count=1, model="worker/ada", tokens=5000):
    """That many requests go on, each with as much of the key's budget as it can have."""
    asked = ada.started
    async with anyio.create_task_group() as tasks:
        for number in range(count):
            tasks.start_soon(partial(keyed.chat, key, model=model, max_tokens=tokens))
            with anyio.fail_after(60):
                while ada.started < asked + number + 1:
                    await anyio.sleep(0.01)
        yield
        ada.may_end.set()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("way", CALLS)
@pytest.mark.parametrize("whose", ["key", "tenant"])
async def test_what_running_requests_hold_is_said_and_asked_for_again(waiting, way, stream, whose):
    keyed, ada = waiting
    limits = {"per_day": Decimal("0.0081")} if whose == "key" else {}
    key = await keyed.key(**limits)
    if whose == "tenant":
        path = "/v1/admin/tenants/acme"
        assert (await keyed.ask(ADMIN, path, "PUT", json={"per_day": "0.0081"}))[0] == 200
    path, body = CALLS[way]
    async with holding(keyed, ada, key):
        status, headers, said = await keyed.ask(key, path, json=body | {"stream": stream})
    assert status == 429, said
    message = said["error"]["message"]
    assert message.startswith(f"The {whose}'s budget of $0.0081 a day has $0.0081 left, of which ")
    assert " is held by 1 running request, and this run may cost " in message
    assert message.endswith(
        " even with a short answer: try again when a running request has ended."
    )
    assert (headers["x-should-retry"], headers["retry-after"]) == ("true", "2")
    assert (await keyed.ask(key, path, json=body))[0] == 200


async def test_of_several_the_number_is_said(waiting):
    keyed, ada = waiting
    key = await keyed.key(per_day=Decimal("0.0122"))
    async with holding(keyed, ada, key, count=3, tokens=2000):
        status, _, said = await keyed.chat(key)
    assert status == 429 and " is held by 3 running requests, " in said["error"]["message"]


async def test_what_would_not_fit_either_when_they_have_ended_is_not_asked_for_again(waiting):
    keyed, ada = waiting
    key = await keyed.key(per_day=Decimal("0.0081"))
    long = [{"role": "user", "content": "x" * 60_000}]
    async with holding(keyed, ada, key):
        status, headers, said = await keyed.chat(key, messages=long)
    assert (status, headers["x-should-retry"]) == (429, "false") and "retry-after" not in headers
    assert "is held by 1 running request" in said["error"]["message"]
    assert said["error"]["message"].endswith("or ask for a larger budget.")


async def test_what_is_spent_is_held_by_nobody(waiting):
    keyed, ada = waiting
    ada.may_end.set()
    key = await keyed.key(per_day=Decimal("0.0021"))
    assert (await keyed.chat(key))[0] == 200
    await keyed.store.flush()
    status, headers, said = await keyed.chat(key)
    assert (status, headers["x-should-retry"]) == (429, "false")
    message = said["error"]["message"]
    assert "has $0.00010 left, and this run" in message


async def test_a_run_whose_later_call_finds_the_money_held_says_so_too(tmp_path):
    """Its first call fitted: the second one is refused while another run holds the rest."""
    dear = replace(HELLO, cost=Cost(Decimal("0.0054")))
    ada, bob = Waits(), ScriptedClient(lambda _: dear)
    async with Store(tmp_path / "runs.db") as store, KeyedServer(store, ada=bob, bob=ada) as keyed:
        key = await keyed.key(per_day=Decimal("0.0157"))
        async with holding(keyed, ada, key, model="worker/bob"):
            status, headers, said = await keyed.chat(key, model="batuta-ultra", max_tokens=900)
        assert (status, headers["x-should-retry"]) == (429, "true"), said
        assert "the run's next call may cost" in said["error"]["message"]
        assert "is held by 1 running request" in said["error"]["message"]
