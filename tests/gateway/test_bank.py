"""The configuration for a bank of docs/governance.md, from a question to its recorded answer."""

from __future__ import annotations

import json
import re
from pathlib import Path

import anyio
import pytest

from batuta.clients import HttpTransport, ScriptedClient
from batuta.conductors import FixedConductor
from batuta.config.load import load_config
from batuta.core import Step, WorkerId, Workflow
from batuta.gateway.access.caller import Authenticator
from batuta.gateway.serving.models import served_models
from batuta.language.grounding import MARK
from batuta.store.key_hasher import KeyHasher
from batuta.store.key_permissions import KeyPermissions
from fakes.openai import FakeOpenAI
from fakes.serving import Server
from gateway.keyed_server import ADMIN
from gateway.live_server import Serving, server_state

pytestmark = pytest.mark.anyio
PAGE = Path(__file__).parents[2] / "docs" / "governance.md"
SAMPLE = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]
BOSS = {"authorization": f"Bearer {ADMIN}"}
HOUSE, CLOUD = WorkerId("house"), WorkerId("cloud")
SECRET = "AKIA" + "IOSFODNN7" + "ABCDEFG"
LONG = "How much is it? " * 30_000
"""A question whose reading alone costs more than a dollar in the cloud."""


def check(request):
    """What the checker says: no source has heard of the queen."""
    count = len(re.findall(r'<agent_response step="\d+">', request.messages[-1].text))
    rows = [{"claim": 1, "supported": "yes", "where": [1]}]
    rows += [{"claim": n, "supported": "no", "where": []} for n in range(2, count + 1)]
    return json.dumps({"verdicts": rows})


@pytest.fixture
async def bank(store, tmp_path):
    """The sample's rules over workers that count who was asked what."""
    path = tmp_path / "bank.toml"
    path.write_text(SAMPLE)
    async with HttpTransport() as http:
        config = await load_config(http, pool=str(path), environ={})
    grounded = config.guardrails.grounded
    assert grounded is not None and "maxItems" in grounded.bounds
    asked: list[tuple[WorkerId, str]] = []

    def client(worker):
        def reply(request):
            asked.append((worker, request.messages[-1].text))
            return "It is 42. Queen Mary said so." if request.response_format is None else check(request)  # fmt: skip

        return ScriptedClient(reply)

    clients = {worker.id: client(worker.id) for worker in config.pool}
    conductor = FixedConductor("hand", lambda _: Workflow((Step(subtask="", worker=HOUSE),)))
    hasher = KeyHasher(b"x" * 32)
    state = server_state(
        config.pool,
        clients,
        served_models(config.pool, conductor),
        plan_rules=config.plan_rules,
        approvals=config.approvals,
        guardrails=config.guardrails,
        store=store,
        authenticator=Authenticator(store, hasher, ADMIN),
    )
    limits = KeyPermissions(tags=("client",))
    _, issued = await store.keys.create(hasher, "desk", "clients", limits)
    _, free = await store.keys.create(hasher, "press", "public", KeyPermissions())
    async with Serving(state) as serving:
        yield serving, asked, issued.text, free.text


async def ask(serving, key, model, text):
    body = {"model": model, "messages": [{"role": "user", "content": text}]}
    headers = {"authorization": f"Bearer {key}"}
    return await serving.post("/v1/chat/completions", json=body, headers=headers)


async def test_a_clients_question_stays_in_the_house_and_is_checked(bank):
    serving, asked, key, _ = bank
    status, _, _ = await ask(serving, key, "batuta-ultra", f"What of {SECRET}?")
    assert status == 200
    assert [worker for worker, _ in asked] == ["house", "house-two", "house-two"]
    assert not any(SECRET in text for _, text in asked)
    assert (await ask(serving, key, "worker/cloud", "And now?"))[0] == 403
    assert CLOUD not in {worker for worker, _ in asked}


async def test_what_is_dear_waits_for_a_person_is_checked_and_is_in_the_trail(bank, store):
    serving, asked, _, key = bank
    answers = []

    async def send():
        answers.append(await ask(serving, key, "worker/cloud", LONG))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(send)
        while not (plans := await store.approvals.list()):
            await anyio.sleep(0.05)
        assert not asked and plans[0].rule == "above-a-dollar"
        body = {"decision": "approve", "digest": plans[0].digest}
        path = f"/v1/admin/approvals/{plans[0].id}"
        assert (await serving.post(path, json=body, headers=BOSS))[0] == 200
    [(status, headers, said)] = answers
    assert status == 200 and [worker for worker, _ in asked] == ["cloud", "house-two"]
    answer = said["choices"][0]["message"]["content"]
    assert answer == f"It is 42. Queen Mary said so. {MARK}"
    run = await store.get(headers["x-batuta-run-id"])
    done = [(act.policy, act.action, act.by) for act in run.guards]
    assert done[-2:] == [("above-a-dollar", "approved", "admin"), ("sources", "marked", "")]
    assert [step.worker for step in run.steps] == ["cloud", "house-two"]
    [record] = await store.audit.list(1, action="approval.")
    assert record.subject == run.id and (await store.audit.verify()).broken_at is None
    assert (await ask(serving, key, "worker/cloud", "How much is it?"))[0] == 200


def says(body):
    """What each model says: the checker holds to its form, the conductor writes a workflow."""
    text = json.dumps(body["messages"])
    if "response_format" in body and "verdicts" in json.dumps(body["response_format"]):
        prompt = body["messages"][-1]["content"]
        count = len(re.findall(r'<agent_response step="\d+">', prompt))
        rows = [{"claim": 1, "supported": "yes", "where": [1]}]
        rows += [{"claim": n, "supported": "no", "where": []} for n in range(2, count + 1)]
        return json.dumps({"verdicts": rows})
    if "access_list" in text:
        return 'model_id = [0, 1]\nsubtasks = ["Answer it.", "Check the answer."]\naccess_list = [[], [0]]'  # fmt: skip
    return "It is 42. Queen Mary said so."


async def test_the_sample_is_served_from_a_question_to_an_approved_checked_recorded_answer(
    tmp_path, command_line
):
    async with FakeOpenAI(says, check=False) as models:  # servers of the house ask for no key
        path = tmp_path / "bank.toml"
        path.write_text(re.sub(r'base_url = "[^"]+"', f'base_url = "{models.url}"', SAMPLE))
        home = {"BATUTA_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
        options = ("--pool", str(path))
        async with Server(tmp_path, *options, BATUTA_ADMIN_TOKEN=ADMIN) as server:

            async def send(method, path, body, key=ADMIN):
                headers = {"authorization": f"Bearer {key}"}
                async with server.http.request(method, path, json=body, headers=headers) as got:
                    return got.status, got.headers, await got.json()

            async def make_key(tenant, **limits):
                body = {"name": tenant, "tenant": tenant, "limits": limits}
                status, _, made = await send("POST", "/v1/admin/keys", body)
                assert status in {200, 201}, made
                return made["key"]

            async def question(key, model, text):
                body = {"model": model, "messages": [{"role": "user", "content": text}]}
                return await send("POST", "/v1/chat/completions", body, key)

            desk, press = await make_key("desk", tags=["client"]), await make_key("press")
            status, headers, said = await question(desk, "batuta-ultra", f"What of {SECRET}?")
            assert status == 200, said
            assert {one.body["model"] for one in models.requests} == {"qwen3-32b", "gemma-3-27b"}
            assert not any(SECRET in json.dumps(one.body) for one in models.requests)
            assert (await question(desk, "worker/cloud", "And now?"))[0] == 403
            before, answers = len(models.requests), []

            async def ask_dearly():
                answers.append(await question(press, "worker/cloud", LONG))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask_dearly)
                with anyio.fail_after(60):
                    while not (
                        plans := (await send("GET", "/v1/admin/approvals", None))[2]["data"]
                    ):
                        await anyio.sleep(0.1)
                [plan] = plans
                assert plan["rule"] == "above-a-dollar" and len(models.requests) == before
                decide = {"decision": "approve", "digest": plan["digest"]}
                place = f"/v1/admin/approvals/{plan['id']}"
                assert (await send("POST", place, decide, press))[0] in {401, 403}
                assert (await send("POST", place, decide))[0] == 200
                assert (await send("POST", place, decide))[0] == 409  # once
            [(status, headers, said)] = answers
            assert status == 200, said
            answer = said["choices"][0]["message"]["content"]
            assert answer == f"It is 42. Queen Mary said so. {MARK}"
            _, _, trail = await send("GET", "/v1/admin/audit?action=approval.", None)
            [record] = trail["data"]
            assert record["subject"] == headers["x-batuta-run-id"] and record["actor"] == "admin"
    verified = await anyio.to_thread.run_sync(
        lambda: command_line.run("audit", "verify", cwd=tmp_path, env=home)
    )
    assert verified.returncode == 0, verified.stderr
