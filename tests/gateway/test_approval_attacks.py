"""Attacks on approvals: plans that may not be, forms of others, long texts, and who is nobody here."""

from __future__ import annotations

import os
from decimal import Decimal
from functools import partial

import anyio
import anyio.to_thread
import pytest

from batuta.core import Reply, WorkerId
from batuta.language.plan_rules import PlanRule, PlanRules
from batuta.store.key_permissions import KeyPermissions
from batuta.usage import Cost, Usage
from gateway.keyed_server import ADMIN
from gateway.live_server import HI
from gateway.test_approvals import PLANS, STEPS, Place, ask_ultra, edited, plan_of, send, show

pytestmark = pytest.mark.anyio
RULES = PlanRules(
    (
        PlanRule(name="no-bob", tag="ledger", forbidden=(WorkerId("bob"),), says="Not Bob."),
        PlanRule(name="narrow", max_parallel=1),
    )
)
WIDE = [{"worker": "ada", "subtask": word} for word in "ab"] + [{"worker": "ada", "access": [0, 1]}]


@pytest.mark.parametrize(("steps", "why"), [(STEPS, "no-bob: Not Bob."), (WIDE, "narrow: ")])
async def test_an_edit_that_breaks_a_rule_for_plans_is_not_taken(store, steps, why):
    async with Place(store, plan_rules=RULES) as place, anyio.create_task_group() as tasks:
        tasks.start_soon(ask_ultra, place)
        plan = await place.waiting()
        now = await edited(place, plan, steps)
        assert f"it breaks the rule {why}" in now["reason"] and now["digest"] == plan["digest"]
        await place.decide(now, "refuse")
    assert place.called == 0


async def test_an_edit_that_is_dearer_than_the_run_may_cost_is_not_taken(store):
    async with Place(store) as place, anyio.create_task_group() as tasks:
        options = {"tags": ["ledger"], "max_cost_usd": 0.002}
        tasks.start_soon(partial(place.ask, model="batuta-ultra", orchestration=options))
        plan = await place.waiting()
        now = await edited(place, plan, STEPS)
        assert "where $0.0020 are allowed" in now["reason"] and now["digest"] == plan["digest"]
        await place.decide(now, "refuse")
    assert place.called == 0


async def test_an_edited_plan_is_held_to_its_keys_budget(store):
    """The plan waited with what its run could cost at least; each dear call takes more."""
    async with Place(store) as place, anyio.create_task_group() as tasks:
        budget = Decimal("0.006")
        _, issued = await store.keys.create(
            place.hasher, "acme", "poor", KeyPermissions(per_day=budget)
        )
        place.key = {"authorization": f"Bearer {issued.text}"}
        dear = Reply(text="Hello there.", usage=Usage(input=9, output=3), cost=Cost(budget / 2))
        place.answer = dear
        tasks.start_soon(ask_ultra, place)
        now = await edited(place, await place.waiting(), STEPS)
        assert (await place.decide(now))[0] == 200
    assert 0 < place.called < len(STEPS)
    run = await store.get(now["run_id"])
    assert run.cost.usd <= budget and run.limit is not None


async def test_forms_of_others_decide_nothing(store):
    """A browser that is signed in posts what another site's page says."""
    async with Place(store) as place, anyio.create_task_group() as tasks:
        tasks.start_soon(place.ask)
        plan = await place.waiting()
        http = place.serving.http
        async with http.get("/ui/sign-in") as response:
            token = (await response.text()).split('name="token" value="')[1].split('"')[0]
        form = {"token": token, "key": ADMIN}
        async with http.post("/ui/sign-in", data=form, allow_redirects=False) as response:
            cookie = response.headers["set-cookie"]
        assert "SameSite=strict" in cookie and "HttpOnly" in cookie and "Path=/ui" in cookie
        own = {"cookie": cookie.partition(";")[0]}
        session = {**own, "origin": "https://evil.example"}
        form = {"digest": plan["digest"], "decision": "approve"}
        address = f"/ui/approvals/{plan['id']}"
        for body in (form, {**form, "token": ""}, {**form, "token": token}):
            async with http.post(address, data=body, headers=session) as response:
                assert response.status == 403
        async with http.post(f"{PLANS}/{plan['id']}", json=form, headers=session) as response:
            assert response.status == 403
        async with http.get("/ui/approvals", headers=own) as response:
            assert response.status == 200 and response.headers["x-frame-options"] == "DENY"
            assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
        assert (await place.waiting())["digest"] == plan["digest"] and place.called == 0
        await place.decide(plan, "refuse")


async def test_a_tenants_key_neither_sees_nor_decides_anybodys_plans(store):
    await store.approvals.ask(plan_of(1, tenant="zeta"))
    async with Place(store) as place:
        body = {"decision": "approve", "digest": "d"}
        for headers in (place.key, {}):
            status, _, said = await place.serving.post(f"{PLANS}/run_1:0", json=body, headers=headers)  # fmt: skip
            assert status in {401, 403} and "secret" not in str(said)
            assert "secret" not in str(await place.plans(headers))
        assert (await show(place, place.key))[0] == 404
        assert await send(place, {"id": "run_1:0"}, body) == 403  # no token
    assert (await store.approvals.get("run_1:0")).state == "waiting"


LONG, WICKED = "x" * 501, "\x1b[31mred\x1b]0;title\x07"


async def test_a_long_reason_is_refused_on_every_way_and_signs_reach_no_terminal(
    store, tmp_path, command_line
):
    clean = {k: v for k, v in os.environ.items() if "BATUTA" not in k and "API_KEY" not in k}
    env = {**clean, "BATUTA_HOME": str(tmp_path)}

    async def command(*words):
        run = partial(command_line.run, *words, stdin=None, cwd=tmp_path, env=env)
        return await anyio.to_thread.run_sync(run)

    async with Place(store) as place, anyio.create_task_group() as tasks:
        tasks.start_soon(place.ask)
        plan = await place.waiting()
        assert (await place.decide(plan, "refuse", reason=LONG))[0] == 400
        told = await command("runs", "refuse", plan["id"], plan["digest"], "--reason", LONG)
        assert told.returncode == 2 and "at most 500" in told.stderr
        assert (await place.decide(plan, "refuse", reason=WICKED))[0] == 200
    [(status, _, said)] = place.answers
    assert status == 403 and "red" in said["error"]["message"]
    await store.flush()
    told = await command("runs", "show", plan["run_id"])
    assert "red" in told.stdout and "\x1b" not in told.stdout.replace("\x1b[0m", "")


async def test_what_is_left_out_of_a_long_question_is_said(store):
    async with Place(store) as place, anyio.create_task_group() as tasks:
        question = "Add it up. " * 400 + "Then pay it."
        tasks.start_soon(partial(place.ask, messages=[{**HI[0], "content": question}]))
        plan = await place.waiting()
        assert plan["question"].endswith("[… and 2412 more characters]")
        await place.decide(plan, "refuse")
