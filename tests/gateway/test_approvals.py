"""Approval over HTTP: who may give it, once, for the plan that was shown."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from decimal import Decimal
from functools import partial
from types import SimpleNamespace

import anyio
import anyio.to_thread
import pytest
from sqlalchemy import update

from batuta.clients import ScriptedClient
from batuta.core import Limits, Question, Reply, RunId, Step, WorkerId, Workflow
from batuta.engine.approval_request import ApprovalRequest
from batuta.gateway.access.caller import Authenticator
from batuta.gateway.serving.approvals import open_approver
from batuta.language.approval_rules import ApprovalRule
from batuta.store import Store
from batuta.store.approvals import MAX_LISTED, MAX_WAITING, WAITING, ApprovalError, PendingPlan
from batuta.store.key_hasher import KeyHasher
from batuta.store.key_permissions import KeyPermissions
from batuta.store.models import APPROVALS
from gateway.keyed_server import ADMIN
from gateway.live_server import HI, Serving, scripted_state

pytestmark = pytest.mark.anyio
RULE = ApprovalRule(name="four-eyes", tag="ledger")
BRIEF = ApprovalRule(name="brief", tag="brief", expires_s=0.2)
BOSS = {"authorization": f"Bearer {ADMIN}"}
PLANS = "/v1/admin/approvals"


class Place:
    """A server where questions about the ledger need approval."""

    def __init__(self, store, **options) -> None:
        self.store, self.hasher, self.called = store, KeyHasher(b"x" * 32), 0
        self.answer: str | Reply = "Hello there."
        gate = Authenticator(store, self.hasher, ADMIN)
        clients = {one: ScriptedClient(self.reply) for one in ("ada", "bob")}
        state = scripted_state(
            clients,
            approvals=(RULE, BRIEF),
            store=store,
            authenticator=gate,
            limits={"ultra": Limits(steps=4)},
            **options,
        )
        self.serving = Serving(state)
        self.answers: list = []

    def reply(self, _):
        self.called += 1
        return self.answer

    async def __aenter__(self):
        _, issued = await self.store.keys.create(self.hasher, "acme", "k", KeyPermissions())
        self.key = {"authorization": f"Bearer {issued.text}"}
        await self.serving.__aenter__()
        return self

    async def __aexit__(self, *error):
        return await self.serving.__aexit__(*error)

    async def ask(self, tag="ledger", **more):
        body = {"model": "worker/ada", "messages": HI, "orchestration": {"tags": [tag]}, **more}
        path = "/v1/chat/completions"
        self.answers.append(await self.serving.post(path, json=body, headers=self.key))

    async def plans(self, headers=BOSS):
        async with self.serving.http.get(PLANS, headers=headers) as response:
            return response.status, await response.json()

    async def waiting(self):
        while True:
            _, got = await self.plans()
            if got["data"]:
                return got["data"][0]
            await anyio.sleep(0.05)

    async def decide(self, plan, decision="approve", headers=BOSS, **more):
        body = {"decision": decision, "digest": plan["digest"], **more}
        return await self.serving.post(f"{PLANS}/{plan['id']}", json=body, headers=headers)


async def test_a_plan_waits_and_runs_once_an_administrator_approves_it(store):
    async with Place(store) as place, anyio.create_task_group() as tasks:
        tasks.start_soon(place.ask)
        plan = await place.waiting()
        assert place.called == 0 and plan["rule"] == "four-eyes" and plan["tenant"] == "acme"
        assert plan["question"] and plan["steps"][0]["worker"] == "ada"
        for headers in (place.key, {}):
            assert (await place.plans(headers))[0] in {401, 403}
            assert (await place.decide(plan, headers=headers))[0] in {401, 403}
        status, _, said = await place.decide({**plan, "digest": "0" * 64})
        assert status == 409 and "has changed since it was shown" in said["error"]["message"]
        status, _, done = await place.decide(plan)
        assert status == 200 and done["state"] == "approved" and done["by"] == "admin"
        assert "question" not in done and "steps" not in done
        status, _, said = await place.decide(plan, "refuse")
        assert status == 409 and "approved already" in said["error"]["message"]
    assert [status for status, _, _ in place.answers] == [200] and place.called == 1
    [record] = await store.audit.list(5, action="approval.")
    assert record.action == "approval.approved" and record.subject == plan["run_id"]
    assert json.loads(record.details)["digest"] == plan["digest"]
    run = await store.get(plan["run_id"])
    assert [(act.action, act.by) for act in run.guards][-1] == ("approved", "admin")


async def test_a_stream_says_that_it_waits(store):
    async with Place(store) as place:
        said = ""
        body = {"model": "batuta-ultra", "messages": HI, "stream": True}
        body["orchestration"] = {"tags": ["ledger"]}
        address = "/v1/chat/completions"
        async with place.serving.http.post(address, json=body, headers=place.key) as response:
            async for line in response.content:
                said += line.decode()
                if "waits for somebody's approval (four-eyes)" in said and not place.called:
                    await place.decide(await place.waiting())
                    break
            said += (await response.content.read()).decode()
        assert said.count("waits for somebody's approval (four-eyes)") == 1
        assert "[DONE]" in said and "error" not in said and place.called == 2


async def test_a_refused_plan_calls_nobody_and_says_why(store):
    async with Place(store) as place, anyio.create_task_group() as tasks:
        tasks.start_soon(place.ask)
        await place.decide(await place.waiting(), "refuse", reason="too dear")
    [(status, _, said)] = place.answers
    assert status == 403 and said["error"]["code"] == "approval_refused"
    assert "too dear" in said["error"]["message"] and place.called == 0


async def test_what_nobody_looks_at_expires(store):
    async with Place(store) as place:
        await place.ask("brief")
        [(_, _, said)] = place.answers
        assert said["error"]["code"] == "approval_expired" and place.called == 0
        assert (await place.plans())[1]["data"] == []
    assert all(not plan.plan for plan in await store.approvals.list(waiting=False))


async def test_the_page_shows_the_plan_and_takes_the_verdict(store):
    async with Place(store) as place, anyio.create_task_group() as tasks:
        tasks.start_soon(place.ask)
        plan = await place.waiting()
        assert (await show(place, place.key))[0] == 404
        status, page = await show(place, BOSS)
        assert status == 200 and plan["digest"] in page and "four-eyes" in page
        token = page.split('name="token" value="')[1].split('"')[0]
        form = {"digest": plan["digest"], "decision": "approve"}
        assert await send(place, plan, {**form, "token": "forged"}) == 403
        assert await send(place, plan, {**form, "token": token}) == 303
    assert place.answers[0][0] == 200


async def show(place, headers):
    async with place.serving.http.get("/ui/approvals", headers=headers) as response:
        return response.status, await response.text()


async def send(place, plan, form):
    address = f"/ui/approvals/{plan['id']}"
    async with place.serving.http.post(
        address, data=form, headers=BOSS, allow_redirects=False
    ) as response:
        return response.status


async def test_who_leaves_takes_the_plan_along(store):
    async with Place(store) as place, anyio.create_task_group() as tasks:
        tasks.start_soon(place.ask)
        plan = await place.waiting()
        tasks.cancel_scope.cancel()
    found = await store.approvals.get(plan["id"])
    assert found.state == "withdrawn" and found.plan == "" and place.called == 0


async def test_other_questions_do_not_wait(store):
    async with Place(store) as place:
        await place.ask("public")
        assert place.answers[0][0] == 200
        assert await store.approvals.list(waiting=False) == []


def plan_of(number: int, tenant="acme", digest="d", lasts=60.0) -> PendingPlan:
    return PendingPlan(
        id=f"run_{number}:0",
        run_id=f"run_{number}",
        tenant=tenant,
        rule="r",
        digest=digest,
        plan='{"question": "secret"}',
        usd="0",
        state=WAITING,
        created=1e9,
        expires=4e9 if lasts > 0 else 1e9,
    )


async def test_a_tenant_cannot_flood_the_list(store):
    for number in range(MAX_WAITING):
        await store.approvals.ask(plan_of(number))
    with pytest.raises(ApprovalError, match="wait for approval already"):
        await store.approvals.ask(plan_of(99))
    await store.approvals.ask(plan_of(100, tenant="zeta"))


async def test_an_approval_survives_a_restart_and_is_for_one_plan(tmp_path):
    path = tmp_path / "runs.db"
    async with Store.open(path) as store:
        await store.approvals.ask(plan_of(1))
        await store.approvals.decide("run_1:0", "d", approved=True, by="admin")
    async with Store.open(path) as store:
        assert (await store.approvals.ask(plan_of(1))).state == "approved"
        other = await store.approvals.ask(plan_of(1, digest="edited"))
        assert other.state == WAITING and other.digest == "edited"
        with pytest.raises(ApprovalError, match="has changed since it was shown"):
            await store.approvals.decide("run_1:0", "d", approved=True, by="admin")


async def test_what_has_expired_cannot_be_approved(store):
    await store.approvals.ask(plan_of(1, lasts=0))
    with pytest.raises(ApprovalError, match="expired already"):
        await store.approvals.decide("run_1:0", "d", approved=True, by="admin")
    assert await store.audit.list(5, action="approval.") == []


async def test_two_who_decide_at_once_decide_once(store):
    await store.approvals.ask(plan_of(1))
    ended: list[str] = []

    async def decide(approved):
        try:
            done = await store.approvals.decide("run_1:0", "d", approved=approved, by="admin")
        except ApprovalError:
            return
        ended.append(done.state)

    async with anyio.create_task_group() as tasks:
        for approved in (True, False, True, False):
            tasks.start_soon(decide, approved)
    assert len(ended) == 1 and len(await store.audit.list(9, action="approval.")) == 1


async def test_a_deleted_tenants_plans_are_gone(store):
    await store.approvals.ask(plan_of(1))
    await store.forgetting.forget_tenant("acme")
    assert await store.approvals.list(waiting=False) == []


STEPS = [
    {"worker": "bob", "subtask": "Solve it.", "access": []},
    {"worker": "ada", "subtask": "Check it.", "access": [0]},
    {"worker": "ada", "subtask": "Say it.", "access": [0, 1]},
]


async def ask_ultra(place):
    await place.ask(model="batuta-ultra")


async def edited(place, plan, steps, **more):
    """The plan that waits after an edit."""
    status, _, _ = await place.decide(plan, "edit", steps=steps, **more)
    assert status == 200
    while True:
        now = await place.waiting()
        if now["digest"] != plan["digest"] or now["reason"]:
            return now
        await anyio.sleep(0.05)


async def test_an_edited_plan_waits_anew_and_is_what_is_carried_out(store):
    async with Place(store) as place, anyio.create_task_group() as tasks:
        tasks.start_soon(ask_ultra, place)
        plan = await place.waiting()
        now = await edited(place, plan, STEPS)
        assert place.called == 0 and now["steps"] == STEPS and now["digest"] != plan["digest"]
        assert float(now["expected_cost_usd"]) > float(plan["expected_cost_usd"])
        assert (await place.decide(plan))[0] == 409  # what was shown before is not what waits
        assert (await place.decide(now))[0] == 200
        status, _, said = await place.decide(now, "edit", steps=STEPS)
        assert status == 409 and "approved already" in said["error"]["message"]
    assert place.answers[0][0] == 200 and place.called == 3
    run = await store.get(plan["run_id"])
    assert [step.worker for step in run.rounds[0].workflow.steps] == ["bob", "ada", "ada"]
    assert [step.worker for step in run.steps] == ["bob", "ada", "ada"] and len(run.rounds) == 1
    records = await store.audit.list(5, action="approval.")
    assert [each.action for each in records] == ["approval.approved", "approval.edited"]
    assert [json.loads(each.details)["digest"] for each in records] == [now["digest"], plan["digest"]]  # fmt: skip


@pytest.mark.parametrize(
    ("steps", "why"),
    [([{"worker": "zoe"}], "no worker here has the id"), (STEPS[:1] * 5, "steps where 4 are allowed"),
     ([{"worker": "ada", "previous": True}], "no previous round")],
)  # fmt: skip
async def test_an_edit_that_may_not_be_run_is_not_taken_and_says_why(store, steps, why):
    async with Place(store) as place, anyio.create_task_group() as tasks:
        tasks.start_soon(ask_ultra, place)
        plan = await place.waiting()
        now = await edited(place, plan, steps)
        assert why in now["reason"] and now["digest"] == plan["digest"]
        await place.decide(now)
    assert place.answers[0][0] == 200 and place.called == 2


@pytest.mark.parametrize(
    "steps",
    [[], [{"worker": 3}], [{"worker": "ada", "access": [0]}], [{"worker": "ada", "x": 1}], [7]],
)
async def test_an_edit_that_is_no_plan_is_refused(store, steps):
    await store.approvals.ask(plan_of(1))
    async with Place(store) as place:
        status, _, said = await place.decide({"id": "run_1:0", "digest": "d"}, "edit", steps=steps)
    assert status == 400 and said["error"]["param"] == "steps"
    assert (await store.approvals.get("run_1:0")).edit == ""


@pytest.mark.parametrize("decision", ["approve", "refuse"])
async def test_a_decision_with_steps_or_unknown_fields_is_not_taken_without_them(store, decision):
    """Whoever sends steps with an approval means those, and not the plan without them."""
    await store.approvals.ask(plan_of(1))
    async with Place(store) as place:
        for extra in ({"steps": STEPS}, {"steps": []}, {"edit": STEPS}, {"reasons": "none"}):
            status, _, said = await place.decide(
                {"id": "run_1:0", "digest": "d"}, decision, **extra
            )
            assert status == 400 and said["error"]["param"] == next(iter(extra)), extra
        status, _, said = await place.decide({"id": "run_1:0", "digest": "d"}, "edit")
        assert status == 400 and said["error"]["param"] == "steps"
    found = await store.approvals.get("run_1:0")
    assert found.state == "waiting" and found.edit == ""


async def test_a_plan_that_is_changed_after_its_approval_is_not_carried_out(store):
    """Whoever can write the table puts other steps, or another digest, in the place of what was approved."""
    async with Place(store) as place, anyio.create_task_group() as tasks:
        tasks.start_soon(ask_ultra, place)
        plan = await place.waiting()
        await place.decide(plan)
        found = await store.approvals.get(plan["id"])
        forged = replace(found, digest="f" * 64, edit=json.dumps(STEPS))
        values = {"digest": forged.digest, "edit": forged.edit}
        await store.database.run_write(lambda it: it.execute(update(APPROVALS).values(values)))
    assert place.answers[0][0] == 403 and place.called == 0


async def test_the_page_edits_a_plan(store):
    async with Place(store) as place, anyio.create_task_group() as tasks:
        tasks.start_soon(ask_ultra, place)
        plan = await place.waiting()
        _, page = await show(place, BOSS)
        token = page.split('name="token" value="')[1].split('"')[0]
        assert "Steps as JSON" in page
        assert f"<strong>1. {plan['steps'][0]['worker']}</strong>" in page, (
            "steps are read by number"
        )
        assert '<p class="waiting" dir="auto">' in page
        form = {"digest": plan["digest"], "decision": "edit", "token": token, "steps": json.dumps(STEPS)}  # fmt: skip
        assert await send(place, plan, form) == 303
        while (now := await place.waiting())["digest"] == plan["digest"]:
            await anyio.sleep(0.05)
        form = {"digest": now["digest"], "decision": "approve", "token": token}
        assert await send(place, plan, form) == 303
    assert place.answers[0][0] == 200 and place.called == 3


@pytest.mark.parametrize("more", [0, 2])
async def test_every_list_says_whether_more_plans_wait(store, tmp_path, command_line, more):
    clean = {k: v for k, v in os.environ.items() if "BATUTA" not in k and "API_KEY" not in k}
    env = {**clean, "BATUTA_HOME": str(tmp_path)}
    plans = [plan_of(number, f"t{number // MAX_WAITING}") for number in range(MAX_LISTED + more)]
    for plan in plans:
        whole = '{"question": "Which?", "steps": [], "tools": []}'
        await store.approvals.ask(replace(plan, plan=whole))
    async with Place(store) as place:
        _, first = await place.plans()
        found = first["data"]
        assert (len(found), first["has_more"]) == (MAX_LISTED, more > 0)
        if more:
            query = {"after": first["next_cursor"], "limit": "1"}
            async with place.serving.http.get(PLANS, params=query, headers=BOSS) as response:
                second = await response.json()
            query["after"] = second["next_cursor"]
            async with place.serving.http.get(PLANS, params=query, headers=BOSS) as response:
                third = await response.json()
            assert (second["has_more"], third["has_more"]) == (True, False)
            found += second["data"] + third["data"]
        assert {each["id"] for each in found} == {plan.id for plan in plans}
        assert len(found) == len(plans)
        async with place.serving.http.get(f"{PLANS}?after=x", headers=BOSS) as response:
            assert response.status == 400
        status, page = await show(place, BOSS)
        assert status == 200 and ("more are waiting" in page) == (more > 0)
    run = partial(command_line.run, "runs", "waiting", stdin=None, cwd=tmp_path, env=env)
    done = await anyio.to_thread.run_sync(run)
    assert done.returncode == 0 and done.stdout.count("until") == MAX_LISTED
    assert ("more are waiting" in done.stderr) == (more > 0)


async def test_the_command_edits_and_approves_at_once(store, tmp_path, command_line):
    clean = {k: v for k, v in os.environ.items() if "BATUTA" not in k and "API_KEY" not in k}
    env = {**clean, "BATUTA_HOME": str(tmp_path)}
    file = tmp_path / "plan.json"

    async def approve(plan, steps):
        file.write_text(json.dumps(steps))
        arguments = ("runs", "approve", plan["id"], plan["digest"][:12], "--edit", str(file))
        run = partial(command_line.run, *arguments, stdin=None, cwd=tmp_path, env=env)
        return await anyio.to_thread.run_sync(run)

    async with Place(store) as place, anyio.create_task_group() as tasks:
        tasks.start_soon(ask_ultra, place)
        plan = await place.waiting()
        wrong = await approve(plan, [{"worker": "zoe"}])
        assert wrong.returncode == 2 and "no worker here has the id" in wrong.stderr
        done = await approve(plan, STEPS)
        assert done.returncode == 0 and "expected $" in done.stdout and "approved" in done.stdout
    assert place.answers[0][0] == 200 and place.called == 3


async def test_a_clock_that_goes_back_lets_no_plan_wait_for_longer(store):
    """The plan was put down by a clock that was years ahead; the server was started again since."""
    workflow = Workflow((Step(subtask="", worker=WorkerId("ada")),))
    request = ApprovalRequest(
        run_id=RunId("run_1"), round=0, rule="r", question=Question.of("?"), workflow=workflow,
        usd=Decimal(0), expires_in=0.2,
    )  # fmt: skip
    await store.approvals.ask(plan_of(1, digest=request.digest))
    prepared = SimpleNamespace(caller=SimpleNamespace(tenant="acme"), will_resume=lambda: True)
    with anyio.fail_after(60):
        verdict = await open_approver(store, prepared)(request)  # pyright: ignore[reportArgumentType]
    assert verdict.state == "expired"


async def test_an_administrator_who_deletes_a_run_cannot_delete_that_it_was(store):
    async with Place(store) as place, anyio.create_task_group() as tasks:
        tasks.start_soon(place.ask)
        plan = await place.waiting()
        await place.decide(plan)
        while not place.answers:
            await anyio.sleep(0.05)
        address = f"/v1/runs/{plan['run_id']}"
        async with place.serving.http.delete(address, headers=BOSS) as response:
            assert response.status < 300
        async with place.serving.http.delete("/v1/admin/audit", headers=BOSS) as response:
            assert response.status == 405
    assert await store.get(plan["run_id"]) is None
    records = [one for one in await store.audit.list(9) if one.subject == plan["run_id"]]
    assert [one.action for one in records] == ["run.deleted", "approval.approved"]
    assert (await store.audit.verify()).broken_at is None
