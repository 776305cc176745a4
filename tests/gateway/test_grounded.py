"""Checked answers over HTTP: whole and streamed, in the run, on the page, and where they cannot be."""

from __future__ import annotations

import json
import os
from functools import partial

import anyio.to_thread
import pytest

from batuta.clients import ScriptedClient
from batuta.gateway.serving.models import ServedModel
from batuta.guardrails import GroundedAction, GroundedPolicy, Guardrails
from batuta.language.grounding import MARK
from batuta.store import decode_run
from gateway.live_server import HI, Serving, pool_of, scripted_state, server_state

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"
SAID = "You said hi. Mary built it."


def check(_):
    rows = [{"claim": 1, "supported": "yes", "where": [1]}, {"claim": 2, "supported": "no", "where": []}]  # fmt: skip
    return json.dumps({"verdicts": rows})


def app_state(store=None, action=GroundedAction.MARK, **more):
    clients = {"ada": ScriptedClient(lambda _: SAID), "eve": ScriptedClient(check)}
    policy = GroundedPolicy(name="sources", worker=pool_of(*clients)["eve"], action=action)
    return scripted_state(clients, guardrails=Guardrails((), policy), store=store, **more)


@pytest.mark.parametrize("model", ["worker/ada", "batuta-mini"])
async def test_a_marked_answer_and_its_check_are_in_the_run(store, model, tmp_path, command_line):
    async with Serving(app_state(store)) as serving:
        body = {"model": model, "messages": HI, "orchestration": {"trace": True}}
        status, headers, said = await serving.post(CHAT, json=body)
        assert status == 200 and said["choices"][0]["message"]["content"] == f"{SAID} {MARK}"
        assert said["orchestration"]["guards"][0]["action"] == "marked"
        run = await store.get(headers["x-batuta-run-id"])
        assert [step.worker for step in run.steps] == ["ada", "eve"]
        async with serving.http.get(f"/ui/runs/{run.id}") as page:
            shown = await page.text()
        assert "checks the answer against its sources" in shown and "marked" in shown
        clean = {k: v for k, v in os.environ.items() if "BATUTA" not in k and "API_KEY" not in k}
        env = {**clean, "BATUTA_HOME": str(tmp_path), "COLUMNS": "200"}
        command = partial(
            command_line.run, "runs", "show", run.id, stdin=None, cwd=tmp_path, env=env
        )
        told = (await anyio.to_thread.run_sync(command)).stdout
        assert "eve" in told and "round 2" in told and f"{SAID} {MARK}" in told


async def test_a_stream_says_nothing_before_it_is_checked():
    async with Serving(app_state()) as serving:
        body = {"model": "worker/ada", "messages": HI, "stream": True}
        async with serving.http.post(CHAT, json=body) as response:
            rows = [line.decode()[6:] async for line in response.content if b"data: {" in line]
    deltas = [json.loads(row)["choices"] for row in rows]
    told = [choice[0]["delta"].get("content") or "" for choice in deltas if choice]
    assert "".join(told) == f"{SAID} {MARK}" and "verdicts" not in "".join(rows)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_refused_answer_is_an_error_without_its_words(stream):
    async with Serving(app_state(action=GroundedAction.REFUSE)) as serving:
        body = {"model": "worker/ada", "messages": HI, "stream": stream}
        async with serving.http.post(CHAT, json=body) as response:
            text = await response.text()
            assert stream or response.status == 422
    assert "not_grounded" in text and "1 of 2 statements" in text and "Mary" not in text


async def test_a_method_that_chooses_among_replies_is_refused():
    class Method:
        name, calls = "moa", None

        async def answer(self, question, context, seed):
            raise AssertionError

    clients = {"ada": ScriptedClient(lambda _: SAID), "eve": ScriptedClient(check)}
    pool = pool_of(*clients)
    served = ServedModel(name="moa", conductor=None, pool=pool, solver=Method())
    policy = GroundedPolicy(name="sources", worker=pool["eve"], action=GroundedAction.FLAG)
    state = server_state(pool, clients, [served], guardrails=Guardrails((), policy))
    async with Serving(state) as serving:
        status, _, said = await serving.post(CHAT, json={"model": "moa", "messages": HI})
    assert status == 403 and "sources cannot check" in said["error"]["message"]


async def test_the_checker_is_nobodys_answerer():
    """Who answers the next turn, or acts in a session, is who wrote the answer."""
    async with Serving(app_state()) as serving:
        body = {"model": "batuta-mini", "messages": HI, "orchestration": {"trace": True}}
        _, _, first = await serving.post(CHAT, json=body)
        said = first["choices"][0]["message"]
        turn = {**body, "messages": [*HI, {"role": "assistant", "content": said["content"]}, *HI]}
        _, _, second = await serving.post(CHAT, json=turn)
    for told in (first, second):
        workers = [step["worker"] for each in told["orchestration"]["rounds"] for step in each["steps"]]  # fmt: skip
        assert workers == ["ada", "eve"]
        run = decode_run(json.dumps(told["orchestration"]).encode())
        assert run.answering_step.worker == "ada"
