"""Guardrails hold for the methods of others too: what they ask, what they say, what they choose."""

from __future__ import annotations

import pytest

from batuta.clients import ScriptedClient
from batuta.guardrails import Guardrail, GuardrailAction, Guardrails, GuardrailStage
from batuta.guardrails.detectors import DetectorOptions, build_detector
from batuta.lab.baselines.registry import BASELINES
from gateway.live_server import Serving
from gateway.test_baselines import app_state
from gateway.test_strict_requests import SECRET

pytestmark = pytest.mark.anyio
METHODS = sorted(each.default_name for each in BASELINES if each.build)


def guarded(stage, action):
    detect = build_detector("secrets", DetectorOptions())
    policy = Guardrail(name="no-keys", detect=detect, stages=frozenset({stage}), action=action)
    return Guardrails([policy])


class Heard:
    def __init__(self, says):
        self.requests, self.says = [], says

    def __call__(self, request):
        self.requests.append(str(request.messages))
        return f"The solution is right.\nAnswer: {self.says}"

    def server(self, policies, store=None):
        clients = {name: ScriptedClient(self) for name in ("ada", "bob", "eve")}
        return Serving(app_state(clients=clients, guardrails=policies, store=store))


def ask(method, text):
    return {"model": f"baseline/{method}", "messages": [{"role": "user", "content": text}]}


@pytest.mark.parametrize("method", METHODS)
async def test_a_question_that_is_forbidden_is_asked_of_nobody(method):
    heard = Heard("42")
    async with heard.server(guarded(GuardrailStage.INPUT, GuardrailAction.BLOCK)) as server:
        status, _, said = await server.post(json=ask(method, f"Is {SECRET} good?"))
    assert (status, said["error"]["code"]) == (400, "policy_blocked")
    assert heard.requests == []


@pytest.mark.parametrize("method", METHODS)
async def test_what_is_redacted_is_shown_to_nobody(method, store):
    heard = Heard("42")
    redact = guarded(GuardrailStage.INPUT, GuardrailAction.REDACT)
    async with heard.server(redact, store) as server:
        status, headers, _ = await server.post(json=ask(method, f"Is {SECRET} good?"))
        assert status == 200
        assert heard.requests and SECRET not in str(heard.requests)
        await store.flush()
        run = await store.get(headers["x-batuta-run-id"])
        assert SECRET not in str(run) and [act.policy for act in run.guards]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("action", [GuardrailAction.BLOCK, GuardrailAction.REDACT])
async def test_no_answer_goes_out_that_a_policy_forbids(method, action):
    heard = Heard(SECRET)
    async with heard.server(guarded(GuardrailStage.OUTPUT, action)) as server:
        status, _, said = await server.post(json=ask(method, "What is the key?"))
    assert SECRET not in str(said) and heard.requests
    assert (status == 200) == (action is GuardrailAction.REDACT), said


@pytest.mark.parametrize("method", METHODS)
async def test_what_a_policy_flags_in_the_answer_is_recorded_once(method, store):
    heard = Heard(SECRET)
    flag = guarded(GuardrailStage.OUTPUT, GuardrailAction.FLAG)
    async with heard.server(flag, store) as server:
        status, headers, said = await server.post(json=ask(method, "What is the key?"))
        assert status == 200 and SECRET in str(said)
        await store.flush()
        run = await store.get(headers["x-batuta-run-id"])
    assert [(act.policy, act.action) for act in run.guards] == [("no-keys", "flagged")], run.guards


async def test_what_a_policy_flags_in_a_chosen_reply_is_recorded(store):
    """The last of the five replies, which the engine has checked as the answer, loses the vote."""
    heard = Heard(SECRET)

    def say(request):
        heard.says = SECRET if len(heard.requests) < 4 else "42"
        return heard(request)

    clients = {name: ScriptedClient(say) for name in ("ada", "bob", "eve")}
    flag = guarded(GuardrailStage.OUTPUT, GuardrailAction.FLAG)
    async with Serving(app_state(clients=clients, guardrails=flag, store=store)) as server:
        asked = ask("self-consistency@5", "What is the key?")
        status, headers, said = await server.post(json=asked)
        assert status == 200 and SECRET in str(said)
        await store.flush()
        run = await store.get(headers["x-batuta-run-id"])
    assert [(act.policy, act.action) for act in run.guards] == [("no-keys", "flagged")]
