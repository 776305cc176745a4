"""Rules for plans over HTTP: who may see what, what is sent back or refused, and what is told."""

from __future__ import annotations

from typing import Any

import pytest

from batuta.clients import ScriptedClient, WorkerSpec
from batuta.conductors import LLMConductor
from batuta.config.plan_rules import build_plan_rules
from batuta.config.settings import PlanRuleSetting
from batuta.core import Worker, WorkerId
from batuta.errors import ConfigError
from batuta.gateway.access.caller import Authenticator
from batuta.language.plan_rules import PlanRule, PlanRules
from batuta.store.key_hasher import KeyHasher
from batuta.store.key_permissions import KeyPermissions
from gateway.keyed_server import ADMIN
from gateway.live_server import HI, Serving, scripted_state

pytestmark = pytest.mark.anyio
ADA, BOB, CLEO = map(WorkerId, ("ada", "bob", "cleo"))
HOUSE = PlanRule(
    name="house", tag="patient", forbidden=(ADA,), says="Patients' questions stay in this house."
)
CHECKED = PlanRule(name="two-eyes", tag="ledger", needs_check=True)
NARROW = PlanRule(name="narrow", max_parallel=2)
ACME = PlanRule(name="acme", tenant="acme", forbidden=(BOB,))
RULES = PlanRules((HOUSE, CHECKED, NARROW, ACME))
ONE_STEP = 'model_id = [0]\nsubtasks = ["Solve it."]\naccess_list = [[]]'


class Place:
    """A server with three workers, which count who was asked, and keys of two tenants."""

    def __init__(self, store, **options) -> None:
        self.asked: list[str] = []
        self.store, self.hasher = store, KeyHasher(b"x" * 32)
        clients = {one: ScriptedClient(self.reply_of(one)) for one in ("ada", "bob", "cleo")}
        gate = Authenticator(store, self.hasher, ADMIN)
        state = scripted_state(
            clients, plan_rules=RULES, store=store, authenticator=gate, **options
        )
        self.serving = Serving(state)

    def reply_of(self, one):
        def reply(_):
            self.asked.append(one)
            return f"{one} says hello"

        return reply

    async def __aenter__(self):
        await self.serving.__aenter__()
        return self

    async def __aexit__(self, *error):
        return await self.serving.__aexit__(*error)

    async def key(self, tenant="zeta", **limits) -> dict[str, str]:
        limits = KeyPermissions(**limits)
        _, issued = await self.store.keys.create(self.hasher, tenant, "k", limits)
        return {"authorization": f"Bearer {issued.text}"}

    async def ask(self, key, model="batuta-ultra", path="/v1/chat/completions", **orchestration):
        body = {"model": model, "messages": HI, "orchestration": orchestration}
        status, _, got = await self.serving.post(path, json=body, headers=key)
        return status, got


def conducting(*texts: str) -> LLMConductor:
    left = list(texts)
    client = ScriptedClient(lambda _: left.pop(0) if len(left) > 1 else left[0])
    return LLMConductor(name="boss", client=client)


async def test_a_forbidden_worker_sees_no_question_of_the_tag_on_any_way(store):
    async with Place(store) as place:
        key = await place.key()
        hand = {"steps": [{"worker": "ada", "subtask": "x"}]}
        for model in ("batuta-mini", "batuta-ultra", "worker/ada", "worker/bob"):
            ways: list[dict[str, Any]] = [{}, {"workflow": hand}]
            ways += [{"workers_allow": ["ada"]}, {"workers_allow": ["ada", "bob"]}]
            for more in ways:
                await place.ask(key, model, tags=["Patient"], **more)
        assert place.asked and "ada" not in place.asked
        status, said = await place.ask(key, "worker/ada", tags=["patient"])
        assert status == 403 and said["error"]["code"] == "plan_rule"
        assert said["error"]["message"].endswith(": Patients' questions stay in this house.")
        status, said = await place.ask(key, tags=["patient"], workflow=hand)
        assert status == 422 and said["error"]["param"] == "orchestration.workflow"
        assert (await place.ask(key, "worker/ada", tags=["public"]))[0] == 200


async def test_the_tags_of_a_key_cannot_be_left_out(store):
    async with Place(store) as place:
        key = await place.key(tags=("patient",))
        for tags in ([], ["public"]):
            await place.ask(key, tags=tags)
            assert (await place.ask(key, "worker/ada", tags=tags))[0] == 403
        body = {"model": "batuta-ultra", "input": "hi", "orchestration": {"trace": True}}
        status, _, got = await place.serving.post("/v1/responses", json=body, headers=key)
        assert status == 200 and got["orchestration"]["header"]["question"]["tags"] == ["patient"]
        guards = got["orchestration"]["guards"]
        told = {"policy": "house", "where": "plan", "action": "left out", "count": 1, "by": ""}
        assert told in guards
        assert "ada" not in place.asked


async def test_a_rule_of_a_tenant_is_its_own(store):
    async with Place(store) as place:
        assert (await place.ask(await place.key("acme"), "worker/bob"))[0] == 403
        assert (await place.ask(await place.key("zeta"), "worker/bob"))[0] == 200


async def test_a_plan_is_repaired_or_refused_counted_and_paid(store):
    async with Place(store, conductor=conducting(ONE_STEP)) as place:
        key = await place.key()
        status, got = await place.ask(key, tags=["ledger"], trace=True)
        assert status == 200
        trace = got["orchestration"]
        assert [act["action"] for act in trace["guards"]] == ["sent back", "repaired"]
        assert [step["worker"] for step in trace["rounds"][0]["workflow"]["steps"]] == [
            "ada",
            "bob",
        ]
        status, said = await place.ask(key, tags=["ledger"], max_steps=1)
        assert status == 422 and said["error"]["code"] == "plan_rule"
        assert said["error"]["message"].startswith(
            "The rule two-eyes for plans: The last step must"
        )
        status, _ = await place.ask(key, "batuta-mini", tags=["ledger"])
        assert status == 422  # one worker alone is checked by nobody
        admin = {"authorization": f"Bearer {ADMIN}"}
        async with place.serving.http.get("/metrics", headers=admin) as response:
            metrics = await response.text()
    for action, times in (("sent back", 2), ("repaired", 1), ("refused", 2)):
        line = f'batuta_plan_rules_total{{action="{action}",rule="two-eyes"}} {times}.0'
        assert line in metrics, metrics


async def test_too_many_steps_at_once_by_hand_are_refused_before_anything_is_paid(store):
    async with Place(store) as place:
        key = await place.key()
        steps = [{"worker": one, "subtask": "x"} for one in ("ada", "bob", "cleo")]
        for dry_run in (False, True):
            status, said = await place.ask(key, workflow={"steps": steps}, dry_run=dry_run)
            assert status == 422 and not place.asked
            assert said["error"]["message"].endswith("At most 2 steps of a plan may run at the same time.")  # fmt: skip
        chained = [{**step, "access": list(range(n))} for n, step in enumerate(steps)]
        assert (await place.ask(key, workflow={"steps": chained}))[0] == 200


async def test_a_forbidden_model_conducts_nothing(store):
    worker = Worker(id=ADA, model="m")
    conductor = LLMConductor(name="ada", client=ScriptedClient(lambda _: ONE_STEP), worker=worker)
    async with Place(store, conductor=conductor) as place:
        key = await place.key()
        status, said = await place.ask(key, tags=["patient"])
        assert status == 403 and "Patients' questions" in said["error"]["message"]
        assert (await place.ask(key))[0] == 200


@pytest.mark.parametrize(
    "tags", ["patient", ["x" * 65], ["a b"], [""], [3], ["t"] * 17, ["-a"], [["patient"]]]
)
async def test_what_is_no_tag_is_refused(store, tags):
    async with Place(store) as place:
        status, said = await place.ask(await place.key(), tags=tags)
        assert status == 400 and said["error"]["param"].startswith("orchestration.tags")


@pytest.mark.parametrize("names", [["a", "tag:typo"], ["tag:typo", "a"], ["tag:typo"], ["b"]])
def test_each_name_of_a_rule_names_a_worker(names):
    """A misspelt tag would leave the rule weaker than it reads."""
    rule = PlanRuleSetting.model_validate({"name": "r", "forbid_workers": names})
    worker = Worker(id=WorkerId("a"), model="m", tags=("cheap",))
    with pytest.raises(ConfigError, match=r"plan_rules r: .*(typo|'b')"):
        build_plan_rules([rule], [worker], [WorkerSpec(worker=worker)])
