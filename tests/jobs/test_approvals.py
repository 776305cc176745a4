"""Plans of background responses whose server is killed: what somebody edited and approved goes on."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
from collections import Counter

import anyio
import pytest

from fakes.openai import FakeOpenAI
from fakes.server import KEY
from fakes.serving import Server

pytestmark = pytest.mark.anyio
BOSS = {"authorization": "Bearer the-admins-own-token"}
ENVIRON = {
    "BATUTA_SECRET": "s" * 32,
    "BATUTA_ADMIN_TOKEN": "the-admins-own-token",
    "PROVIDER_KEY": KEY,
}
SETTINGS = """
[conductor]
worker = "vote"

[[approvals]]
name = "four-eyes"
"""
WORKER = """
[[workers]]
id = "{id}"
provider = "compatible"
base_url = "{url}"
key_env = "PROVIDER_KEY"
model = "m-{id}"
price = {{ input = 1, output = 2 }}
"""
ASK = {"model": "batuta-ultra", "input": "What is it?", "background": True}
STEPS = [
    {"worker": "bob", "subtask": "Solve it.", "access": []},
    {"worker": "ada", "subtask": "Say it.", "access": [0]},
]


class Provider(FakeOpenAI):
    """Counts each model's calls; one model's wait while its gate is closed."""

    def __init__(self):
        super().__init__(lambda body: f"{body['model']} said it", strict_openai=False)
        self.calls = Counter()
        self.gate, self.reached = asyncio.Event(), asyncio.Event()

    async def handle(self, request):
        model = (await request.json())["model"]
        self.calls[model] += 1
        if model == "m-ada":
            self.reached.set()
            await self.gate.wait()
        return await super().handle(request)


class Place:
    """A folder with settings, and the servers that are started one after the other in it."""

    def __init__(self, folder, provider):
        self.folder, self.url = folder, provider.url
        self.write()

    def write(self, more=""):
        text = "".join(WORKER.format(id=name, url=self.url) for name in ("ada", "bob", "cyd"))
        (self.folder / "batuta.toml").write_text(SETTINGS + more + text)

    def server(self):
        return Server(self.folder, "--pool", str(self.folder / "batuta.toml"), **ENVIRON)


async def say(server, path, body, headers=BOSS):
    async with server.http.post(path, json=body, headers=headers) as response:
        told = await response.json()
        assert response.status in {200, 201}, told
        return told


async def begun(server):
    """A response in the background, and the key of its caller."""
    made = await say(server, "/v1/admin/keys", {"name": "k", "tenant": "acme"})
    caller = {"authorization": f"Bearer {made['key']}"}
    return (await say(server, "/v1/responses", ASK, caller))["id"], caller


async def waiting(server, **wanted):
    """The plan that waits, once it is so."""
    with anyio.fail_after(60):
        while True:
            async with server.http.get("/v1/admin/approvals", headers=BOSS) as response:
                found = (await response.json())["data"]
            if found and all(found[0][name] == value for name, value in wanted.items()):
                return found[0]
            await anyio.sleep(0.1)


async def decide(server, plan, decision, **more):
    body = {"decision": decision, "digest": plan["digest"], **more}
    return await say(server, f"/v1/admin/approvals/{plan['id']}", body)


async def ending(server, name, caller):
    with anyio.fail_after(60):
        while True:
            async with server.http.get(f"/v1/responses/{name}", headers=caller) as response:
                body = await response.json()
            if body["status"] not in {"queued", "in_progress"}:
                break
            await anyio.sleep(0.1)
    async with server.http.get(f"/v1/runs/run_{name.split('_')[1]}", headers=caller) as response:
        return body, (await response.json())["trace"]


def kept(folder):
    """What the database has of the plan."""
    path = next(folder.rglob("runs.db"))
    with sqlite3.connect(path) as base:
        base.row_factory = sqlite3.Row
        return dict(base.execute("SELECT * FROM approvals").fetchone())


def acts(run):
    return [(act["action"], act.get("by", "")) for act in run["guards"]]


async def test_a_plan_that_was_edited_waits_on_as_it_was_edited(tmp_path):
    async with Provider() as provider:
        provider.gate.set()
        place = Place(tmp_path, provider)
        async with place.server() as server:
            name, caller = await begun(server)
            first = await waiting(server)
            await decide(server, first, "edit", steps=STEPS)
            plan = await waiting(server, steps=STEPS)
            await server.end(signal.SIGKILL)
        async with place.server() as server:
            again = await waiting(server)
            assert (again["digest"], again["steps"]) == (plan["digest"], STEPS)
            assert again["edited_by"] == "admin" and again["created"] == plan["created"]
            await anyio.sleep(1)  # its run has taken it up, and looks at it
            assert (await waiting(server))["digest"] == plan["digest"] and not provider.calls
            await decide(server, again, "approve")
            body, run = await ending(server, name, caller)
    assert body["status"] == "completed" and provider.calls == {"m-bob": 1, "m-ada": 1}
    assert acts(run)[-2:] == [("edited", "admin"), ("approved", "admin")]
    assert kept(tmp_path)["steps"] == ""


async def test_an_edited_plan_that_was_approved_goes_on_and_asks_nobody_again(tmp_path):
    async with Provider() as provider:
        place = Place(tmp_path, provider)
        async with place.server() as server:
            name, caller = await begun(server)
            await decide(server, await waiting(server), "edit", steps=STEPS)
            await decide(server, await waiting(server, steps=STEPS), "approve")
            with anyio.fail_after(60):
                await provider.reached.wait()
            await server.end(signal.SIGKILL)
        assert kept(tmp_path)["state"] == "approved" and kept(tmp_path)["plan"] == ""
        provider.gate.set()
        async with place.server() as server:
            body, run = await ending(server, name, caller)
    assert body["status"] == "completed", body
    assert provider.calls == {"m-bob": 1, "m-ada": 2}, "only the call in flight is paid again"
    assert [step["worker"] for step in run["rounds"][0]["workflow"]["steps"]] == ["bob", "ada"]
    assert acts(run)[-2:] == [("edited", "admin"), ("approved", "admin")]


async def test_an_approved_plan_that_a_new_rule_forbids_waits_anew_as_it_was_written(tmp_path):
    async with Provider() as provider:
        place = Place(tmp_path, provider)
        async with place.server() as server:
            name, caller = await begun(server)
            first = await waiting(server)
            steps = [*STEPS[:1] * 4, {"worker": "ada", "subtask": "Say.", "access": [0, 1, 2, 3]}]
            await decide(server, first, "edit", steps=steps)
            await decide(server, await waiting(server, steps=steps), "approve")
            with anyio.fail_after(60):
                await provider.reached.wait()
            await server.end(signal.SIGKILL)
        place.write('[[plan_rules]]\nname = "narrow"\nmax_parallel = 3\n')
        async with place.server() as server:
            plan = await waiting(server)
            assert "may not be run any more: it breaks the rule narrow" in plan["reason"]
            assert (plan["digest"], plan["edited_by"]) == (first["digest"], "")
            await decide(server, plan, "refuse", reason="ask again")
            body, _ = await ending(server, name, caller)
    assert body["status"] == "failed" and "ask again" in body["error"]["message"]
