"""What is shown as it comes: forms, last rounds, and the steps before the answer."""

import json

import anyio
import orjson
import pytest

from batuta.clients import ScriptedClient
from batuta.conductors import FixedConductor, RecursiveConductor, best_single_worker
from batuta.core import (
    AcceptedAnswer,
    Delta,
    Finish,
    Limits,
    Outcome,
    Plan,
    Reply,
    Step,
    ToolCall,
    Usage,
    WorkerId,
    Workflow,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.errors import StreamInterruptedError
from batuta.guardrails import Guardrail, Guardrails, GuardrailStage
from gateway.live_server import HI, Serving, scripted_state, stored
from gateway.test_complete_answers import PATHS, Told
from gateway.test_forms import FORM, LOOK

pytestmark = pytest.mark.anyio
DIALECTS = pytest.mark.parametrize("dialect", list(PATHS))
TWO_ROUNDS = {"ultra": Limits(rounds=2)}


class Again:
    """Corrects whatever was said."""

    name = "again"

    async def plan(self, context, listener=NULL_LISTENER):
        return Plan(Workflow((Step(subtask="Correct it.", worker=context.pool.workers[0].id),)))


class Accepts:
    """Lets the answer stand."""

    name = "accepts"

    async def plan(self, context, listener=NULL_LISTENER):
        return AcceptedAnswer()


class Speaking:
    """Says its words one after another, each when it is let."""

    def __init__(self, *words):
        self.words = words
        self.turns = [anyio.Event() for _ in words]

    async def complete(self, request, listener=NULL_LISTENER):
        for word, turn in zip(self.words, self.turns, strict=True):
            await turn.wait()
            await listener.on_delta(Delta(text=word))
        return Reply(text="".join(self.words), usage=Usage(calls=1, input=1, output=1))


def body_of(dialect, **more):
    body = {"model": "batuta-ultra", "stream": True, **more}
    form = body.pop("form", None)
    body |= {"input": "hi"} if dialect == "responses" else {"messages": HI}
    if dialect == "messages":
        body |= {"max_tokens": 99}
        body |= {"output_config": {"format": {"type": "json_schema", **_schema()}}} if form else {}
    elif dialect == "responses":
        body |= (
            {"text": {"format": {"type": "json_schema", "name": "n", **_schema()}}} if form else {}
        )
    else:
        body |= {"response_format": FORM} if form else {}
    return body


def _schema():
    return {"schema": FORM["json_schema"]["schema"]}


async def ask(server, dialect, **more):
    async with server.http.post(PATHS[dialect], json=body_of(dialect, **more)) as response:
        return Told(response.status, response.headers, await response.text())


def fragments(told):
    """The fragments of the answer, in order."""
    found = []
    for one in told.objects:
        if one.get("type") == "response.output_text.delta":
            found.append(one["delta"])
        if one.get("delta") and one.get("type") == "content_block_delta":
            found.append(one["delta"].get("text", ""))
        found += [c["delta"].get("content") or "" for c in one.get("choices", ()) if "delta" in c]
    return [text for text in found if text]


def step_texts(told):
    """Who said what before the answer: (round, step, worker) and the text, in order of telling."""
    said = {}
    for one in told.objects:
        place = one.get("orchestration")
        if not place or "step" not in place:
            continue
        if "choices" in one:
            text = one["choices"][0]["delta"]["reasoning_content"]
        elif one["type"] == "content_block_delta":
            text = one["delta"]["thinking"]
        else:
            text = one["delta"]
        said.setdefault((place["round"], place["step"], place["worker"]), []).append(text)
    return said


# -- a form --------------------------------------------------------------------------------


@DIALECTS
@pytest.mark.parametrize("model", ["worker/ada", "batuta-ultra"])
async def test_an_answer_in_a_form_comes_fragment_by_fragment(dialect, model):
    text = '{"n": 1, "why": "a {brace} and a \\"quote\\""}'
    async with Serving(ada=ScriptedClient(lambda _: text)) as server:
        told = await ask(server, dialect, form=True, model=model)
    assert told.text == text
    assert len(fragments(told)) > 3


@DIALECTS
@pytest.mark.parametrize("wrong", ['Sure: {"n": 1}', '```json\n{"n": "x"}\n```'])
async def test_what_does_not_begin_as_json_is_repaired_unseen(dialect, wrong):
    ada = ScriptedClient([wrong, '{"n": 2}'])
    async with Serving(ada=ada) as server:
        told = await ask(server, dialect, form=True, model="worker/ada")
    assert told.text == '{"n": 2}'
    assert len(ada.requests) == 2


@DIALECTS
async def test_a_code_block_is_taken_off(dialect):
    async with Serving(ada=ScriptedClient(['```json\n{"n": 1}\n```'])) as server:
        told = await ask(server, dialect, form=True, model="worker/ada")
    assert (told.text, told.error) == ('{"n": 1}', None)


@DIALECTS
async def test_what_was_seen_of_another_form_is_no_answer(dialect, store):
    ada = ScriptedClient(lambda _: '{"n": "one, in words"}')
    async with Serving(scripted_state({"ada": ada}, store=store)) as server:
        told = await ask(server, dialect, form=True, model="worker/ada")
        (row,) = await stored(store)
    assert told.error == "wrong_form"
    assert len(ada.requests) == 1
    assert row.outcome is Outcome.FAILED
    assert told.end in {None, "failed"}


@DIALECTS
async def test_what_is_said_before_a_tool_call_need_not_have_the_form(dialect):
    call = ToolCall(id="c1", name="look", arguments="{}")
    reply = Reply(text="I look.", tool_calls=(call,), finish=Finish.TOOL_CALLS)
    tools = {
        "chat": LOOK,
        "responses": {"type": "function", "name": "look", "parameters": {"type": "object"}},
        "messages": {"name": "look", "input_schema": {"type": "object"}},
    }
    async with Serving(ada=ScriptedClient([reply])) as server:
        told = await ask(server, dialect, form=True, model="worker/ada", tools=[tools[dialect]])
    assert (told.text, told.error) == ("I look.", None)
    assert "look" in told.all("name")


# -- several rounds ------------------------------------------------------------------------


@DIALECTS
async def test_the_last_round_that_may_be_run_is_shown_as_it_comes(dialect):
    conductor = RecursiveConductor(best_single_worker(), Again())
    ada = ScriptedClient(["A first draft.", "The final answer, in words."])
    async with Serving(
        scripted_state({"ada": ada}, conductor=conductor, limits=TWO_ROUNDS)
    ) as server:
        told = await ask(server, dialect)
    assert told.text == "".join(fragments(told)) == "The final answer, in words."
    assert len(fragments(told)) > 2


async def test_an_answer_that_is_let_stand_is_told_once():
    conductor = RecursiveConductor(best_single_worker(), Accepts())
    ada = ScriptedClient(["It stands."])
    async with Serving(
        scripted_state({"ada": ada}, conductor=conductor, limits=TWO_ROUNDS)
    ) as server:
        told = await ask(server, "chat")
    assert fragments(told) == ["It stands."]


@pytest.mark.parametrize("seen", ["", "The fi"])
async def test_an_earlier_answer_stands_unless_half_of_another_was_seen(seen):
    class Ada:
        calls = 0

        async def complete(self, request, listener=NULL_LISTENER):
            self.calls += 1
            if self.calls == 1:
                return Reply(text="A draft.", usage=Usage(calls=1, input=1, output=1))
            if seen:
                await listener.on_delta(Delta(text=seen))
            raise StreamInterruptedError("it broke")

    conductor = RecursiveConductor(best_single_worker(), Again())
    app_state = scripted_state({"ada": Ada()}, conductor=conductor, limits=TWO_ROUNDS)
    async with Serving(app_state) as server:
        told = await ask(server, "chat")
    if seen:
        assert (told.error, told.text) == ("upstream_error", seen)
    else:
        assert (told.error, told.text) == (None, "A draft.")


# -- the steps before the answer -----------------------------------------------------------


@DIALECTS
async def test_the_words_of_earlier_steps_are_shown_if_they_are_asked_for(dialect):
    clients = {
        "ada": ScriptedClient(["Thoughts, and more of them."]),
        "bob": ScriptedClient(["The end."]),
    }
    async with Serving(scripted_state(clients)) as server:
        told = await ask(server, dialect, orchestration={"stream_steps": True})
    said = step_texts(told)
    assert {place: "".join(texts) for place, texts in said.items()} == {
        (0, 0, "ada"): "Thoughts, and more of them."
    }
    assert len(said[0, 0, "ada"]) > 2
    assert told.text == "The end."


@DIALECTS
async def test_nothing_of_them_is_shown_unasked(dialect):
    clients = {"ada": ScriptedClient(["Thoughts."]), "bob": ScriptedClient(["The end."])}
    async with Serving(scripted_state(clients)) as server:
        told = await ask(server, dialect)
    assert "Thoughts." not in told.raw


async def test_the_sdk_reads_a_response_with_steps():
    clients = {"ada": ScriptedClient(["Thoughts."]), "bob": ScriptedClient(["The end."])}
    async with Serving(scripted_state(clients)) as server:
        stream = server.openai.responses.stream(
            model="batuta-ultra", input="hi", extra_body={"orchestration": {"stream_steps": True}}
        )
        async with stream as events:
            async for _ in events:
                pass
            response = await events.get_final_response()
    assert response.output_text == "The end."
    parts = [part.text for part in response.output[0].summary]  # pyright: ignore[reportAttributeAccessIssue]
    assert "Step 1/2, ada:Thoughts." in parts


async def test_a_first_rounds_answer_is_a_step_like_others():
    conductor = RecursiveConductor(best_single_worker(), Again())
    ada = ScriptedClient(["A first draft.", "The final answer."])
    async with Serving(
        scripted_state({"ada": ada}, conductor=conductor, limits=TWO_ROUNDS)
    ) as server:
        told = await ask(server, "chat", orchestration={"stream_steps": True})
    assert "".join(step_texts(told)[0, 0, "ada"]) == "A first draft."
    assert [place[0] for place in step_texts(told)] == [0]
    assert told.text == "The final answer."


async def test_of_steps_that_speak_at_once_one_has_the_floor():
    ada, bob = Speaking("a1 ", "a2"), Speaking("b1 ", "b2")
    flow = Workflow(
        (
            Step(subtask="x", worker=WorkerId("ada")),
            Step(subtask="y", worker=WorkerId("bob")),
            Step(subtask="z", worker=WorkerId("cy"), access=(0, 1)),
        )
    )
    clients = {"ada": ada, "bob": bob, "cy": ScriptedClient(["End."])}
    app_state = scripted_state(clients, conductor=FixedConductor("two", lambda _: flow))
    async with Serving(app_state) as server:
        async with anyio.create_task_group() as tasks:
            got = []

            async def read():
                got.append(await ask(server, "chat", orchestration={"stream_steps": True}))

            tasks.start_soon(read)
            for turn in (ada.turns[0], bob.turns[0], bob.turns[1], ada.turns[1]):
                turn.set()
                await anyio.wait_all_tasks_blocked()
    reasoning = "".join(text for text in got[0].all("reasoning_content"))
    assert "Step 1/3, ada:\na1 a2\nStep 2/3, bob:\nb1 b2" in reasoning
    assert got[0].text == "End."


async def test_a_call_that_failed_is_told_anew():
    class Ada:
        async def complete(self, request, listener=NULL_LISTENER):
            await listener.on_delta(Delta(text="Half a tho"))
            raise StreamInterruptedError("it broke")

    clients = {"ada": Ada(), "bob": ScriptedClient(lambda _: "Whole.")}
    async with Serving(scripted_state(clients)) as server:
        told = await ask(server, "chat", orchestration={"stream_steps": True})
    assert {place: "".join(texts) for place, texts in step_texts(told).items()} == {
        (0, 0, "ada"): "Half a tho",
        (0, 0, "bob"): "Whole.",
    }


def policy(where):
    find = Guardrail(
        name="names",
        detect=lambda text: [(at, at + 5) for at in [text.find("Susan")] if at >= 0],
        stages=frozenset({where}),
    )
    return Guardrails((find,))


async def test_a_policy_between_steps_is_heeded():
    clients = {"ada": ScriptedClient(["Ask Susan now."]), "bob": ScriptedClient(["The end."])}
    app_state = scripted_state(clients, guardrails=policy(GuardrailStage.BETWEEN))
    async with Serving(app_state) as server:
        told = await ask(server, "chat", orchestration={"stream_steps": True})
    (said,) = step_texts(told).values()
    assert "Susan" not in told.raw
    assert len(said) == 1
    assert said[0].startswith("Ask [")


async def test_where_a_policy_reads_what_goes_out_steps_are_refused():
    app_state = scripted_state(
        {"ada": ScriptedClient(["x"])}, guardrails=policy(GuardrailStage.OUTPUT)
    )
    async with Serving(app_state) as server:
        status, _, got = await server.post(
            json=body_of("chat", orchestration={"stream_steps": True})
        )
    assert (status, got["error"]["param"]) == (400, "orchestration.stream_steps")


async def test_a_workflow_by_hand_is_run_where_policies_look():
    """Its subtasks are screened, and then it is run."""
    clients = {"ada": ScriptedClient(["Said."])}
    app_state = scripted_state(clients, guardrails=policy(GuardrailStage.INPUT))
    flow = {"steps": [{"worker": "ada", "subtask": "Ask Susan."}]}
    async with Serving(app_state) as server:
        status, _, got = await server.post(
            json={"model": "batuta-ultra", "messages": HI, "orchestration": {"workflow": flow}}
        )
    assert (status, got["choices"][0]["message"]["content"]) == (200, "Said.")
    assert "Susan" not in json.dumps([m.text for m in clients["ada"].requests[0].messages])
    assert orjson.dumps(got)
