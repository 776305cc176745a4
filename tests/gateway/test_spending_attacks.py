"""Whatever a caller asks, and however much at once: no budget and no limit in dollars is passed.

The provider is real HTTP on the loopback and bills the most it may: every byte of a prompt is a
token, and the whole cap that it was sent is said - 4,000 tokens where it was sent none.
"""

from __future__ import annotations

import json
import time
from decimal import Decimal

import anyio
import pytest

from batuta.clients import HttpTransport, OpenAIChatClient
from batuta.clients.http_target import Secret
from batuta.clients.openai.client import COMPATIBLE_DIALECT
from batuta.core import Price
from batuta.store import Store
from batuta.store.ledger import Bucket, utc_day
from fakes.openai import FakeOpenAI
from fakes.server import KEY, Said
from gateway.keyed_server import KeyedServer
from gateway.live_server import HI, PRICE, pool_of

pytestmark = pytest.mark.anyio
BUDGET = Decimal("0.05")
WAYS = {
    "chat": ("/v1/chat/completions", {"messages": HI}),
    "chat, streamed": ("/v1/chat/completions", {"messages": HI, "stream": True}),
    "responses": ("/v1/responses", {"input": "hi"}),
    "responses, streamed": ("/v1/responses", {"input": "hi", "stream": True}),
    "background": ("/v1/responses", {"input": "hi", "background": True}),
    "messages": ("/v1/messages", {"messages": HI, "max_tokens": 4000}),
    "messages, streamed": ("/v1/messages", {"messages": HI, "max_tokens": 4000, "stream": True}),
}


class Dear(FakeOpenAI):
    """Bills all it can."""

    def __init__(self, price: Price = PRICE, latency: float = 0.05) -> None:
        super().__init__(self.costly, strict_openai=False, latency=latency)
        self.price = price
        self.bill = Decimal(0)

    def costly(self, body):
        into = len(json.dumps(body["messages"], ensure_ascii=False).encode())
        out = body.get("max_tokens", 4000)
        self.bill += (into * self.price.input + out * self.price.output) / 1_000_000
        usage = {"prompt_tokens": into, "completion_tokens": out, "total_tokens": into + out}
        return Said("Hello.", usage=usage)


def clients_of(dear, http, *ids):
    workers = pool_of(*ids)
    secret = Secret(KEY)
    return {
        worker.id: OpenAIChatClient(
            worker, http, base_url=dear.url, key=secret, dialect=COMPATIBLE_DIALECT
        )
        for worker in workers
    }


class Rush:
    """A server with a key, its provider, and many requests at once."""

    def __init__(self, store, *ids, dear=None):
        self.store, self.dear, self.http, self.ids = (
            store,
            dear or Dear(),
            HttpTransport(),
            ids or ("ada", "bob"),
        )
        self.statuses = []

    async def __aenter__(self):
        await self.dear.__aenter__()
        self.keyed = await KeyedServer(
            self.store,
            background=True,
            **clients_of(self.dear, self.http, *self.ids),  # pyright: ignore[reportArgumentType]
        ).__aenter__()
        return self

    async def __aexit__(self, *error):
        await self.keyed.__aexit__(*error)
        await self.http.close()
        await self.dear.__aexit__(*error)

    async def ask(self, key, path, body):
        headers = {"authorization": f"Bearer {key}"}
        async with self.keyed.serving.http.post(path, json=body, headers=headers) as response:
            answer = await response.read()
            self.statuses.append(response.status)
        if body.get("background") and response.status == 200:
            await self._ended(json.loads(answer)["id"], headers)

    async def _ended(self, name, headers):
        with anyio.fail_after(60):
            while True:
                async with self.keyed.serving.http.get(
                    f"/v1/responses/{name}", headers=headers
                ) as r:
                    if (await r.json())["status"] not in {"queued", "in_progress"}:
                        return
                await anyio.sleep(0.02)

    async def flood(self, count, key, path, body):
        async with anyio.create_task_group() as tasks:
            for _ in range(count):
                tasks.start_soon(self.ask, key, path, body)

    async def full(self, key):
        await self.store.flush()
        bucket = Bucket(f"key:{key.split('_')[1]}", utc_day(time.time()), 10**12)
        [found] = await self.store.budgets.budget_status([bucket])
        return found


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
async def test_a_low_limit_of_ones_own_opens_no_budget(store, way):
    """The first attack: many at once who say that they want to spend nothing."""
    path, body = WAYS[way]
    async with Rush(store) as rush:
        key = await rush.keyed.key(per_day=BUDGET)
        orchestration = {"orchestration": {"max_cost_usd": 1e-9}}
        await rush.flood(40, key, path, {"model": "worker/ada", **body, **orchestration})
        assert rush.dear.bill == 0
        assert (await rush.full(key)).reserved == 0


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", ["worker/ada", "batuta-ultra"])
async def test_a_crowd_spends_what_there_is_and_no_more(store, way, model):
    path, body = WAYS[way]
    async with Rush(store) as rush:
        key = await rush.keyed.key(per_day=BUDGET)
        await rush.flood(20, key, path, {"model": model, **body})
        assert BUDGET / 2 < rush.dear.bill <= BUDGET
        full = await rush.full(key)
        assert (full.spent, full.reserved) == (int(rush.dear.bill * 10**9), 0)


@pytest.mark.parametrize("way", WAYS)
async def test_workflows_by_hand_pass_no_budget(store, way):
    """The second attack: parallel steps, each of which looked at what was spent."""
    path, body = WAYS[way]
    steps = [{"worker": name, "subtask": "x"} for name in ("ada", "bob", "ada", "bob", "ada")]
    orchestration = {"orchestration": {"workflow": {"steps": steps}, "max_cost_usd": 0.004}}
    async with Rush(store) as rush:
        key = await rush.keyed.key(per_day=Decimal("0.005"))
        await rush.flood(8, key, path, {"model": "batuta-ultra", **body, **orchestration})
        assert 0 < rush.dear.bill <= Decimal("0.005")
        assert (await rush.full(key)).reserved == 0


@pytest.mark.parametrize("way", WAYS)
async def test_one_request_keeps_to_its_own_limit(store, way):
    """The third attack: a request that cost ten times what it was to cost."""
    path, body = WAYS[way]
    async with Rush(store) as rush:
        for limits in ({"per_day": Decimal(1)}, {"max_cost": Decimal("0.0012")}):
            rush.dear.bill = Decimal(0)
            key = await rush.keyed.key(**limits)  # pyright: ignore[reportArgumentType]
            asked = {"model": "worker/ada", **body}
            if "max_cost" not in limits:
                asked["orchestration"] = {"max_cost_usd": 0.0012}
            await rush.ask(key, path, asked)
            assert Decimal("0.0008") < rush.dear.bill <= Decimal("0.0012")


async def test_the_cap_is_sent_and_the_run_says_so(store):
    async with Rush(store) as rush:
        key = await rush.keyed.key(per_day=Decimal("0.003"))
        status, _, body = await rush.keyed.chat(key, orchestration={"trace": True})
        assert status == 200
        [sent] = rush.dear.requests
        assert 256 <= sent.body["max_tokens"] < 4096
        assert f'"max_output": {sent.body["max_tokens"]}' in json.dumps(body["orchestration"])


async def test_a_request_in_chinese_is_no_cheaper_than_it_is(store):
    async with Rush(store) as rush:
        key = await rush.keyed.key(per_day=Decimal("0.02"))
        text = "\u4f60\u597d\u4e16\u754c" * 1500  # 6,000 characters, 18,000 bytes
        body = {"model": "worker/ada", "messages": [{"role": "user", "content": text}]}
        await rush.flood(4, key, "/v1/chat/completions", body)
        assert rush.dear.bill <= Decimal("0.02")
        assert rush.statuses.count(200) == 1


async def test_two_replicas_share_a_budget_to_the_last_call(store, tmp_path):
    async with Store(tmp_path / "runs.db") as other, Rush(store) as one, Rush(other) as two:
        key = await one.keyed.key(per_day=BUDGET, per_month=Decimal("0.04"))
        body = {"model": "batuta-ultra", "messages": HI}
        async with anyio.create_task_group() as tasks:
            for rush in (one, two):
                tasks.start_soon(rush.flood, 12, key, "/v1/chat/completions", body)
        bill = one.dear.bill + two.dear.bill
        assert Decimal("0.02") < bill <= Decimal("0.04")
        await two.store.flush()
        full = await one.full(key)
        assert (full.spent, full.reserved) == (int(bill * 10**9), 0)


async def test_a_tenants_budget_binds_all_its_keys(store):
    async with Rush(store) as rush:
        keys = [await rush.keyed.key() for _ in range(3)]
        await store.keys.set_tenant_budget("acme", Decimal("0.02"), None)
        await anyio.sleep(0.01)
        async with anyio.create_task_group() as tasks:
            for key in keys:
                path, body = WAYS["chat"]
                tasks.start_soon(rush.flood, 6, key, path, {"model": "worker/ada", **body})
        assert 0 < rush.dear.bill <= Decimal("0.02")


@pytest.mark.parametrize("way", WAYS)
async def test_a_plain_call_is_reserved_once(store, way, caplog):
    """Of one worker and one call the run's reservation is the call's: nothing grows."""
    path, body = WAYS[way]
    async with Rush(store) as rush:
        key = await rush.keyed.key(per_day=Decimal(1), per_month=Decimal(1))
        caplog.set_level("DEBUG", "batuta.gateway.serving.reserved_budget")
        await rush.ask(key, path, {"model": "worker/ada", **body})
        assert rush.dear.bill > 0
        assert "more is reserved" not in caplog.text
        await rush.ask(key, path, {"model": "batuta-ultra", **body})
        assert "more is reserved" in caplog.text


class Slow(Dear):
    """Bills all it can as soon as it is asked, and says it to nobody who will not wait."""

    async def _answer(self, request, received):
        self.costly(received.body)
        self.started.set()
        await anyio.sleep(20)
        return await super()._answer(request, received)


async def ask_and_hang_up(rush, key, path, body):
    with anyio.move_on_after(2 if "orchestration" in body else 1):
        await rush.ask(key, path, body)


@pytest.mark.slow
@pytest.mark.parametrize("way", [way for way in WAYS if way != "background"])
@pytest.mark.parametrize("cut", ["deadline", "hanging up"])
async def test_calls_that_are_cut_off_pass_no_budget(store, way, cut):
    """The fourth attack: whoever does not wait for the answer is not told what it costs."""
    path, body = WAYS[way]
    asked = {"model": "worker/ada", **body}
    if cut == "deadline":
        asked["orchestration"] = {"deadline_s": 1.0}  # a busy machine asks nobody in 0.1
    async with Rush(store, dear=Slow()) as rush:
        key = await rush.keyed.key(per_day=BUDGET)
        for _ in range(8):  # the budget has room for about six calls
            async with anyio.create_task_group() as tasks:
                for _ in range(4):
                    tasks.start_soon(ask_and_hang_up, rush, key, path, asked)
        await settled(rush, key)
        assert BUDGET / 2 < rush.dear.bill <= BUDGET
        full = await rush.full(key)
        assert full.spent >= int(rush.dear.bill * 10**9)


async def settled(rush, key):
    with anyio.fail_after(60):
        while (await rush.full(key)).reserved:
            await anyio.sleep(0.05)
