"""What a conductor is shown of a conversation, and which turns reach which worker."""

from hypothesis import given
from hypothesis import strategies as st

from batuta.core import (
    Brief,
    Image,
    Message,
    Place,
    Plan,
    Pool,
    Question,
    Role,
    Round,
    RunId,
    Step,
    Text,
    ToolCall,
    ToolResult,
    Worker,
    WorkerId,
    Workflow,
    assistant,
    call_id,
    system,
    user,
)
from batuta.language import Rendering, conductor_request, worker_messages
from batuta.language.conversation import LONGEST, asked, clipped, question_text, turns_of_step

RUN = RunId("run_" + "a" * 24)
FLOW = Workflow((Step("Plan it.", WorkerId("w")), Step("Do it.", WorkerId("w"), (0,))))

NOW = (Round(Plan(FLOW), workflow=FLOW),)


def called(step, number=0, run=RUN, played=0):
    return ToolCall(call_id(Place(run, played, step, number)), "look", '{"at":"box"}')


def result(call, text="a cat"):
    return Message(Role.TOOL, (ToolResult(call.id, text),))


def test_a_conductor_sees_every_kind_of_turn():
    call = ToolCall("c1", "look", '{"at":"box"}')
    question = Question((
        system("Be brief."),
        Message(Role.DEVELOPER, (Text("Use the tool."),)),
        Message(Role.USER, (Text("What is it?"), Image("https://x/y.png"))),
        Message(Role.ASSISTANT, (call,)),
        result(call),
        assistant("A cat."),
        user("What colour?"),
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
    turns = [user("x" * n) if i % 2 else assistant("y" * n) for i, n in enumerate(lengths)]
    question = Question((system("S" * 50), *turns, user("And now?")))
    text = question_text(question)
    assert len(text) <= LONGEST + 4_000 and text.endswith("User: And now?")
    assert text.startswith("System: S")
    if sum(lengths) < LONGEST - 1_000:
        assert "left out" not in text


def test_what_is_left_out_is_said():
    turns = tuple(user(f"{n} " + "x" * 1_900) for n in range(40))
    text = question_text(Question((*turns, user("Now?"))))
    assert "earlier turns are left out]" in text and "39 " in text and "User: Now?" in text
    assert clipped("a" * 10 + "b" * 10, 6).startswith("aaaa\n[14 characters are left out]\nbb")


def test_the_whole_history_reaches_a_worker_in_order():
    question = Question((system("S"), user("one"), assistant("1"), user("two")))
    seen = worker_messages(question, FLOW, 0, NOW)
    assert [m.role for m in seen] == [Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.USER]
    assert seen[1].text == "one" and "<overall_task>\ntwo\n" in seen[-1].text


def test_a_step_sees_its_own_calls_only():
    mine, theirs = called(1), called(0)
    question = Question((
        user("Ask."),
        Message(Role.ASSISTANT, (Text("Let me see."), theirs, mine)),
        result(theirs, "for 0"),
        result(mine, "for 1"),
    ))  # fmt: skip
    for step, call, text in ((0, theirs, "for 0"), (1, mine, "for 1")):
        _, turn, answer = worker_messages(question, FLOW, step, NOW, {RUN})
        assert turn.parts == (Text("Let me see."), call)
        assert answer.parts == (ToolResult(call.id, text),)
    # calls of somebody else's run are a part of the conversation that everybody sees
    assert len(worker_messages(question, FLOW, 0, NOW, ())) == 4


def test_calls_of_another_round_are_another_steps():
    question = Question((user("Ask."), Message(Role.ASSISTANT, (called(0, played=1),))))
    assert len(turns_of_step(question.messages[1:], 0, 0, {RUN})) == 0
    assert len(turns_of_step(question.messages[1:], 1, 0, {RUN})) == 1


def test_the_question_of_a_workflow_stays_the_question():
    call = called(1)
    question = Question((
        user("Ask."), Message(Role.ASSISTANT, (call,)),
        Message(Role.USER, (ToolResult(call.id, "x"), Text("hurry"))),
    ))  # fmt: skip
    assert asked(question, {RUN}) == 0 and asked(question) == 2
    _, _, last = worker_messages(question, FLOW, 1, NOW, {RUN})
    assert last.parts == (ToolResult(call.id, "x"), Text("hurry"))
    # the other step sees the words of the user, not the result
    assert worker_messages(question, FLOW, 0, NOW, {RUN})[-1].parts == (Text("hurry"),)


def test_a_conductors_prompt_holds_the_conversation():
    pool = Pool((Worker(WorkerId("w"), "m"),))
    question = Question((user("one"), assistant("1"), user("two")))
    text = conductor_request(Brief(question, pool), Rendering(), Worker("w", "m").sampling)
    assert "User: one\n\nAssistant: 1\n\nUser: two" in text.messages[0].text
