"""A program that is told of plans which wait and decides about them: signed, once, and nobody else."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from contextlib import asynccontextmanager

import anyio
import pytest
from aiohttp import web

from batuta.clients import HttpTransport
from batuta.clients.http_target import Secret
from batuta.clients.webhook import Webhook
from batuta.config.load import load_config
from batuta.errors import ConfigError
from gateway.test_approvals import STEPS, Place, ask_ultra, edited, plan_of

pytestmark = pytest.mark.anyio
KEY = b"k" * 32
SECRET = Secret("whsec_" + base64.b64encode(KEY).decode())
PATH = "/webhooks/approvals"


def signature(message_id, stamp, body: bytes, key=KEY):
    """The signature by the words of the standard, computed apart from the code."""
    digest = hmac.new(key, b"%s.%s." % (message_id.encode(), stamp.encode()) + body, hashlib.sha256)
    return "v1," + base64.b64encode(digest.digest()).decode()


class Receiver:
    """A program of the operator's, on loopback."""

    def __init__(self, *statuses):
        self.statuses, self.got = list(statuses), []

    async def take(self, request):
        self.got.append((dict(request.headers), await request.read()))
        status = self.statuses.pop(0) if self.statuses else 204
        headers = {"Location": "/elsewhere"} if status == 302 else {}
        return web.Response(status=status, headers=headers)


@asynccontextmanager
async def app_state(store, *statuses):
    """A server that tells a receiver, both on loopback."""
    receiver, app = Receiver(*statuses), web.Application()
    app.router.add_route("*", "/{path:.*}", receiver.take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    async with HttpTransport() as http:
        webhook = Webhook(http, url, SECRET, pauses=(0.05, 0.05))
        async with Place(store, approval_webhook=webhook) as place:
            yield place, receiver
    await runner.cleanup()


async def send(place, said, *, key=KEY, age=0.0, body=None, message_id="msg_1"):
    stamp, payload = str(int(time.time() - age)), json.dumps(said).encode()
    headers = {
        "webhook-id": message_id,
        "webhook-timestamp": stamp,
        "webhook-signature": f"v1,old {signature(message_id, stamp, payload, key)}",
        "content-type": "application/json",
    }
    async with place.serving.http.post(PATH, data=body or payload, headers=headers) as response:
        return response.status, await response.json()


def verdict(plan, decision="approve", **more):
    return {"id": plan["id"], "digest": plan["digest"], "decision": decision, **more}


async def test_a_waiting_plan_is_told_and_decided_by_signed_messages(store):
    async with app_state(store) as (place, receiver), anyio.create_task_group() as tasks:
        tasks.start_soon(ask_ultra, place)
        plan = await place.waiting()
        while not receiver.got:
            await anyio.sleep(0.02)
        headers, body = receiver.got[0]
        said = json.loads(body)
        assert said["type"] == "approval.waiting" and said["data"]["digest"] == plan["digest"]
        assert said["data"]["steps"] and said["data"]["expected_cost_usd"]
        told = headers["webhook-id"], headers["webhook-timestamp"]
        assert headers["webhook-signature"] == signature(*told, body)
        assert abs(int(told[1]) - time.time()) < 60 and told[0] == f"{plan['id']}:{plan['digest']}"
        status, done = await send(place, verdict(plan, reason="fine"))
        assert status == 200 and (done["state"], done["by"]) == ("approved", "webhook")
        assert (await send(place, verdict(plan, "refuse")))[0] == 409  # a replay decides nothing
    assert place.answers[0][0] == 200 and len(receiver.got) == 1
    [record] = await store.audit.list(5, action="approval.")
    assert record.actor == "webhook"


@pytest.mark.parametrize(
    "forgery",
    [{"key": b"x" * 32}, {"age": 400}, {"age": -400}, {"body": b'{"id": "run_1:0", "digest": "d", "decision": "refuse"}'},
     {"message_id": ""}],
    ids=["secret", "old", "early", "body", "no id"],
)  # fmt: skip
async def test_a_forged_message_decides_nothing(store, forgery):
    await store.approvals.ask(plan_of(1))
    async with app_state(store) as (place, _):
        if forgery == {"message_id": ""}:
            async with place.serving.http.post(PATH, json=verdict({"id": "run_1:0", "digest": "d"})) as response:  # fmt: skip
                status = response.status
        else:
            status, said = await send(place, verdict({"id": "run_1:0", "digest": "d"}), **forgery)
            assert said["error"]["code"] == "invalid_signature"
    assert status == 401 and (await store.approvals.get("run_1:0")).state == "waiting"


async def test_a_message_that_was_sent_to_the_program_decides_nothing(store):
    """Our own message comes back, signed with the right secret."""
    await store.approvals.ask(plan_of(1))
    async with app_state(store) as (place, _):
        status, said = await send(place, {"type": "approval.waiting", "data": {"id": "run_1:0"}})
        assert status == 400 and said["error"]["param"] == "id"
        status, said = await send(place, {"id": "run_1:0", "digest": "d"})
    assert status == 400 and said["error"]["param"] == "decision"
    assert said["error"]["message"] == "Missing required parameter: 'decision'."


async def test_a_key_is_no_signature_and_an_edit_comes_by_no_message(store):
    async with app_state(store) as (place, _):
        headers = {**place.key, "content-type": "application/json"}
        async with place.serving.http.post(PATH, data=b"{}", headers=headers) as response:
            assert response.status == 401
        status, _ = await send(place, verdict({"id": "a", "digest": "d"}, "edit", steps=STEPS))
    assert status == 400


async def test_a_message_that_is_not_taken_is_sent_again_a_few_times(store):
    async with app_state(store, 500, 302, 503, 500) as (place, receiver), anyio.create_task_group() as tasks:  # fmt: skip
        tasks.start_soon(ask_ultra, place)
        plan = await place.waiting()
        while len(receiver.got) < 3:
            await anyio.sleep(0.02)
        await anyio.sleep(0.3)
        assert len(receiver.got) == 3  # and no redirect was followed
        assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1
        await place.decide(plan)
    assert place.answers[0][0] == 200


async def test_an_edited_plan_is_told_anew(store):
    async with app_state(store) as (place, receiver), anyio.create_task_group() as tasks:
        tasks.start_soon(ask_ultra, place)
        now = await edited(place, await place.waiting(), STEPS)
        while len(receiver.got) < 2:
            await anyio.sleep(0.02)
        assert json.loads(receiver.got[1][1])["data"]["digest"] == now["digest"]
        await send(place, verdict(now, "refuse", reason="no"))
    assert place.answers[0][0] == 403


async def test_without_a_webhook_no_message_is_taken(store):
    async with Place(store) as place:
        assert (await send(place, verdict({"id": "a", "digest": "d"})))[0] == 404


async def test_its_address_and_secret_are_settings(tmp_path):
    path = tmp_path / "batuta.toml"
    worker = '[[workers]]\nid = "a"\nmodel = "m"\nbase_url = "http://127.0.0.1:9/v1"\n'
    path.write_text(f'{worker}[approval_webhook]\nurl = "https://hooks.example.com/a"\n')
    async with HttpTransport() as http:
        for secret in ("", "short", "not-base64!", base64.b64encode(b"x" * 23).decode()):
            with pytest.raises(ConfigError, match=r"BATUTA_WEBHOOK_SECRET|24 bytes"):
                await load_config(http, pool=str(path), environ={"BATUTA_WEBHOOK_SECRET": secret})
        environ = {"BATUTA_WEBHOOK_SECRET": SECRET.reveal()}
        config = await load_config(http, pool=str(path), environ=environ)
        assert config.approval_webhook is not None and KEY.decode() not in repr(config)
