"""What a conductor is shown of a conversation, and which turns reach which worker."""

import re

from hypothesis import given
from hypothesis import strategies as st

from batuta.core import (
    Image,
    Message,
    Plan,
    PlanningContext,
    Pool,
    Question,
    Role,
    Round,
    RunId,
    Step,
    Text,
    ToolCall,
    ToolCallOrigin,
    ToolResult,
    Worker,
    WorkerId,
    Workflow,
    assistant_message,
    encode_call_id,
    system_message,
    user_message,
)
from batuta.language import PromptOptions, conductor_request, worker_messages
from batuta.language.conversation import (
    MAX_CHARACTERS,
    MAX_EXTRACTS,
    clip_text,
    outline_text,
    question_index,
    question_text,
    turns_for_step,
)

RUN = RunId("run_" + "a" * 24)
FLOW = Workflow(
    (
        Step(subtask="Plan it.", worker=WorkerId("w")),
        Step(subtask="Do it.", worker=WorkerId("w"), access=(0,)),
    )
)

NOW = (Round(decision=Plan(FLOW), workflow=FLOW),)


def called(step, number=0, run=RUN, round_number=0):
    return ToolCall(
        id=encode_call_id(ToolCallOrigin(run, round_number, step, number)),
        name="look",
        arguments='{"at":"box"}',
    )


def result(call, text="a cat"):
    return Message(role=Role.TOOL, parts=(ToolResult(call_id=call.id, content=text),))


def test_a_conductor_sees_every_kind_of_turn():
    call = ToolCall(id="c1", name="look", arguments='{"at":"box"}')
    question = Question(messages=(
        system_message("Be brief."),
        Message(role=Role.DEVELOPER, parts=(Text("Use the tool."),)),
        Message(role=Role.USER, parts=(Text("What is it?"), Image(url="https://x/y.png"))),
        Message(role=Role.ASSISTANT, parts=(call,)),
        result(call),
        assistant_message("A cat."),
        user_message("What colour?"),
    ))  # fmt: skip
    assert question_text(question) == (
        "System: Be brief.\n\nSystem: Use the tool.\n\nUser: What is it?\n[1 picture]\n\n"
        'Assistant: [calls look with {"at":"box"}]\n\nTool result: a cat\n\n'
        "Assistant: A cat.\n\nUser: What colour?"
    )


def test_one_message_is_just_its_text():
    assert question_text(Question.of("Why?")) == "Why?"


@given(st.lists(st.integers(1, 60_000), min_size=1, max_size=30))
def test_a_conductor_is_never_shown_more_than_fits_and_always_the_question(lengths):
    turns = [
        user_message("x" * n) if i % 2 else assistant_message("y" * n)
        for i, n in enumerate(lengths)
    ]
    question = Question(messages=(system_message("S" * 50), *turns, user_message("And now?")))
    text = question_text(question)
    assert len(text) <= MAX_CHARACTERS + 4_000 and text.endswith("User: And now?")
    assert text.startswith("System: S")
    if sum(lengths) < MAX_CHARACTERS - 1_000:
        assert "left out" not in text


def test_what_is_left_out_is_said():
    turns = tuple(user_message(f"{n} " + "x" * 1_900) for n in range(40))
    text = question_text(Question(messages=(*turns, user_message("Now?"))))
    assert "25 earlier turns are left out; so they begin:]" in text
    assert "\n[turn 2 of 41] User: 1 xxxx" in text and "\n[turn 12 of 41] User: 11 xxx" in text
    assert "\n\nUser: 39 " in text and text.endswith("User: Now?")
    assert clip_text("a" * 10 + "b" * 10, 6).startswith("aaaa\n[14 characters are left out]\nbb")


def test_of_a_long_document_the_middle_is_told_by_position():
    pages = [f"Page {n} speaks of subject{n}. " + "and so on " * 180 for n in range(100)]
    text = question_text(Question.of("Sum it up.\n" + "".join(pages) + "\nIn three words?"))
    assert len(text) <= MAX_CHARACTERS and text.startswith("Sum it up.\nPage 0 speaks")
    assert text.endswith("In three words?")
    places = [int(found) for found in re.findall(r"\n\[at (\d+) %\] ", text)]
    assert len(places) == MAX_EXTRACTS and places == sorted(places)
    assert places[0] < 20 and places[-1] > 85
    assert question_text(Question.of("x" * MAX_CHARACTERS)) == "x" * MAX_CHARACTERS


@given(st.text(min_size=1, max_size=400), st.integers(1, 300), st.integers(40, 5_000))
def test_an_outline_keeps_both_ends_and_its_budget(text, times, most):
    whole = text * times
    shown = outline_text(whole, most)
    assert len(shown) <= most + 60
    assert shown == outline_text(whole, most)
    if len(whole) > most:
        assert shown.startswith(whole[: most // 2]) and shown.endswith(whole[-(most // 4) :])


def test_the_whole_history_reaches_a_worker_in_order():
    question = Question(
        messages=(
            system_message("S"),
            user_message("one"),
            assistant_message("1"),
            user_message("two"),
        )
    )
    seen = worker_messages(question, FLOW, 0, NOW)
    assert [m.role for m in seen] == [Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.USER]
    assert seen[1].text == "one" and "<overall_task>\ntwo\n" in seen[-1].text


def test_a_step_sees_its_own_calls_only():
    mine, theirs = called(1), called(0)
    question = Question(messages=(
        user_message("Ask."),
        Message(role=Role.ASSISTANT, parts=(Text("Let me see."), theirs, mine)),
        result(theirs, "for 0"),
        result(mine, "for 1"),
    ))  # fmt: skip
    for step, call, text in ((0, theirs, "for 0"), (1, mine, "for 1")):
        _, turn, answer = worker_messages(question, FLOW, index=step, rounds=NOW, chain={RUN})
        assert turn.parts == (Text("Let me see."), call)
        assert answer.parts == (ToolResult(call_id=call.id, content=text),)
    # calls of somebody else's run are a part of the conversation that everybody sees
    assert len(worker_messages(question, FLOW, index=0, rounds=NOW, chain=())) == 4


def test_calls_of_another_round_are_another_steps():
    question = Question(
        messages=(
            user_message("Ask."),
            Message(role=Role.ASSISTANT, parts=(called(0, round_number=1),)),
        )
    )
    assert len(turns_for_step(question.messages[1:], 0, 0, {RUN})) == 0
    assert len(turns_for_step(question.messages[1:], 1, 0, {RUN})) == 1


def test_the_question_of_a_workflow_stays_the_question():
    call = called(1)
    question = Question(messages=(
        user_message("Ask."), Message(role=Role.ASSISTANT, parts=(call,)),
        Message(role=Role.USER, parts=(ToolResult(call_id=call.id, content="x"), Text("hurry"))),
    ))  # fmt: skip
    assert question_index(question, {RUN}) == 0 and question_index(question) == 2
    _, _, last = worker_messages(question, FLOW, index=1, rounds=NOW, chain={RUN})
    assert last.parts == (ToolResult(call_id=call.id, content="x"), Text("hurry"))
    # the other step sees the words of the user, not the result
    assert worker_messages(question, FLOW, index=0, rounds=NOW, chain={RUN})[-1].parts == (
        Text("hurry"),
    )


def test_a_conductors_prompt_holds_the_conversation():
    pool = Pool((Worker(id=WorkerId("w"), model="m"),))
    question = Question(messages=(user_message("one"), assistant_message("1"), user_message("two")))
    text = conductor_request(
        PlanningContext(question=question, pool=pool),
        PromptOptions(),
        Worker(id="w", model="m").sampling,  # pyright: ignore[reportArgumentType]
    )
    assert "User: one\n\nAssistant: 1\n\nUser: two" in text.messages[0].text
