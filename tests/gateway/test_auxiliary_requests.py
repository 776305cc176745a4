"""What coding agents ask for themselves is answered by one cheap call, and never conducted."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from batuta.clients import ScriptedClient
from batuta.conductors import sequential_chain
from batuta.core import Pool, Price, Question, Reply, Tool, Worker, WorkerId, user_message
from batuta.core.message import Message, Role, Text
from batuta.gateway.chat.request import parse_chat
from batuta.gateway.http.body import Fields
from batuta.gateway.messages.request import parse_message
from batuta.gateway.responses.request import ResponseHistory, parse_response
from batuta.gateway.serving.models import served_models
from batuta.gateway.serving.prepare import answer_alone, auxiliary_kind
from batuta.store import Store
from gateway.live_server import HI, Serving, scripted_state, server_state, stored

pytestmark = pytest.mark.anyio
SCHEMA = {
    "type": "object",
    "properties": {"title": {"type": "string"}},
    "required": ["title"],
    "additionalProperties": False,
}
TITLE_OF_CLAUDE_CODE = {
    "model": "batuta-ultra",
    "max_tokens": 64000,
    "stream": True,
    "thinking": {"type": "disabled"},
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.197"},
        {"type": "text", "text": "You are Claude Code, Anthropic's official CLI for Claude."},
        {"type": "text", "text": "Generate a concise, sentence-case title (3-7 words)."},
    ],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "<session>\nFix it\n</session>"}]}
    ],
    "tools": [],
    "metadata": {"user_id": '{"device_id":"d","account_uuid":"","session_id":"s"}'},
    "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
}
TITLE_OF_OPENCODE = {
    "model": "batuta-ultra",
    "max_tokens": 32000,
    "messages": [
        {"role": "system", "content": "You are a title generator. You output ONLY a thread title."},
        {"role": "user", "content": "Generate a title for this conversation:\n"},
        {"role": "user", "content": "Fix it"},
    ],
}
TOPIC = {
    "model": "batuta-ultra",
    "max_tokens": 512,
    "system": "Analyze if this message indicates a new conversation topic. If it does, extract a "
    "2-3 word title. Format your response as a JSON object with two fields: 'isNewTopic' "
    "(boolean) and 'title'.",
    "messages": HI,
}
PROBE = {
    "model": "batuta-ultra",
    "max_tokens": 1,
    "messages": [{"role": "user", "content": "quota"}],
}
SEARCH = {
    "model": "batuta-ultra",
    "max_tokens": 32000,
    "system": "You are an assistant for performing a web search tool use",
    "messages": [
        {"role": "user", "content": "Perform a web search for the query: sum of two numbers"}
    ],
    "tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 8}],
    "tool_choice": {"type": "auto"},
    "output_config": {"effort": "high"},
}
SUMMARY = {
    "model": "batuta-ultra",
    "max_tokens": 32000,
    "messages": [
        *HI,
        {"role": "assistant", "content": "Done."},
        {
            "role": "user",
            "content": "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.\n\nYour task is to "
            "create a detailed summary of the conversation so far, paying close attention.",
        },
    ],
    "tools": [{"name": "Read", "input_schema": {"type": "object"}}],
    "thinking": {"type": "adaptive"},
}
WITH_TOOLS = {"a compaction of Claude Code"}
COMPACTION = {
    "model": "batuta-ultra",
    "store": False,
    "input": [
        {"role": "developer", "content": "You are Codex."},
        {"role": "user", "content": "Fix it"},
        {"role": "assistant", "content": "Done."},
        {
            "role": "user",
            "content": [
                {
                    "type": "input_text",
                    "text": "You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff "
                    "summary for another LLM that will resume the task.",
                }
            ],
        },
    ],
}
FORMS = {
    "a title of Claude Code": ("/v1/messages", TITLE_OF_CLAUDE_CODE, "a title"),
    "a title of Claude Code, asked of a model that it does not know": (
        "/v1/messages",
        {name: value for name, value in TITLE_OF_CLAUDE_CODE.items() if name != "thinking"},
        "a title",
    ),
    "a title of opencode": ("/v1/chat/completions", TITLE_OF_OPENCODE, "a title"),
    "a topic check": ("/v1/messages", TOPIC, "a topic check"),
    "a quota probe": ("/v1/messages", PROBE, "a quota probe"),
    "a compaction of Claude Code": ("/v1/messages", SUMMARY, "a compaction"),
    "a web search of Claude Code": ("/v1/messages", SEARCH, "a web search"),
    "a compaction of Codex": ("/v1/responses", COMPACTION, "a compaction"),
}


def parsed(path, body):
    fields = Fields(body)
    if path == "/v1/messages":
        return parse_message(fields).call
    if path == "/v1/responses":
        return parse_response(fields, ResponseHistory()).call
    return parse_chat(fields)


@pytest.mark.parametrize("form", FORMS)
def test_the_form_is_known(form):
    path, body, kind = FORMS[form]
    call = parsed(path, body)
    assert auxiliary_kind(call) == kind
    offered = replace(call, question=replace(call.question, tools=(Tool(name="read"),)))
    assert auxiliary_kind(offered) == (kind if form in WITH_TOOLS else None)
    planned = replace(call, options=replace(call.options, dry_run=True))
    assert auxiliary_kind(planned) is None


def without(body, *path):
    *tables, last = path
    body = inner = {**body}
    for name in tables:
        inner[name] = {**inner[name]}
        inner = inner[name]
    del inner[last]
    return body


TITLE = TITLE_OF_CLAUDE_CODE
PEOPLE = {
    "words of a summary of a person": (
        "/v1/messages", SUMMARY | {"messages": [{"role": "user", "content":
            "Your task is to create a detailed summary of the conversation so far."}]}
    ),
    "a wish for a search, with a tool of the client": (
        "/v1/messages", SEARCH | {"tools": [*SEARCH["tools"], {"name": "read", "input_schema": {}}]}
    ),
    "words of a search without one": ("/v1/messages", without(SEARCH, "tools" )| {"tool_choice": None}),
    "a title without a schema": ("/v1/messages", without(TITLE, "output_config", "format")),
    "a title of no session": ("/v1/messages", TITLE | {"messages": HI}),
    "an answer with a title in it": (
        "/v1/messages",
        TITLE | {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA | {
            "properties": SCHEMA["properties"] | {"text": {"type": "string"}}}}}},
    ),
    "a title of a pasted text": (
        "/v1/chat/completions",
        {"model": "m", "messages": [
            {"role": "user", "content": "Generate a title for this conversation:\nhello, you"}]},
    ),
    "one token of a long text": (
        "/v1/messages", PROBE | {"messages": [{"role": "user", "content": "Is 7 a prime? Y or N"}]},
    ),
    "one token with its probabilities": (
        "/v1/chat/completions", PROBE | {"logprobs": True},
    ),
    "words of a topic check by a person": (
        "/v1/messages", TOPIC | {"system": "Be brief.", "messages": [
            {"role": "user", "content": TOPIC["system"]}]},
    ),
    "words of a compaction in the middle": (
        "/v1/chat/completions",
        {"model": "m", "messages": [{"role": "user", "content":
            "What is this? You are performing a CONTEXT CHECKPOINT COMPACTION."}]},
    ),
    "a system message alone": (
        "/v1/chat/completions",
        {"model": "m", "messages": [{"role": "system", "content": TOPIC["system"]}]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", PEOPLE)
def test_what_a_person_asks_is_conducted(form):
    assert auxiliary_kind(parsed(*PEOPLE[form])) is None


def team(**options):
    replies = {"ada": '{"title": "By ada"}', "bob": '{"title": "By bob"}'}
    clients = {
        name: ScriptedClient(lambda _, text=text: Reply(text=text))
        for name, text in replies.items()
    }
    return scripted_state(clients, **options)


@pytest.mark.parametrize("form", FORMS)
async def test_one_call_answers_it_and_the_run_says_why(form, store: Store):
    path, body, kind = FORMS[form]
    body = {name: value for name, value in body.items() if name not in {"stream", "store"}}
    async with Serving(team(store=store)) as server:
        status, headers, _ = await server.post(path, json=body)
        assert status == 200 and headers["x-batuta-outcome"] == "answered"
        (row,) = await stored(store)
        assert row.conductor == f"{kind}: answered by ada, not conducted"  # at one price the best
        assert (row.model, row.steps) == ("batuta-ultra", 1)
    async with Serving(team(store=store, conducts_auxiliary=True)) as server:
        await server.post(path, json=body)
        rows = await stored(store, 2)
        assert rows[0].conductor in {"chain", "best"}  # without thinking nobody plans


async def test_the_form_that_was_asked_for_is_kept():
    async with Serving(team()) as server:
        body = TITLE_OF_CLAUDE_CODE | {"stream": False}
        _, _, answer = await server.post("/v1/messages", json=body)
        assert answer["content"][0]["text"] == '{"title": "By ada"}'


async def test_a_worker_that_is_asked_by_name_answers_itself():
    async with Serving(team()) as server:
        body = TITLE_OF_OPENCODE | {"model": "worker/bob"}
        _, _, answer = await server.post(json=body)
        assert answer["choices"][0]["message"]["content"] == '{"title": "By bob"}'


async def test_a_small_request_to_mini_goes_to_the_cheapest_worker_and_a_question_to_the_best():
    pool = Pool((replace(worker("bob", 5), strength=0.9), worker("ada", 1)))
    clients = {one.id: ScriptedClient(lambda _, by=one.id: Reply(text=f"By {by}")) for one in pool}
    app_state = server_state(pool, clients, served_models(pool, sequential_chain(["Do."], ["bob"])))
    async with Serving(app_state) as server:
        asked = (TITLE_OF_OPENCODE, PROBE, {"messages": HI})
        for body, by in zip(asked, ("ada", "ada", "bob"), strict=True):
            _, _, answer = await server.post(json=body | {"model": "batuta-mini"})
            assert answer["choices"][0]["message"]["content"] == f"By {by}", body


def worker(name, price, window=None, tags=()):
    price = Price(input=price, output=price)
    return Worker(
        id=WorkerId(name), model=name, price=price, context_window=window, tags=tags, strength=0.5
    )


def test_the_cheapest_model_answers_that_holds_the_question():
    pool = Pool(
        (
            worker("dear", 9),
            worker("cheap", 1, window=100),
            worker("python", 0, tags=("program",)),
            worker("fair", 2, window=100_000),
        )
    )
    served = served_models(pool)[0]

    def chosen(text):
        model = answer_alone(served, "a title", Question.of(text), pool)
        assert model.conductor is not None and model.direct
        return model.conductor.name.split()[4].rstrip(",")

    assert chosen("hi") == "cheap"
    assert chosen("word " * 5000) == "fair"


async def test_somebody_is_there():
    async with Serving(team()) as server, server.http.head("/") as response:
        assert response.status == 200 and await response.read() == b""


REMINDER = "<system-reminder>\nAs you answer …\n</system-reminder>"


@pytest.mark.parametrize(
    ("text", "title"),
    [
        (f"{REMINDER}\n{REMINDER}\n\nFix the test.", "Fix the test."),
        (f"Fix it. {REMINDER}", f"Fix it. {REMINDER}"),
        (REMINDER, REMINDER),
        ("<system-reminder> never ends", "<system-reminder> never ends"),
        ("", ""),
    ],
)
def test_the_title_of_a_run_is_what_the_user_said(text, title):
    assert Question(messages=(user_message(text),)).title == title


def test_a_title_of_very_many_reminders_is_found_at_once():
    text = REMINDER * 20_000 + " " * 100_000 + "<system-reminder>" * 20_000
    assert Question.of(text).title.startswith("<system-reminder><system-reminder>")


async def test_the_list_of_runs_shows_what_the_user_said(store: Store):
    parts = (Text(REMINDER), Text("Fix the test."))
    question = Question(messages=(Message(role=Role.USER, parts=parts),))
    async with Serving(team(store=store)) as server:
        content = [{"type": "text", "text": part.text} for part in parts]
        body = {"model": "batuta-mini", "messages": [{"role": "user", "content": content}]}
        await server.post(json=body)
        (row,) = await stored(store)
        assert row.question_preview == question.title == "Fix the test."


def calls_of_looking(count):
    """How many functions are called to tell what a conversation of so many messages wants."""
    roles = ("user", "assistant")
    spoken = [{"role": role, "content": f"{number}"} for number in range(count) for role in roles]
    call = parsed("/v1/chat/completions", {"model": "m", "messages": spoken})
    seen = []
    sys.setprofile(lambda _, event, __: seen.append(event))
    try:
        auxiliary_kind(call)
    finally:
        sys.setprofile(None)
    return len(seen)


def test_a_conversation_is_looked_at_in_time_linear_in_its_messages():
    assert calls_of_looking(200) < 3 * calls_of_looking(100)
