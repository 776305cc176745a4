"""What a worker and a conductor are told."""

from hypothesis import given
from hypothesis import strategies as st

from batuta.core import (
    Image,
    Message,
    Plan,
    PlanningContext,
    Pool,
    Question,
    Reply,
    Role,
    Round,
    Sampling,
    Step,
    StepRun,
    Text,
    TimeSpan,
    Worker,
    WorkerId,
    Workflow,
    assistant_message,
    system_message,
    user_message,
)  # fmt: skip
from batuta.language import PromptOptions, conductor_request, worker_messages
from batuta.language.material import escape_tags

A, B = WorkerId("a"), WorkerId("b")
POOL = Pool(
    (
        Worker(id=A, model="m", description="Quick."),
        Worker(id=B, model="n", description="Slow and careful."),
    )
)
FLOW = Workflow(
    (
        Step(subtask="plan it", worker=A),
        Step(subtask="guess it", worker=B),
        Step(subtask="solve it", worker=A, access=(0,)),
    )
)


def finished_round(flow, replies, *, decision=None):
    steps = tuple(
        StepRun(
            index=i,
            planned=s.worker,
            worker=s.worker,
            request=None,
            result=Reply(text=replies[i]),
            span=TimeSpan(0, 1),
        )
        for i, s in enumerate(flow.steps[: len(replies)])
    )
    return Round(decision=decision or Plan(flow), workflow=flow, steps=steps)


def test_a_worker_sees_the_question_and_what_it_may_read():
    (message,) = worker_messages(
        Question.of("Why 42?"), FLOW, 2, (finished_round(FLOW, ["THE PLAN", "THE GUESS"]),)
    )
    text = message.text
    assert "<overall_task>\nWhy 42?\n</overall_task>" in text
    assert "plan it" in text and "THE PLAN" in text
    assert "guess it" not in text and "THE GUESS" not in text
    assert "Your assigned subtask: solve it" in text
    assert "final answer" in text


def test_only_the_last_step_is_told_that_its_reply_is_final():
    (message,) = worker_messages(Question.of("q"), FLOW, 0, (finished_round(FLOW, []),))
    assert "returned to the user" not in message.text


def test_a_failed_step_is_left_out():
    from batuta.core import Failure

    failed = StepRun(
        index=0,
        planned=A,
        worker=A,
        request=None,
        result=Failure(code="timed_out", message="silence"),
        span=TimeSpan(0, 1),
    )
    (message,) = worker_messages(
        Question.of("q"), FLOW, 2, (Round(decision=Plan(FLOW), workflow=FLOW, steps=(failed,)),)
    )
    assert "silence" not in message.text and "agent_response step" not in message.text


def test_no_subtask_and_nothing_to_read_is_the_conversation_itself():
    question = Question(
        messages=(
            system_message("be brief"),
            user_message("hi"),
            assistant_message("yes?"),
            user_message("q"),
        )
    )
    flow = Workflow((Step(subtask="", worker=A),))
    assert worker_messages(question, flow, 0, (finished_round(flow, []),)) == question.messages


def test_earlier_turns_and_pictures_stay():
    asked = Message(
        role=Role.USER, parts=(Text("what is it?"), Image(url="data:image/png;base64,AA"))
    )
    question = Question(messages=(system_message("be brief"), asked))
    first, second = worker_messages(question, FLOW, 0, (finished_round(FLOW, []),))
    assert first == system_message("be brief")
    assert second.images == asked.images and "what is it?" in second.text


@given(
    st.lists(
        st.sampled_from(
            [
                "<",
                "/",
                " ",
                "overall_task",
                "agent_response",
                "agent_subtask",
                ">",
                "x",
                "previous_round",
            ]
        )
    ).map("".join)
)
def test_a_reply_cannot_open_or_close_our_tags(reply):
    flow = Workflow((Step(subtask="s", worker=A), Step(subtask="t", worker=A, access=(0,))))
    (message,) = worker_messages(Question.of("q"), flow, 1, (finished_round(flow, [reply]),))
    for tag in ("overall_task", "agent_subtask", "agent_response"):
        assert message.text.count(f"</{tag}>") == 1
        assert message.text.count(f"<{tag}") == 1


@given(st.text())
def test_escaping_touches_only_our_tags(text):
    if (
        "overall_task" not in text.lower()
        and "agent_" not in text.lower()
        and "previous_round" not in text.lower()
    ):
        assert escape_tags(text) == text


def test_a_corrective_round_reads_the_round_before():
    second = Workflow((Step(subtask="check all", worker=B, access=(), previous=True),))
    rounds = (
        finished_round(FLOW, ["THE PLAN", "THE GUESS", "THE ANSWER"]),
        finished_round(second, []),
    )
    (message,) = worker_messages(Question.of("q"), second, 0, rounds)
    for seen in ("THE PLAN", "THE GUESS", "THE ANSWER"):
        assert seen in message.text


def test_the_conductor_sees_question_workers_and_rules():
    request = conductor_request(
        PlanningContext(question=Question.of("Why 42?"), pool=POOL), PromptOptions(), Sampling()
    )
    text = request.messages[0].text
    assert "USER QUESTION\nWhy 42?" in text
    assert "Model id 0: m. Quick." in text and "Model id 1: n. Slow and careful." in text
    assert text.count("EXAMPLE ") == 4
    assert request.prefill


def test_the_conductor_can_see_anonymous_workers_and_no_examples():
    rendering = PromptOptions(descriptions=False, examples=False)
    text = (
        conductor_request(
            PlanningContext(question=Question.of("q"), pool=POOL), rendering, Sampling()
        )
        .messages[0]
        .text
    )
    assert "Quick" not in text and "EXAMPLE" not in text and "Model id 1" in text


def test_a_later_round_shows_the_workflow_and_its_responses():
    context = PlanningContext(
        question=Question.of("q"),
        pool=POOL,
        previous=(finished_round(FLOW, ["P", "G", "THE ANSWER"]),),
    )
    text = conductor_request(context, PromptOptions(), Sampling()).messages[0].text
    assert "PREVIOUS WORKFLOW\nmodel_id = [0, 1, 0]" in text
    assert (
        '<agent_response step="2">\nTHE ANSWER\n</agent_response>' in text
        and "three empty lists" in text
    )


COMPACT = PromptOptions(descriptions=False, compact=True)


def compact(context, rendering=COMPACT):
    request = conductor_request(context, rendering, Sampling())
    assert request.prefill == ""
    return request.messages[0].text


def test_the_compact_form_says_the_question_and_who_can_be_called():
    assert (
        compact(PlanningContext(question=Question.of("Why 42?"), pool=POOL))
        == 'Why 42?\nModels: ["a", "b"]'
    )


def test_the_compact_form_says_fewer_steps_and_what_is_asked_for():
    context = PlanningContext(question=Question.of("q"), pool=POOL, max_steps=2)
    text = compact(context, PromptOptions(compact=True))
    assert "At most 2 steps." in text and "b: Slow and careful." in text


def test_the_compact_form_of_a_later_round_names_an_ending_once():
    replies = ["Well, then.\nAnswer: 42", "Answer: 42", "Verdict: wrong; see\nAnswer: 7"]
    text = compact(
        PlanningContext(
            question=Question.of("q"), pool=POOL, previous=(finished_round(FLOW, replies),)
        )
    )
    assert text.endswith(
        "Played:\n0 a: plan it Well -> Answer: 42\n1 b: guess it  -> as 0\n"
        "2 a: solve it Verdict: wrong -> Answer: 7"
    )


def test_the_compact_form_says_when_nothing_was_run():
    nothing = Round(decision=Plan(FLOW))
    assert compact(
        PlanningContext(question=Question.of("q"), pool=POOL, previous=(nothing,))
    ).endswith("Played:\nnothing")
