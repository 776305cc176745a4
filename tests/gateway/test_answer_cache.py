"""The same question twice is answered once, within a tenant, and until its run is deleted."""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import replace
from decimal import Decimal

import pytest

from batuta.clients import RedisConnections, ScriptedClient
from batuta.core import Finish, Reply, ToolCall
from batuta.gateway.access.caller import Authenticator
from batuta.gateway.serving.answer_cache import (
    AnswerCacheOptions,
    RedisAnswerIndex,
    RepeatedAnswers,
    StoreAnswerIndex,
)
from batuta.store import Store
from batuta.store.key_hasher import KeyHasher
from batuta.store.key_permissions import KeyPermissions
from gateway.keyed_server import ADMIN, HELLO
from gateway.live_server import HI, Serving, scripted_state

pytestmark = pytest.mark.anyio
REDIS = os.environ.get("BATUTA_TEST_REDIS", "redis://127.0.0.1:6379")
CHAT = {"model": "worker/ada", "messages": HI, "temperature": 0}


class Counting:
    """A worker that says how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, _):
        self.asked += 1
        return replace(HELLO, text=f"Answer {self.asked}. " + "It is long. " * 100)


class Place:
    """A server with keys that gives answers again."""

    def __init__(self, store, index=None, **options):
        self.store, self.worker, self.hasher = store, Counting(), KeyHasher(b"x" * 32)
        self.cache = RepeatedAnswers(
            store, index or StoreAnswerIndex(store), AnswerCacheOptions(**options)
        )
        clients = {name: ScriptedClient(self.worker) for name in ("ada", "bob")}
        gate = Authenticator(store, self.hasher, ADMIN)
        self.serving = Serving(
            scripted_state(clients, store=store, authenticator=gate, answer_cache=self.cache)
        )

    async def __aenter__(self):
        await self.serving.__aenter__()
        self.key = await self.new_key()
        return self

    async def __aexit__(self, *error):
        return await self.serving.__aexit__(*error)

    async def new_key(self, tenant="acme", **limits):
        made = await self.store.keys.create(self.hasher, tenant, "k", KeyPermissions(**limits))
        return made[1].text

    async def ask(self, body=CHAT, path="/v1/chat/completions", key=None, method="POST"):
        headers = {"authorization": f"Bearer {key or self.key}"}
        async with self.serving.http.request(method, path, json=body, headers=headers) as answer:
            text = (await answer.read()).decode()
            return answer.status, answer.headers, text


def said(text):
    return json.loads(text)["choices"][0]["message"]["content"]


@pytest.fixture(params=["store", "redis"])
async def place(request, store):
    index = None
    if request.param == "redis":
        client = pytest.importorskip("redis.asyncio").Redis.from_url(REDIS, socket_connect_timeout=1)  # fmt: skip
        try:
            await client.ping()
        except Exception as error:
            pytest.skip(f"no Redis server at {REDIS}: {error}")
        finally:
            await client.aclose()
        index = RedisAnswerIndex(RedisConnections(REDIS))
    async with Place(store, index) as place:
        # Redis outlives the test: nobody else has asked this.
        place.body = {**CHAT, "messages": [{"role": "user", "content": uuid.uuid4().hex}]}  # pyright: ignore[reportAttributeAccessIssue]
        yield place
    if index is not None:
        await index.close()


async def test_the_same_question_is_answered_once(place):
    first, second = await place.ask(place.body), await place.ask(place.body)
    assert [one[1]["x-batuta-cache"] for one in (first, second)] == ["miss", "hit"]
    assert said(first[2]) == said(second[2]) and place.worker.asked == 1
    runs = [one[1]["x-batuta-run-id"] for one in (first, second)]
    assert runs[0] != runs[1] and second[1]["x-batuta-cost-usd"] == "0"
    assert json.loads(second[2])["usage"]["total_tokens"] == 0
    await place.store.flush()
    repeated = await place.store.summary(runs[1], "acme")
    assert (repeated.parent, repeated.cost.usd, repeated.calls) == (runs[0], 0, 0)


async def test_never_across_tenants(place):
    other = await place.new_key("other")
    await place.ask(place.body)
    _, headers, text = await place.ask(place.body, key=other)
    assert headers["x-batuta-cache"] == "miss" and place.worker.asked == 2
    assert said(text).startswith("Answer 2.")


async def test_keys_of_one_tenant_share_what_both_may_ask(place):
    await place.ask({**place.body, "model": "batuta-mini"})
    for limits, hit in (({}, "hit"), ({"workers_deny": ("ada",)}, "miss")):
        key = await place.new_key(**limits)
        _, headers, _ = await place.ask({**place.body, "model": "batuta-mini"}, key=key)
        assert headers["x-batuta-cache"] == hit
    narrow = await place.new_key(models=("worker/bob",))
    status, _, _ = await place.ask({**place.body, "model": "batuta-mini"}, key=narrow)
    assert status == 403


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0, "seed": 1},
        {"max_tokens": 5},
        {"stop": ["x"]},
        {"model": "worker/bob"},
        {"messages": [*HI, {"role": "assistant", "content": "a"}, *HI]},
        {"response_format": {"type": "json_object"}},
        {"orchestration": {"max_cost_usd": 0.5}},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
    ],
)
async def test_what_differs_is_another_question(store, change):
    async with Place(store) as place:
        await place.ask()
        _, headers, _ = await place.ask({**CHAT, **change})
        assert headers["x-batuta-cache"] == "miss"


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": None},
        {"temperature": 0.7},
        {"store": False},
        {"orchestration": {"cache": False}},
        {"orchestration": {"trace": True}},
    ],
)
async def test_what_is_not_repeated(store, change):
    async with Place(store) as place:
        await place.ask()
        for _ in range(2):
            _, headers, _ = await place.ask({**CHAT, **change})
            assert "x-batuta-cache" not in headers
        assert place.worker.asked == 3


async def test_a_seed_or_the_setting_makes_an_answer_repeatable(store):
    async with Place(store) as place:
        for _ in range(2):
            await place.ask({**CHAT, "temperature": 0.7, "seed": 3})
        assert place.worker.asked == 1
    async with Place(store, sampled=True) as place:
        for _ in range(2):
            await place.ask({**CHAT, "temperature": 0.7})
        assert place.worker.asked == 1


@pytest.mark.parametrize("forget", ["the run", "the tenant"])
async def test_what_is_deleted_is_not_said_again(place, forget):
    _, headers, _ = await place.ask(place.body)
    await place.ask(place.body)
    if forget == "the run":
        path = f"/v1/runs/{headers['x-batuta-run-id']}"
        assert (await place.ask(None, path, method="DELETE"))[0] == 200
    else:
        await place.ask(None, "/v1/admin/tenants/acme", key=ADMIN, method="DELETE")
        place.key = await place.new_key()
    _, headers, text = await place.ask(place.body)
    assert headers["x-batuta-cache"] == "miss" and said(text).startswith("Answer 2.")


async def test_after_its_time_it_is_asked_anew(store):
    async with Place(store, seconds=0.001) as place:
        for _ in range(2):
            await place.ask()
        assert place.worker.asked == 2


WAYS = {
    "chat": ("/v1/chat/completions", {"messages": HI}),
    "responses": ("/v1/responses", {"input": "hi"}),
    "messages": ("/v1/messages", {"messages": HI, "max_tokens": 500}),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", ["worker/ada", "batuta-ultra"])
async def test_streams_tell_it_again(store, way, model):
    path, body = WAYS[way]
    body = {"model": model, "temperature": 0, "stream": True, **body}
    async with Place(store) as place:
        first, asked = await place.ask(body, path), place.worker.asked
        second = await place.ask(body, path)
    assert second[1]["x-batuta-cache"] == "hit" and place.worker.asked == asked
    assert texts(first[2]) == texts(second[2]) != ""
    assert last(first[2]) == last(second[2])
    assert second[2].count("data: ") > 5


def texts(stream):
    """The words of a stream, in any dialect."""
    found = []
    for line in stream.splitlines():
        if not line.startswith("data: {"):
            continue
        event = json.loads(line[6:])
        found += [one["delta"].get("content") or "" for one in event.get("choices", ())]
        if event.get("type") == "response.output_text.delta":
            found.append(event["delta"])
        if event.get("type") == "content_block_delta":
            found.append(event["delta"].get("text", ""))
    return "".join(found)


def last(stream):
    """The name of the last event."""
    names = [line for line in stream.splitlines() if line.startswith("event: ")]
    return names[-1] if names else stream.splitlines()[-2]


async def test_a_hit_needs_no_money_and_counts_as_a_request(store):
    async with Place(store) as place:
        await place.ask()
        poor = await place.new_key(per_day=Decimal(0), rpm=2)
        for _ in range(2):
            status, headers, _ = await place.ask(key=poor)
            assert (status, headers["x-batuta-cache"]) == (200, "hit")
        assert (await place.ask(key=poor))[0] == 429
        other = await place.new_key(per_day=Decimal(0))
        status, _, text = await place.ask({**CHAT, "seed": 9}, key=other)
        assert (status, json.loads(text)["error"]["code"]) == (429, "budget_exceeded")


async def test_what_calls_tools_or_was_cut_short_is_run_again(store):
    call = ToolCall(id="c", name="f", arguments="{}")
    tools = [{"type": "function", "function": {"name": "f"}}]
    for reply in (
        Reply(text="", tool_calls=(call,), finish=Finish.TOOL_CALLS),
        replace(HELLO, finish=Finish.LENGTH),
    ):
        asked = []

        def say(request, reply=reply, asked=asked):
            asked.append(request)
            return reply

        cache = RepeatedAnswers(store, StoreAnswerIndex(store))
        app_state = scripted_state({"ada": ScriptedClient(say)}, store=store, answer_cache=cache)
        async with Serving(app_state) as server:
            for _ in range(2):
                await server.post(json={**CHAT, "tools": tools})
        assert len(asked) == 2


async def test_off_by_default(store):
    async with Serving(scripted_state({"ada": ScriptedClient(Counting())}, store=store)) as server:
        for _ in range(2):
            _, headers, _ = await server.post(json=CHAT)
            assert "x-batuta-cache" not in headers


async def test_an_index_that_fails_costs_an_answer_and_nothing_else(store):
    async with Place(store, RedisAnswerIndex(RedisConnections("redis://127.0.0.1:1"))) as place:
        for _ in range(2):
            assert (await place.ask())[0] == 200
        assert place.worker.asked == 2


async def test_two_replicas_on_one_store(store, tmp_path):
    async with Place(store) as one, Store(tmp_path / "runs.db") as again, Place(again) as two:
        await one.ask()
        await store.flush()
        _, headers, _ = await two.ask(key=one.key)
        assert headers["x-batuta-cache"] == "hit" and two.worker.asked == 0
