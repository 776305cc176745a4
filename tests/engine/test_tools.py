"""The client's tools inside a workflow: who asks, who is answered, what a later run goes on with."""

from dataclasses import replace

import pytest
from tests.engine.folding import fold_events

from batuta.clients import ScriptedClient
from batuta.conductors import FixedConductor
from batuta.core import (
    Finish,
    Limits,
    Message,
    Outcome,
    Plan,
    Pool,
    Question,
    Reply,
    Role,
    Step,
    StepDelta,
    Tool,
    ToolCall,
    ToolCallOrigin,
    ToolResult,
    Worker,
    WorkerId,
    Workflow,
    assistant_message,
    decode_call_id,
    encode_call_id,
    user_message,
)  # fmt: skip
from batuta.engine import RunHooks, RunSettings, conduct, find_asking_run, find_resume_state
from batuta.errors import BadRequestError

pytestmark = pytest.mark.anyio
IDS = [WorkerId(f"w{n}") for n in range(3)]
POOL = Pool(tuple(Worker(id=w, model="m", strength=0.5) for w in IDS))
TOOLS = (Tool(name="look"), Tool(name="count"))
ASKED = Question(messages=(user_message("What is in the box?"),), tools=TOOLS)


def wants(*names, text=""):
    """A reply that calls those tools under ids that a provider made up."""
    calls = tuple(
        ToolCall(id=f"prov{n}", name=name, arguments=f'{{"n":{n}}}') for n, name in enumerate(names)
    )
    return Reply(text=text, tool_calls=calls, finish=Finish.TOOL_CALLS)


def fixed(*steps):
    flow = Workflow(tuple(Step(subtask=s, worker=IDS[w], access=tuple(a)) for s, w, a in steps))
    return FixedConductor("fixed", lambda pool: flow)


def told(question, run, results):
    """The conversation as a client sends it back."""
    turn = Message(role=Role.ASSISTANT, parts=run.reply.tool_calls)
    more = [
        Message(role=Role.TOOL, parts=(ToolResult(call_id=i, content=r),))
        for i, r in results.items()
    ]
    return Question(messages=(*question.messages, turn, *more), tools=question.tools)


async def begun(conductor, crew_of, question=ASKED, **options):
    events = []

    async def emit(event):
        events.append(event)

    run = await conduct(question, conductor, POOL, crew_of, hooks=RunHooks(emit=emit), **options)
    assert fold_events(events) == run
    return run, events


async def gone_on(run, question, crew_of, conductor=None, **options):
    assert find_asking_run(question) == run.id
    resumed = find_resume_state(run, question, POOL)
    assert resumed is not None
    conductor = conductor or fixed(("never executed", 0, []))
    again, _ = await begun(conductor, crew_of, question, resumed=resumed, **options)
    return again


def crew_of(**said):
    return {w: ScriptedClient(said.get(w, [])) for w in IDS}


async def test_a_step_in_the_middle_asks_and_its_own_worker_gets_the_result():
    crew = crew_of(w0=["The plan."], w1=[wants("look"), "A cat is in it."], w2=["It is a cat."])
    flow = fixed(("plan", 0, []), ("look inside", 1, [0]), ("answer", 2, [0, 1]))
    run, _ = await begun(flow, crew)
    assert run.outcome is Outcome.WAITING
    (call,) = run.reply.tool_calls
    assert decode_call_id(call.id) == ToolCallOrigin(run.id, 0, 1, 0) and call.name == "look"

    back = told(ASKED, run, {call.id: "a cat"})
    again = await gone_on(run, back, crew)
    assert again.outcome is Outcome.ANSWERED and again.answer == "It is a cat."
    asked = crew["w1"].requests[1].messages  # pyright: ignore[reportArgumentType]
    assert "The plan." in asked[0].text and "look inside" in asked[0].text
    assert asked[1].parts == (call,) and asked[2].parts == (
        ToolResult(call_id=call.id, content="a cat"),
    )
    # isolated: the last step reads the answers, not the other worker's dealings with the tool
    (last,) = crew["w2"].requests  # pyright: ignore[reportArgumentType]
    assert len(last.messages) == 1 and "A cat is in it." in last.messages[0].text
    # what was paid once is not paid or executed again
    assert len(crew["w0"].requests) == 1  # pyright: ignore[reportArgumentType]
    assert [s.index for s in again.steps] == [1, 2] and again.usage.calls == 2


async def test_parallel_steps_ask_together_and_each_gets_its_own():
    crew = crew_of(w0=[wants("look"), "cat"], w1=[wants("count", "look"), "two"], w2=["two cats"])
    flow = fixed(("look", 0, []), ("count", 1, []), ("answer", 2, [0, 1]))
    run, _ = await begun(flow, crew)
    ids = [call.id for call in run.reply.tool_calls]
    assert [(decode_call_id(i).step, decode_call_id(i).number) for i in ids] == [
        (0, 0),
        (1, 0),
        (1, 1),
    ]
    again = await gone_on(run, told(ASKED, run, dict(zip(ids, ["A", "B", "C"], strict=True))), crew)
    assert again.answer == "two cats"
    for worker, mine in (("w0", ids[:1]), ("w1", ids[1:])):
        seen = crew[worker].requests[1].messages[1:]  # pyright: ignore[reportArgumentType]
        results = [p.call_id for m in seen for p in m.parts if isinstance(p, ToolResult)]
        assert results == mine


async def test_a_step_that_is_done_is_not_run_again_because_one_that_it_reads_had_failed():
    crew = crew_of(
        w0=[BadRequestError("no"), "zero"],
        w1=["one", "the answer"],
        w2=[wants("look"), "cat"],
    )
    flow = fixed(("a", 0, []), ("b", 1, [0]), ("look", 2, []), ("answer", 1, [1, 2]))
    alone = RunSettings(fallback=False)
    run, _ = await begun(flow, crew, settings=alone)
    (call,) = run.reply.tool_calls
    again = await gone_on(run, told(ASKED, run, {call.id: "a cat"}), crew, settings=alone)
    assert again.answer == "the answer"
    assert sorted(step.index for step in again.steps) == [0, 2, 3]


async def test_where_calls_may_not_be_parallel_one_step_asks_after_the_other():
    question = Question(messages=ASKED.messages, tools=TOOLS, parallel_tool_calls=False)
    crew = crew_of(w0=[wants("look"), "cat"], w1=[wants("count"), "two"], w2=["two cats"])
    flow = fixed(("look", 0, []), ("count", 1, []), ("answer", 2, [0, 1]))
    run, _ = await begun(flow, crew, question)
    (first,) = run.reply.tool_calls
    back = Question(
        messages=told(question, run, {first.id: "A"}).messages,
        tools=TOOLS,
        tool_choice=None,
        parallel_tool_calls=False,
    )
    second = await gone_on(run, back, crew)
    assert second.outcome is Outcome.WAITING and len(crew["w1"].requests) == 1  # pyright: ignore[reportArgumentType]
    (call,) = second.reply.tool_calls
    assert decode_call_id(call.id) == ToolCallOrigin(
        run.id, 0, 1, 0
    )  # asked by the first run, told by the second
    assert second.usage.calls == 1


async def test_a_chain_of_many_calls_goes_on_through_many_runs():
    crew = crew_of(w0=["plan"], w1=[wants("look"), wants("look"), wants("count"), "done"])
    flow = fixed(("plan", 0, []), ("work", 1, [0]))
    run, _ = await begun(flow, crew)
    question, runs = ASKED, [run]
    while run.outcome is Outcome.WAITING:
        question = told(question, run, {c.id: f"r{len(runs)}" for c in run.reply.tool_calls})
        run = await gone_on(run, question, crew)
        runs.append(run)
    assert run.answer == "done" and len(runs) == 4
    assert run.header.resumed.runs == tuple(r.id for r in runs[:3])
    last = crew["w1"].requests[-1].messages  # pyright: ignore[reportArgumentType]
    assert [p.content for m in last for p in m.parts if isinstance(p, ToolResult)] == ["r1", "r2", "r3"]  # fmt: skip
    assert len(crew["w0"].requests) == 1  # pyright: ignore[reportArgumentType]


async def test_a_substitute_that_asked_gets_the_result():
    crew = crew_of(w0=[], w1=[wants("look"), "cat"], w2=[])
    pool_first = fixed(("look", 0, []))
    run, _ = await begun(pool_first, crew)
    assert run.steps[0].planned == "w0" and run.steps[0].worker == "w1"
    (call,) = run.reply.tool_calls
    again = await gone_on(run, told(ASKED, run, {call.id: "x"}), crew)
    assert again.answer == "cat" and again.steps[0].worker == "w1" and not again.steps[0].attempts


async def test_words_of_the_user_beside_the_result_stay_in_the_conversation():
    crew = crew_of(w0=["plan"], w1=[wants("look"), "done"])
    run, _ = await begun(fixed(("plan", 0, []), ("work", 1, [0])), crew)
    back = told(ASKED, run, {run.reply.tool_calls[0].id: "x"})
    back = Question(messages=(*back.messages, user_message("And be quick.")), tools=TOOLS)
    again = await gone_on(run, back, crew)
    seen = crew["w1"].requests[-1].messages  # pyright: ignore[reportArgumentType]
    assert "What is in the box?" in seen[0].text and seen[-1].text == "And be quick."
    assert again.answer == "done"


async def test_a_workflow_is_not_gone_on_with_when_it_cannot_be():
    crew = crew_of(w0=[wants("look")])
    run, _ = await begun(fixed(("look", 0, [])), crew)
    back = told(ASKED, run, {run.reply.tool_calls[0].id: "x"})
    assert find_resume_state(run, back, POOL) is not None
    assert find_resume_state(run, ASKED, POOL) is None  # nothing was answered
    assert find_resume_state(run, back, POOL.subset(["w1", "w2"])) is None  # its worker is gone
    done, _ = await begun(fixed(("a", 1, [])), crew_of(w1=["done"]))
    assert find_resume_state(done, back, POOL) is None  # it does not wait
    assert (
        find_asking_run(
            Question(messages=(*back.messages, assistant_message("so"), user_message("more")))
        )
        is None
    )


async def test_a_new_question_sees_the_whole_conversation_with_its_calls():
    crew = crew_of(w0=["plan"], w1=[wants("look"), "A cat."], w2=["b"])
    flow = fixed(("plan", 0, []), ("work", 1, [0]))
    run, _ = await begun(flow, crew)
    (call,) = run.reply.tool_calls
    back = told(ASKED, run, {call.id: "a cat"})
    await gone_on(run, back, crew)
    later = Question(
        messages=(*back.messages, assistant_message("A cat."), user_message("What colour?")),
        tools=TOOLS,
    )
    assert find_asking_run(later) is None
    await begun(fixed(("think", 2, [])), crew, later)
    seen = crew["w2"].requests[0].messages  # pyright: ignore[reportArgumentType]
    assert [m.role for m in seen] == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT, Role.USER]  # fmt: skip


async def test_only_tools_of_the_client_reach_the_client():
    crew = crew_of(w0=[wants("rm", "look", text="Let me see.")], w1=[wants("look")])
    run, events = await begun(fixed(("a", 0, [])), crew)
    assert run.steps[0].attempts[0].failure.code == "unknown_tool", "nothing is dropped in silence"
    assert [c.name for c in run.reply.tool_calls] == ["look"]
    told = [e for e in events if isinstance(e, StepDelta) and e.worker == "w1"]
    [name] = [e.delta for e in told if e.delta.tool_name]
    assert (name.tool_index, name.tool_id) == (0, run.reply.tool_calls[0].id)


async def test_a_worker_that_calls_nothing_but_strange_tools_is_replaced():
    crew = crew_of(w0=[wants("rm")], w1=["Without tools."])
    run, _ = await begun(fixed(("a", 0, [])), crew)
    assert (
        run.answer == "Without tools." and run.steps[0].attempts[0].failure.code == "unknown_tool"
    )


@pytest.mark.parametrize(
    ("choice", "earlier"),
    [(None, None), ("auto", "auto"), ("required", "auto"), ("none", "none"), ("look", "none")],
)
async def test_the_choice_of_tools_binds_the_last_step(choice, earlier):
    question = Question(messages=ASKED.messages, tools=TOOLS, tool_choice=choice)
    crew = crew_of(w0=["plan"], w1=["done"])
    run, _ = await begun(fixed(("a", 0, []), ("b", 1, [0])), crew, question)
    first, last = (s.request for s in run.steps)
    assert (first.tool_choice, last.tool_choice) == (earlier, choice)
    assert first.tools == last.tools == TOOLS


async def test_one_worker_alone_keeps_its_own_ids():
    pool = POOL.subset(["w0"])
    crew = crew_of(w0=[wants("look")])
    run = await conduct(ASKED, fixed(("", 0, [])), pool, crew)
    assert run.reply.tool_calls[0].id == "prov0"


@pytest.mark.parametrize("parallel", [None, True, False])
async def test_only_one_call_is_shown_where_the_client_forbids_parallel_ones(parallel):
    """Some providers have no such parameter and others ignore it; the client would run both."""
    streamed = list[tuple[int | None, str]]()

    async def emit(event):
        if isinstance(event, StepDelta) and event.delta.tool_id:
            streamed.append((event.delta.tool_index, event.delta.tool_name))

    question = replace(ASKED, parallel_tool_calls=parallel)
    said = wants("look", "count")
    crew = crew_of(w0=[replace(said, alternatives=(said,))])
    hooks = RunHooks(emit=emit)
    run = await conduct(question, fixed(("", 0, [])), POOL.subset(["w0"]), crew, hooks=hooks)
    shown = ["look"] if parallel is False else ["look", "count"]
    for reply in run.reply.choices:
        assert [call.name for call in reply.tool_calls] == shown
    assert set(streamed) == set(enumerate(shown))
    assert run.outcome is Outcome.ANSWERED or run.reply.finish is Finish.TOOL_CALLS


async def test_an_id_that_a_server_counts_anew_in_each_turn_is_shown_once():
    """A client that knows the id drops the call, and its agent ends in the middle of its task."""
    pool, question, ids = POOL.subset(["w0"]), ASKED, list[str]()
    for _ in range(3):
        streamed = list[str]()

        async def emit(event, streamed=streamed):
            if isinstance(event, StepDelta) and event.delta.tool_id:
                streamed.append(event.delta.tool_id)

        crew = crew_of(w0=[wants("look", "count")])
        hooks = RunHooks(emit=emit)
        run = await conduct(question, fixed(("", 0, [])), pool, crew, hooks=hooks)
        assert streamed == [call.id for call in run.reply.tool_calls]
        ids += streamed
        question = told(question, run, dict.fromkeys(streamed, "3"))
    assert ids[:2] == ["prov0", "prov1"] and len(set(ids)) == 6


async def test_the_second_round_waits_too_and_its_results_are_its_own():
    class Twice:
        name = "twice"

        async def plan(self, context, listener=None):
            steps = fixed(("again", 1, [])) if context.previous else fixed(("look", 0, []))
            return await FixedConductor("f", steps.build_workflow).plan(
                context.__class__(question=context.question, pool=context.pool)
            )

    crew = crew_of(w0=[wants("look"), "cat"], w1=[wants("count"), "two"])
    run, _ = await begun(Twice(), crew, limits=Limits(rounds=2))
    back = told(ASKED, run, {run.reply.tool_calls[0].id: "x"})
    resumed = find_resume_state(run, back, POOL)
    second = await conduct(back, Twice(), POOL, crew, limits=Limits(rounds=2), resumed=resumed)
    assert second.outcome is Outcome.WAITING
    (call,) = second.reply.tool_calls
    assert decode_call_id(call.id) == ToolCallOrigin(second.id, 1, 0, 0)
    back = told(back, second, {call.id: "2"})
    resumed = find_resume_state(second, back, POOL)
    third = await conduct(back, Twice(), POOL, crew, limits=Limits(rounds=2), resumed=resumed)
    assert third.answer == "two"
    results = [p.content for m in crew["w1"].requests[-1].messages for p in m.parts if isinstance(p, ToolResult)]  # pyright: ignore[reportArgumentType]  # fmt: skip
    assert results == ["2"]  # not the first round's


def test_ids_are_short_and_read_back():
    place = ToolCallOrigin("run_" + "f" * 24, 9, 4, 127)
    assert decode_call_id(encode_call_id(place)) == place and len(encode_call_id(place)) <= 40
    assert decode_call_id("call_abc") is None and decode_call_id("toolu_01_2_3_4") is None


async def test_a_step_beside_the_acting_one_has_no_tools_and_reads_of_calls_as_text():
    call = ToolCall(id="a", name="look", arguments="{}")
    said = (
        *ASKED.messages,
        Message(role=Role.ASSISTANT, parts=(call,)),
        Message(role=Role.TOOL, parts=(ToolResult(call_id="a", content="a cat"),)),
        user_message("And now?"),
    )
    crew = crew_of(w0=["beside"], w1=["before"], w2=["answer"])
    flow = fixed(("beside", 0, []), ("before", 1, []), ("answer", 2, [1]))
    run, _ = await begun(flow, crew, Question(messages=said, tools=TOOLS))
    beside, before, acting = (
        next(step.request for step in run.steps if step.index == index) for index in range(3)
    )
    assert (beside.tools, before.tools, acting.tools) == ((), TOOLS, TOOLS)
    assert [message.role for message in beside.messages] == ["user", "assistant", "user", "user"]
    assert "a cat" in beside.messages[2].text and "look" in beside.messages[1].text
    assert before.messages[1:3] == said[1:3] == acting.messages[1:3]


async def test_a_step_that_continues_reads_its_own_work_then_its_answer_then_what_to_do():
    class Again:
        name = "again"

        async def plan(self, context, listener=None):
            step = Step(subtask="Not done.", worker=IDS[0], continues=True)
            first = Step(subtask="", worker=IDS[0])
            return Plan(Workflow((step if context.previous else first,)))

    crew = crew_of(w0=[wants("look"), "Done.", wants("count"), "Really done."])
    run, _ = await begun(Again(), crew, limits=Limits(rounds=2))
    (call,) = run.reply.tool_calls
    first = told(ASKED, run, {call.id: "a cat"})
    again = await gone_on(
        run, first, crew, Again(), limits=Limits(rounds=2)
    )  # "Done.", and in round 1 a call
    assert again.outcome is Outcome.WAITING
    asked = crew["w0"].requests  # pyright: ignore[reportArgumentType]
    assert [m.text for m in asked[2].messages[-2:]] == ["Done.", "Not done."]
    assert asked[2].messages[: len(asked[1].messages)] == asked[1].messages
    (second,) = again.reply.tool_calls
    back = told(first, again, {second.id: "two"})
    run = await gone_on(again, back, crew, Again(), limits=Limits(rounds=2))
    assert run.answer == "Really done."
    assert asked[3].messages[: len(asked[2].messages)] == asked[2].messages  # a stable prefix
    assert len(asked[3].messages) == len(asked[2].messages) + 2
