"""The playground as a conversation: turns, files, settings, and what an earlier run leaves to them."""

import base64
import json
from typing import Any, cast

import pytest

from batuta.clients import ScriptedClient
from batuta.core import (
    Finish,
    Image,
    Message,
    Question,
    Reply,
    Role,
    Sampling,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    Worker,
    WorkerId,
)
from batuta.core.message import assistant_message, system_message, user_message
from batuta.gateway.errors import APIError
from batuta.gateway.ui.conversation import Conversation, encode_question, sent_results
from gateway.ui.conftest import sound
from gateway.ui.page_server import HOSTILE, QUESTION, PageServer
from gateway.ui.test_browser import answered

SECOND = "Compute the result: begin at 4050; halve it."
PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
TOOL = Tool(name="clock", description="The time.")


class Asked:
    """A run, as far as a further question looks at it."""

    def __init__(self, *messages, answer: str | None = "It is four.", reply=None, **question):
        self.header = self
        self.question = Question(messages=messages, **question)
        self.answer, self.reply = answer, reply


def asking(*messages, **question):
    return Question(messages=messages, **question)


def texts(question):
    return [(message.role.value, message.text) for message in question.messages]


def test_a_question_is_sent_behind_what_was_said_before():
    run = Asked(
        system_message("Be brief."), user_message("One?"), assistant_message("1"),
        user_message("Two?"), tools=(TOOL,), sampling=Sampling(stop=("END",), temperature=1.0),
    )  # fmt: skip
    said = Conversation(cast("Any", run)).continue_with(
        asking(system_message("Be long."), user_message("Four?"), sampling=Sampling(seed=7))
    )
    assert texts(said) == [
        ("system", "Be long."), ("user", "One?"), ("assistant", "1"), ("user", "Two?"),
        ("assistant", "It is four."), ("user", "Four?"),
    ]  # fmt: skip
    assert said.tools == (TOOL,)
    assert said.sampling == Sampling(stop=("END",), seed=7), "the form's own fields are the form's"


def test_a_question_without_an_answer_is_left_out_of_what_follows():
    run = Asked(user_message("One?"), assistant_message("1"), user_message("Two?"), answer=None)
    said = Conversation(cast("Any", run)).continue_with(asking(user_message("Three?")))
    assert texts(said) == [("user", "One?"), ("assistant", "1"), ("user", "Three?")]


def test_asking_again_keeps_pictures_and_results_of_tools():
    picture = Image(url=PIXEL)
    run = Asked(
        user_message("One?"), assistant_message("1"),
        Message(role=Role.USER, parts=(Text("What is this?"), picture)),
        Message(role=Role.ASSISTANT, parts=(ToolCall(id="c", name="clock", arguments="{}"),)),
        Message(role=Role.TOOL, parts=(ToolResult(call_id="c", content="noon"),)),
    )  # fmt: skip
    said = Conversation(cast("Any", run)).ask_again(asking(user_message("What is that?")))
    assert said.messages[2].parts == (picture, Text("What is that?"))
    assert said.messages[3:] == run.question.messages[3:]
    assert said.messages[:2] == run.question.messages[:2]
    kept = Conversation(cast("Any", run))
    assert (kept.turns_before, kept.attachments) == (1, ["picture"])


@pytest.mark.parametrize(
    "messages",
    [(user_message("a"), user_message("b")), (system_message("a"),), (assistant_message("a"),)],
)
def test_one_message_asks(messages):
    with pytest.raises(APIError, match="exactly one user message"):
        Conversation(cast("Any", Asked(user_message("One?")))).continue_with(asking(*messages))


@pytest.mark.parametrize("text", ["let me see", None])
def test_what_waits_for_tools_is_not_continued_by_words(text):
    call = ToolCall(id="c", name="clock", arguments="{}")
    run = Asked(user_message("One?"), answer=text, reply=ReplyOf(call))
    with pytest.raises(APIError, match="waits for tool results"):
        Conversation(cast("Any", run)).continue_with(asking(user_message("Two?")))


class ReplyOf:
    reasoning = "I must look."

    def __init__(self, *calls):
        self.tool_calls = calls


def result_of(call_id, text):
    return Message(role=Role.TOOL, parts=(ToolResult(call_id=call_id, content=text),))


def test_results_of_tools_stand_behind_the_calls_that_they_answer():
    calls = [ToolCall(id=name, name="clock", arguments="{}") for name in ("c", "d")]
    run = Asked(user_message("One?"), answer=None, reply=ReplyOf(*calls), tools=(TOOL,))
    kept = Conversation(cast("Any", run))
    given = asking(result_of("d", "noon"), result_of("c", "one"))
    said = kept.answer_calls(given)
    assert [m.role.value for m in said.messages] == ["user", "assistant", "tool", "tool"]
    assert said.messages[1].parts == tuple(calls)
    assert (said.messages[1].reasoning, said.tools) == ("I must look.", (TOOL,))
    assert sent_results(said) == [("clock", "noon"), ("clock", "one")]
    further = asking(*said.messages, user_message("And now?"))
    assert sent_results(further) == []
    for wrong in (asking(result_of("c", "one")), asking(*given.messages, result_of("c", "two"))):
        with pytest.raises(APIError, match="each tool call of the worker needs one result"):
            kept.answer_calls(wrong)


def test_the_tools_of_a_run_are_shown_as_the_api_has_them():
    run = Asked(user_message("One?"), tools=(TOOL,))
    (tool,) = json.loads(Conversation(cast("Any", run)).tools)
    assert tool["type"] == "function"
    assert tool["function"]["name"] == "clock"
    assert Conversation(cast("Any", Asked(user_message("One?")))).tools == ""


def test_the_whole_body_has_all_that_was_said():
    question = asking(
        Message(role=Role.DEVELOPER, parts=(Text("Be brief."),)),
        Message(role=Role.USER, parts=(Text("What is this?"), Image(url=PIXEL))),
        tools=(TOOL,), sampling=Sampling(temperature=0.5, effort="high"),
    )  # fmt: skip
    body = encode_question(question)
    assert [each["role"] for each in body["messages"]] == ["developer", "user"]
    assert body["messages"][1]["content"][1]["image_url"] == {"url": PIXEL}
    assert body["tools"][0]["function"]["name"] == "clock"
    assert (body["temperature"], body["reasoning_effort"]) == (0.5, "high")
    assert "model" not in body


def test_a_conversation_of_three_turns_survives_loading_it_again(app_state, visit, ask):
    page = visit(app_state)
    page.click(".composing > summary")
    page.fill("[name=system]", "Answer with a number.")
    page.fill("[name=temperature]", "0.5")
    ask(page, QUESTION)
    answered(page)
    chat = page.url
    ask(page, SECOND)
    page.wait_for_selector(".turn:nth-child(2) [data-links] a")
    assert page.url == chat
    sound(page)
    page.reload()
    assert page.locator(".turn").count() == 2
    assert page.input_value("[name=system]") == "Answer with a number."
    assert page.input_value("[name=temperature]") == "0.5"
    assert page.inner_text("[data-picked]").startswith("all")
    page.set_input_files(
        "[data-attach]", {"name": "notes.md", "mimeType": "text/markdown", "buffer": b"It is odd."}
    )
    page.wait_for_selector(".composer .files >> text=notes.md")
    sound(page)
    ask(page, "Third?")
    page.wait_for_selector(".turn:nth-child(3) [data-links] a")
    run = page.locator(".turn:nth-child(3) [data-links] a").first.get_attribute("href")
    stored = app_state.call(app_state.store.get, run.rpartition("/")[2])
    assert [m.role.value for m in stored.header.question.messages] == [
        "system", "user", "assistant", "user", "assistant", "user",
    ]  # fmt: skip
    assert "It is odd." in stored.header.question.text
    assert stored.header.question.sampling.temperature == 0.5
    page.locator(".turn:nth-child(2) [data-node]").first.click()
    assert page.locator("[data-panel]:visible").count() == 1
    page.click("[data-copy=curl]")
    page.wait_for_selector(".toast")
    text = page.evaluate("navigator.clipboard.readText()")
    body = json.loads(text.partition("-d '")[2].removesuffix("'").replace("'\\''", "'"))
    assert len(body["messages"]) == 8
    page.goto("/ui/")
    page.click(".recent a")
    assert page.url == chat
    page.click("text=New conversation")
    page.wait_for_selector(".examples")
    assert page.locator(".turn").count() == 0


def test_a_conversation_that_goes_on_is_stopped_after_loading_it_again(app_state, visit, ask):
    page = visit(app_state)
    ask(page, "Will this ever end?", "sloth")
    page.wait_for_selector('[data-state="running"]')
    page.reload()
    page.wait_for_selector('[data-state="running"]')
    page.click("[data-stop]")
    page.wait_for_selector("[data-answer] .failure")
    ask(page, QUESTION, "batuta-ultra")
    page.wait_for_selector(".turn:nth-child(2) [data-answer] .answer")
    run = page.locator(".turn:nth-child(2) [data-links] a").first.get_attribute("href")
    stored = app_state.call(app_state.store.get, run.rpartition("/")[2])
    assert texts(stored.header.question) == [("user", QUESTION)], "what had no answer is left out"


def test_a_question_of_some_lines_is_shown_whole_on_a_telephone(app_state, visit, ask):
    page = visit(app_state, width=390)
    ask(page, "Will this ever end, and is what comes last seen? " * 6, "worker/piano")
    answered(page)
    assert page.evaluate("""() => [...document.querySelectorAll(".asked, .asked p")]
        .every((each) => each.scrollHeight <= each.clientHeight)""")


def test_a_refused_question_can_be_asked_again_at_once(app_state, visit, ask):
    page = visit(app_state)
    page.watch.expected += ["400 (Bad Request)"]
    picture = {"name": "dot.png", "mimeType": "image/png", "buffer": base64.b64decode(PIXEL[22:])}
    page.set_input_files("[data-attach]", picture)
    ask(page, "What is this?")
    page.wait_for_selector("[data-answer] .failure")
    assert page.input_value("#question") == "What is this?"
    page.click("[aria-label='Remove dot.png']")
    page.fill("#question", QUESTION)
    page.click("[data-go]")
    answered(page)
    assert page.locator(".turn").count() == 1


def test_a_question_is_asked_once_however_often_it_is_sent(app_state, visit, ask):
    page = visit(app_state)
    page.click(".composing > summary")
    page.fill("[name=tools]", '[{"type": "function", "function": {"name": "clock"}}]')
    page.fill("#question", "Will this ever end?")
    page.select_option("select[name=model]", "sloth")
    page.dblclick("[data-go]")
    page.wait_for_selector('[data-state="running"]')
    page.fill("#question", "And then?")
    page.keyboard.press("Control+Enter")
    page.fill("[name=max_cost_usd]", "1")
    page.keyboard.press("Enter")
    page.click("[data-stop]")
    answered = page.locator("[data-links] a")
    answered.first.wait_for()
    assert page.locator(".turn").count() == 1
    assert page.locator("[data-dry]").is_visible()
    page.select_option("select[name=model]", "worker/piano")
    page.fill("[name=max_cost_usd]", "2")
    page.keyboard.press("Enter")  # asks, and does not only plan
    page.wait_for_selector(".turn:nth-child(2) [data-answer] .answer:not(.live)")


def test_settings_are_kept_under_a_name_in_the_browser(app_state, visit):
    page = visit(app_state)
    page.click(".composing > summary")
    page.fill("[name=system]", "Be brief.")
    page.fill("[name=max_cost_usd]", "0.02")
    page.fill("[data-preset-name]", HOSTILE[1])
    page.keyboard.press("Enter")
    page.wait_for_selector(".toast:has-text('Saved')")
    page.reload()
    page.click(".composing > summary")
    page.select_option("[data-preset]", HOSTILE[1])
    assert page.input_value("[name=system]") == "Be brief."
    assert page.input_value("[name=max_cost_usd]") == "0.02"
    sound(page)
    page.click("[data-preset-delete]")
    assert page.locator("[data-preset] option").count() == 1


def call_the_clock(request):
    results = [p.content for m in request.messages for p in m.parts if isinstance(p, ToolResult)]
    if results:
        return f"It is {results[-1]}."
    call = ToolCall(id="c1", name=request.tools[0].name, arguments='{"zone": "UTC"}')
    return Reply(text="", tool_calls=(call,), finish=Finish.TOOL_CALLS)


@pytest.fixture(scope="module")
def tooled(tmp_path_factory):
    worker = Worker(id=WorkerId("watch"), model="watch", description="Looks at a clock.")
    others = ((worker, ScriptedClient(call_the_clock)),)
    with PageServer(tmp_path_factory.mktemp("tooled"), pace=0.0, others=others).open() as app_state:
        yield app_state


def test_tools_that_cannot_be_sent_are_said_before_anything_is_asked(tooled, visit, ask):
    page = visit(tooled)
    page.watch.expected += ["400 (Bad Request)"]
    page.click(".composing > summary")
    page.fill("[name=tools]", '[{"type": "function"')
    page.keyboard.press("Tab")
    page.wait_for_selector("#tools-fault:has-text('This is not JSON')")
    sound(page)
    page.fill("[name=tools]", '[{"type": "function", "function": {"name": "the clock"}}]')
    ask(page, "What time is it?", "worker/watch")
    page.wait_for_selector("#tools-fault:has-text('tools[0].function.name')")
    page.wait_for_function("document.activeElement.name === 'tools'")
    assert page.locator(".turn").count() == 0


@pytest.mark.slow
def test_a_call_of_a_tool_is_answered_in_its_turn_and_the_conversation_goes_on(tooled, visit, ask):
    page = visit(tooled)
    page.click(".composing > summary")
    page.fill("[name=tools]", '[{"type": "function", "function": {"name": "clock"}}]')
    ask(page, "What time is it?", "worker/watch")
    page.wait_for_selector("[data-calls] pre:has-text('clock')")
    chat = page.url
    page.fill("[data-call]", "noon")
    page.reload()
    sound(page)
    page.click("[data-send-results]")
    page.wait_for_selector(".toast:has-text('Type the result')")
    page.fill("[data-call]", "noon")
    page.click("[data-send-results]")
    page.wait_for_selector(".turn:nth-child(2) [data-answer] .answer:has-text('It is noon.')")
    assert page.url == chat
    assert page.locator("[data-call]:visible").count() == 0
    sound(page)
    page.reload()
    assert page.inner_text(".turn:nth-child(2) .asked") == "Result of clock noon"
    assert json.loads(page.input_value("[name=tools]"))[0]["function"]["name"] == "clock"
    page.click(".composing > summary")
    page.fill("[name=tools]", "")
    ask(page, "And now?")
    page.wait_for_selector(".turn:nth-child(3) [data-links] a")
    run = page.locator(".turn:nth-child(3) [data-links] a").first.get_attribute("href")
    stored = tooled.call(tooled.store.get, run.rpartition("/")[2])
    roles = [m.role.value for m in stored.header.question.messages]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]
    assert stored.header.question.tools == ()
