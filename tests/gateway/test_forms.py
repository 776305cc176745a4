"""A form or a tool call that was asked for is had or refused: never a 200 with prose."""

import json

import orjson
import pytest

from batuta.clients import ScriptedClient
from batuta.core import Delta, Finish, Limits, Reply, ToolCall
from batuta.core.conductor import NULL_LISTENER
from batuta.gateway import served_models
from batuta.gateway.serving.baselines import baseline_models
from batuta.lab.worlds.simulated import rehearsal_config
from gateway.live_server import HI, Serving, scripted_state, server_state
from gateway.test_complete_answers import PATHS, Told, each

pytestmark = pytest.mark.anyio

OWN = "Start with 5. Add 3. Multiply by 2. What is the result?"
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
SCHEMA = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
NAMED = {"type": "function", "function": {"name": "look"}}
WANTED = {
    "json_schema": {"response_format": FORM},
    "json_object": {"response_format": {"type": "json_object"}},
    "required": {"tools": [LOOK], "tool_choice": "required"},
    "named": {"tools": [LOOK], "tool_choice": NAMED},
}
PROSE = "It holds a cat."


def embedded():
    found = rehearsal_config(time_scale=0.0)
    served = served_models(found.pool, found.conductor)
    more = baseline_models(found.pool, Limits(seconds=60))
    return server_state(found.pool, found.clients, (*served, *more))


def fulfils(wanted, message):
    if "tools" in wanted:
        return [call["function"]["name"] for call in message.get("tool_calls") or []] == ["look"]
    try:
        return isinstance(json.loads(message["content"]), dict)
    except ValueError:
        return False


@pytest.mark.parametrize("wanted", WANTED)
async def test_the_embedded_pool_never_answers_in_prose(wanted):
    app_state = embedded()
    names = [model.name for model in app_state.catalogue.models]
    assert {"batuta-mini", "batuta-ultra", "baseline/self-consistency@5"} <= set(names)
    async with Serving(app_state) as server:
        for question in (OWN, "What is love?"):
            for model in (*names[:4], *(name for name in names if name.startswith("baseline/"))):
                body = {"model": model, "messages": [{"role": "user", "content": question}]}
                status, _, got = await server.post(json=body | WANTED[wanted])
                if status == 200:
                    assert fulfils(WANTED[wanted], got["choices"][0]["message"]), (model, got)
                else:
                    code = "no_tool_call" if "tools" in WANTED[wanted] else "wrong_form"
                    assert (status, got["error"]["code"]) == (502, code), model


CALLS = Reply(
    text="", tool_calls=(ToolCall(id="c1", name="look", arguments="{}"),), finish=Finish.TOOL_CALLS
)
DIALECT = {
    "chat": {"tools": [LOOK], "tool_choice": "required"},
    "responses": {
        "tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}}],
        "tool_choice": "required",
    },
    "messages": {
        "tools": [{"name": "look", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "any"},
    },
}


async def ask(server, dialect, stream, model):
    body = {"model": model, "stream": stream, **DIALECT[dialect]}
    body |= {"input": "hi"} if dialect == "responses" else {"messages": HI}
    body |= {"max_tokens": 50} if dialect == "messages" else {}
    async with server.http.post(PATHS[dialect], json=body) as response:
        return Told(response.status, response.headers, await response.text())


@each
@pytest.mark.parametrize("model", ["worker/ada", "batuta-mini", "batuta-ultra"])
async def test_a_call_that_is_required_is_made_or_refused(dialect, stream, model):
    async with Serving(ada=ScriptedClient(lambda _: PROSE)) as server:
        got = await ask(server, dialect, stream, model)
    assert (got.status, got.error) == (200 if stream else 502, "no_tool_call")
    assert PROSE not in got.raw
    async with Serving(
        scripted_state({"ada": ScriptedClient(lambda _: PROSE), "bob": says_calls()})
    ) as server:
        got = await ask(server, dialect, stream, "batuta-mini")
    assert (got.status, got.error) == (200, None) and PROSE not in got.raw
    assert "look" in [name for name in got.all("name") if isinstance(name, str)]


def says_calls():
    return ScriptedClient(lambda _: CALLS)


async def test_what_is_said_before_a_required_call_is_told_once_it_is_made():
    class Ada:
        async def complete(self, request, listener=NULL_LISTENER):
            await listener.on_delta(Delta(text="I look."))
            await listener.on_delta(Delta(tool_index=0, tool_id="c1", tool_name="look"))
            await listener.on_delta(Delta(tool_index=0, tool_arguments="{}"))
            return Reply(text="I look.", tool_calls=CALLS.tool_calls, finish=Finish.TOOL_CALLS)

    async with Serving(ada=Ada()) as server:
        frames = await server.frames(model="worker/ada", **WANTED["required"])
    chunks = [orjson.loads(f.removeprefix("data: ")) for f in frames if "{" in f]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert "".join(d.get("content") or "" for d in deltas) == "I look."
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_a_cut_reply_need_not_call():
    cut = Reply(text="I wo", finish=Finish.LENGTH)
    async with Serving(ada=ScriptedClient([cut])) as server:
        body = {"model": "worker/ada", "messages": HI, **WANTED["required"]}
        status, _, got = await server.post(json=body)
    assert (status, got["choices"][0]["finish_reason"]) == (200, "length")


@pytest.mark.parametrize("finish", [Finish.DECLINED, Finish.TOOL_CALLS])
async def test_a_form_is_checked_however_the_reply_ends(finish):
    ada = ScriptedClient(lambda _: Reply(text="I cannot.", finish=finish))
    async with Serving(ada=ada) as server:
        body = {"model": "worker/ada", "messages": HI, "response_format": FORM}
        status, _, got = await server.post(json=body)
    assert (status, got["error"]["code"]) == (502, "wrong_form")


@pytest.mark.parametrize("wanted", ["json_schema", "required"])
async def test_a_method_that_chooses_among_replies_keeps_the_form(wanted):
    right = CALLS if wanted == "required" else '{"n": 1}'
    replies = iter([PROSE, PROSE, PROSE, PROSE, right, right, right])
    ada = ScriptedClient(lambda _: next(replies))
    app_state = scripted_state({"ada": ada})
    served = (
        *served_models(app_state.catalogue.pool),
        *baseline_models(app_state.catalogue.pool, Limits(seconds=60)),
    )
    async with Serving(
        server_state(app_state.catalogue.pool, app_state.catalogue.clients, served)
    ) as server:
        body = {"model": "baseline/self-consistency@5", "messages": HI, **WANTED[wanted]}
        status, _, got = await server.post(json=body)
    if status == 200:
        assert fulfils(WANTED[wanted], got["choices"][0]["message"])
    else:
        assert (status, got["error"]["code"]) in {(502, "wrong_form"), (502, "no_tool_call")}
