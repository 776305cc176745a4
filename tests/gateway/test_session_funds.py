"""A session's limit in dollars: runs at the same time, calls that are cut off, servers that die."""

import asyncio
import uuid
from decimal import Decimal
from typing import Any

import pytest

from batuta.conductors.sessions.state import NEW_SESSION, SessionEntry, SessionThread
from batuta.core import Cost, Reply, Usage
from batuta.core.conductor import NULL_LISTENER
from gateway.keyed_server import CHAT, KeyedServer
from gateway.test_session_memory import find_redis, replicas

__all__ = ["find_redis", "replicas"]
pytestmark = pytest.mark.anyio
MOST = Decimal("0.005")
EACH = Decimal("0.00102")  # 20 tokens in at $1 and 500 out at $2 a million
ASKED = {**CHAT, "max_tokens": 500, "prompt_cache_key": "one session"}


class Slow:
    """A worker that takes a while, and knows how often it was asked."""

    def __init__(self, seconds):
        self.seconds, self.asked, self.paid = seconds, 0, Decimal(0)

    async def complete(self, request, listener=NULL_LISTENER):
        self.asked += 1
        await asyncio.sleep(self.seconds)
        words = min(500, request.max_output or 500)
        usd = Decimal(20 + 2 * words) / 10**6
        self.paid += usd
        return Reply(text="Hi.", usage=Usage(calls=1, input=20, output=words), cost=Cost(usd))


def limited(whose) -> tuple[dict[str, Any], dict[str, Any]]:
    """Limits of the key, and what a request asks for."""
    if whose == "key":
        return {"session_max_cost": MOST}, {}
    more = {"per_day": Decimal(9)} if whose == "request with a budget" else {}
    return more, {"session": {"max_cost_usd": float(MOST)}}


WHOSE = ["key", "request", "request with a budget"]


@pytest.mark.parametrize("whose", WHOSE)
async def test_requests_at_the_same_time_pass_the_limit_no_more_than_one_after_another(
    store, whose
):
    worker, (limits, options) = Slow(0.3), limited(whose)
    server = KeyedServer(store, ada=worker)
    key = await server.key(**limits)
    async with server:
        body = {**ASKED, "orchestration": options}
        answers = await asyncio.gather(*(server.ask(key, json=body) for _ in range(20)))
        codes = [body["error"]["code"] for status, _, body in answers if status != 200]
        assert set(codes) == {"session_limit_exceeded"}
        assert worker.asked == 20 - len(codes)
        assert EACH <= worker.paid <= MOST


@pytest.mark.parametrize("whose", WHOSE)
async def test_calls_that_are_cut_off_count_as_what_was_held_for_them(store, whose):
    worker, (limits, options) = Slow(60), limited(whose)
    server = KeyedServer(store, ada=worker)
    key = await server.key(**limits)
    async with server:
        body = {**ASKED, "orchestration": {**options, "deadline_s": 0.05}}
        answers = [await server.ask(key, json=body) for _ in range(12)]
    assert 0 < worker.asked <= MOST / EACH + 1  # the last one is shortened
    assert answers[-1][2]["error"]["code"] == "session_limit_exceeded"
    assert "was not billed" in answers[-1][2]["error"]["message"]


def end(run, usd="0", counted="0"):
    cost = Cost(Decimal(usd))
    return SessionEntry(
        thread="", after=SessionThread(), run=run, cost=cost, counted=Decimal(counted)
    )


async def test_what_runs_hold_is_known_to_every_replica_until_they_end(replicas):
    name, (one, other) = f"ses_{uuid.uuid4().hex}", replicas

    async def hold(memory, run, usd, least="0.1"):
        return await memory.hold(
            "", name, run, usd=Decimal(usd), least=Decimal(least), most=Decimal(1)
        )

    assert await hold(one, "run_a", "0.3") == Decimal("0.3")
    assert await hold(other, "run_b", "0.9") == Decimal("0.7")
    assert await hold(one, "run_c", "0.1") is None
    # A run holds what it says last, and room for it is what the others leave.
    assert await hold(other, "run_a", "0.2") == Decimal("0.2")
    assert await hold(one, "run_c", "0.5") == Decimal("0.1")
    assert await one.note("", name, end("run_b", "0.25", "0.05")) == await other.load("", name)
    state = await one.load("", name)
    assert state.holds == {"run_a": Decimal("0.2"), "run_c": Decimal("0.1")}
    assert state.left_usd(Decimal(1)) == Decimal("0.4")
    assert state.left_usd(Decimal(1), "run_a") == Decimal("0.6")
    # The server of these two dies: what they held is gone for good.
    assert await hold(other, "run_d", "1", "0.41") is None
    assert await hold(other, "run_d", "1", "0.4") == Decimal("0.4")


async def test_what_is_held_is_told_where_it_leaves_too_little(store):
    server = KeyedServer(store, ada=Slow(0))
    key = await server.key(session_max_cost=MOST)
    async with server:
        _, headers, _ = await server.ask(key, json=ASKED)
        session, memory = headers["x-batuta-session"], server.serving.app_state.sessions
        assert (await memory.load("acme", session)).holds == NEW_SESSION.holds
        assert await memory.hold(
            "acme", session, "run_of_a_dead_server", usd=MOST, least=EACH, most=MOST
        )
        status, _, body = await server.ask(key, json=ASKED)
    assert status == 429 and body["error"]["code"] == "session_limit_exceeded"
    assert "$0.0040 is held" in body["error"]["message"], body
