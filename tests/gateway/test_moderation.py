"""POST /v1/moderations: passed through to the provider of the settings, under the key's limits."""

from __future__ import annotations

import json
from dataclasses import replace

import anyio
import pytest
from aiohttp import web

from batuta.clients import HttpTransport
from batuta.clients.http_target import Secret
from batuta.clients.openai.moderation import ModerationClient
from batuta.config.load import load_config
from batuta.core import Worker, WorkerId
from batuta.errors import ConfigError
from batuta.guardrails import GuardrailAction
from fakes.server import KEY
from gateway.keyed_server import ADMIN, KeyedServer
from gateway.live_server import Serving
from gateway.test_strict_requests import SECRET, guarded

pytestmark = pytest.mark.anyio
PATH = "/v1/moderations"
VERDICT = {"flagged": True, "categories": {"violence": True}, "category_scores": {"violence": 0.9}}


class Judge:
    """A provider of moderation on the loopback."""

    def __init__(self):
        self.heard, self.answer, self.status = [], None, 200
        self.gate: anyio.Event | None = None
        """Held back until it is set, if there is one."""

    async def __aenter__(self):
        app = web.Application()
        app.router.add_post("/v1/moderations", self.judge)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        port = self.runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{port}/v1"
        self.http = HttpTransport()
        return self

    async def __aexit__(self, *_):
        await self.http.close()
        await self.runner.cleanup()

    async def judge(self, request):
        body = await request.json()
        self.heard.append((request.headers["authorization"], body))
        if self.gate is not None:
            await self.gate.wait()
        many = body["input"] if isinstance(body["input"], list) else [body["input"]]
        whole = {"id": "modr-1", "model": "omni-2024", "results": [VERDICT] * len(many)}
        return web.json_response(self.answer or whole, status=self.status)

    def client(self, *tags):
        worker = Worker(id=WorkerId("moderation"), model="omni", tags=tags)
        return ModerationClient(worker, self.http, base_url=self.url, key=Secret(KEY))


@pytest.fixture
async def judge(anyio_backend):
    async with Judge() as judge:
        yield judge


def town_of(store, judge, *tags):
    keyed = KeyedServer(store)
    keyed.serving.app_state.catalogue.moderation = judge.client(*tags)
    return keyed


PICTURE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}


@pytest.mark.parametrize(
    "given", ["hi", ["hi", "there"], [{"type": "text", "text": "hi"}, PICTURE]]
)
async def test_texts_and_pictures_are_judged(store, judge, given):
    async with town_of(store, judge) as keyed:
        key = await keyed.key()
        status, _, said = await keyed.ask(key, PATH, json={"input": given})
    assert status == 200 and said["id"] == "modr-1" and said["model"] == "omni"
    assert said["results"][0] == VERDICT
    assert judge.heard == [(f"Bearer {KEY}", {"model": "omni", "input": given})]
    assert await store.list() == []


PARTS = [{"type": "text", "text": SECRET[:9]}, {"type": "text", "text": SECRET[9:]}, PICTURE]


@pytest.mark.parametrize("given", [SECRET, ["hi", SECRET], PARTS])
@pytest.mark.parametrize("action", [GuardrailAction.BLOCK, GuardrailAction.REDACT])
async def test_policies_look_at_what_is_sent(store, judge, given, action):
    async with town_of(store, judge) as keyed:
        catalogue = replace(keyed.serving.app_state.catalogue, guardrails=guarded(action))
        keyed.serving.app_state.catalogue.replace_by(catalogue)
        status, _, said = await keyed.ask(await keyed.key(), PATH, json={"input": given})
    sent = json.dumps(judge.heard)
    if action is GuardrailAction.BLOCK:
        assert (status, said["error"]["code"], judge.heard) == (400, "policy_blocked", [])
    else:
        assert status == 200 and "removed by no-keys" in sent
        assert SECRET not in sent and SECRET[9:] not in sent


async def test_the_official_client_works(judge):
    async with Serving() as server:
        server.app_state.catalogue.moderation = judge.client()
        made = await server.openai.moderations.create(input="hi", model="omni")
    assert made.results[0].flagged


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 400, "missing_required_parameter"),
        ({"input": 7}, 400, "invalid_type"),
        ({"input": []}, 400, "invalid_value"),
        ({"input": ["x"] * 129}, 400, "invalid_value"),
        ({"input": ["x", 7]}, 400, "invalid_type"),
        ({"input": [{"type": "audio"}]}, 400, "invalid_value"),
        ({"input": "hi", "model": "other"}, 404, "model_not_found"),
        ({"input": [{**PICTURE, "image_url": {"url": "https://127.0.0.1/"}}]}, 400, "invalid_value"),
        ({"input": [{**PICTURE, "image_url": {"url": "file:///etc"}}]}, 400, "invalid_value"),
    ],
)  # fmt: skip
async def test_what_is_malformed_reaches_nobody(store, judge, body, status, code):
    async with town_of(store, judge) as keyed:
        said = await keyed.ask(await keyed.key(), PATH, json=body)
    assert (said[0], said[2]["error"]["code"]) == (status, code) and not judge.heard


async def test_keys_bind_it(store, judge):
    async with town_of(store, judge, "region:us") as keyed:
        for limits, status in (
            ({}, 200),
            ({"models": ("omni",)}, 200),
            ({"models": ("worker/ada",)}, 403),
            ({"workers_deny": ("tag:region:us",)}, 403),
            ({"workers_allow": ("ada",)}, 403),
            ({"workers_allow": ("moderation",)}, 200),
        ):
            key = await keyed.key(**limits)  # pyright: ignore[reportArgumentType]
            assert (await keyed.ask(key, PATH, json={"input": "hi"}))[0] == status, limits
        slow = await keyed.key(rpm=1)
        asked = [await keyed.ask(slow, PATH, json={"input": "hi"}) for _ in range(2)]
        assert [one[0] for one in asked] == [200, 429] and asked[1][1]["retry-after"]
        assert (await keyed.ask(ADMIN, PATH, json={"input": "hi"}))[0] == 403
        assert (await keyed.ask(None, PATH, json={"input": "hi"}))[0] == 401


async def test_a_providers_refusal_is_told_in_its_own_case(store, judge):
    judge.status, judge.answer = 400, {"error": {"message": "use the model Omni-2"}}
    async with town_of(store, judge) as keyed:
        _, _, said = await keyed.ask(await keyed.key(), PATH, json={"input": "hi"})
    assert "use the model Omni-2" in said["error"]["message"]


async def test_a_refusal_is_one_sentence_and_a_wait_is_rounded_up(store, judge):
    async with town_of(store, judge) as keyed:
        judge.status, judge.answer = 400, {"error": {"message": "Too long."}}
        _, _, said = await keyed.ask(await keyed.key(), PATH, json={"input": "hi"})
        assert said["error"]["message"].endswith(": Too long.")
        judge.status, judge.answer = 429, {"error": {"message": "Please try again in 1.9s."}}
        _, headers, _ = await keyed.ask(await keyed.key(), PATH, json={"input": "hi"})
    assert (headers["retry-after"], headers["retry-after-ms"]) == ("2", "1900")


@pytest.mark.parametrize(
    ("status", "answer", "told"),
    [
        (500, {"error": {"message": "at {url} with {key}"}}, 502),
        (429, {"error": {"message": "slow down"}}, 429),
        (400, {"error": {"message": "too long for {url}, {key}"}}, 400),
        (401, {"error": {"message": "bad key {key}"}}, 502),
        (200, {"id": "x"}, 502),
        (200, {"results": ["yes"]}, 502),
        (302, {"a": 1}, 502),
    ],
)
async def test_a_provider_that_fails_tells_neither_address_nor_key(store, judge, status, answer, told):  # fmt: skip
    filled = json.dumps(answer).replace("{url}", judge.url).replace("{key}", KEY)
    judge.status, judge.answer = status, json.loads(filled)
    async with town_of(store, judge) as keyed:
        said = await keyed.ask(await keyed.key(), PATH, json={"input": "hi"})
    assert said[0] == told
    assert judge.url[7:-3] not in str(said[2]) and KEY not in str(said[2])


async def test_without_a_provider_there_is_none(store):
    async with KeyedServer(store) as keyed:
        status, _, said = await keyed.ask(await keyed.key(), PATH, json={"input": "hi"})
    assert (status, said["error"]["code"]) == (404, "not_found")


WORKER = (
    '[[workers]]\nid = "a"\nprovider = "compatible"\nmodel = "m"\nbase_url = "http://127.0.0.1:1"\n'
)


async def test_the_settings_name_it(tmp_path):
    file = tmp_path / "batuta.toml"
    async with HttpTransport() as http:
        file.write_text(WORKER + '[moderation]\nmodel = "omni"\n')
        loaded = await load_config(http, pool=str(file), environ={"OPENAI_API_KEY": "sk-x"})
        assert loaded.moderation.worker.model == "omni"
        assert "api.openai.com" in repr(loaded.moderation) and "sk-x" not in repr(loaded.moderation)
        file.write_text(WORKER)
        assert (await load_config(http, pool=str(file), environ={})).moderation is None
        file.write_text(WORKER + '[moderation]\nmodel = "x"\nprovider = "anthropic"\n')
        with pytest.raises(ConfigError, match="moderation"):
            await load_config(http, pool=str(file), environ={})
        file.write_text(WORKER + '[moderation]\nmodel = "x"\nkey_env = "NOT_THERE"\n')
        with pytest.raises(ConfigError, match="NOT_THERE"):
            await load_config(http, pool=str(file), environ={})


async def test_a_request_of_moderation_counts_among_those_that_a_key_may_have(store, judge):
    judge.gate = anyio.Event()
    async with town_of(store, judge) as keyed, anyio.create_task_group() as tasks:
        key, other = await keyed.key(concurrency=1), await keyed.key("other", concurrency=1)
        statuses = list[int]()

        async def ask(one):
            statuses.append((await keyed.ask(one, PATH, json={"input": "hi"}))[0])

        tasks.start_soon(ask, key)
        with anyio.fail_after(60):
            while not judge.heard:
                await anyio.sleep(0.01)
        status, headers, body = await keyed.ask(key, PATH, json={"input": "hi"})
        assert (status, body["error"]["code"]) == (429, "rate_limit_exceeded")
        assert headers["retry-after"]
        assert (await keyed.chat(key))[0] == 429
        judge.gate.set()
        await ask(other)
        with anyio.fail_after(60):
            while len(statuses) < 2:
                await anyio.sleep(0.01)
        assert (await keyed.chat(key))[0] == 200
        await ask(key)
    assert statuses == [200, 200, 200]
