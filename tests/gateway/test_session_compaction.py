"""What a session knows outlives a compaction: failures, who acts, judgements, turns.

Each client asks for a summary in its own form and goes on with it in its own form.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import orjson
import pytest

from batuta.clients import ScriptedClient
from batuta.conductors.sessions.patterns import Advise, Escalate, Gate
from batuta.conductors.sessions.state import SessionRules
from batuta.core import Cost, Reply, WorkerId
from batuta.gateway.serving.tenant_memory import LocalSessions
from gateway.live_server import Serving
from gateway.test_session_attacks import ChatClient, ClaudeClient, Client, CodexClient
from gateway.test_session_memory import replicas  # noqa: F401 - a fixture
from gateway.test_sessions import FAILED, app_state, call

pytestmark = pytest.mark.anyio
DONE = "done"
"""Whoever acts says that the task is done, until somebody else is noted."""
SUMMARY = "The user wants the sum mended; add.py was read."


def no_tools(body):
    return {name: value for name, value in body.items() if name != "tools"}


class ClaudeCode(ClaudeClient):
    """It asks behind the results, with its tools, and goes on with one message of the user."""

    def wish(self):
        *before, last = self.said
        text = (
            "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.\n\nYour task is to create a "
            "detailed summary of the conversation so far, paying close attention."
        )
        content = last["content"] if isinstance(last["content"], list) else []
        asks = {"role": "user", "content": [*content, {"type": "text", "text": text}]}
        return {**self.body(), "messages": [*before, asks]}

    def go_on(self, _):
        text = (
            "This session is being continued from a previous conversation that ran out of context."
        )
        self.said = [{"role": "user", "content": f"{text}\n\n{SUMMARY}"}]


class Codex(CodexClient):
    """It asks in a last message, and keeps the user's words before the summary."""

    def wish(self):
        text = "You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary."
        body = no_tools(self.body())
        return {**body, "input": [*self.said, {"role": "user", "content": text}]}

    def go_on(self, _):
        text = f"Another language model started to solve this problem.\n{SUMMARY}"
        self.said = [self.said[0], {"role": "user", "content": text}]


class CodexAtHome(CodexClient):
    """Codex with its maker's models: the server compacts."""

    def wish(self):
        return {**self.body(), "input": [*self.said, {"type": "compaction_trigger"}]}

    def go_on(self, events):
        (ended,) = [one for one in events if one["type"] == "response.completed"]
        self.said = [self.said[0], *ended["response"]["output"]]


class OpenCode(ChatClient):
    """It writes the conversation into one message, and goes on with a question and its answer."""

    def wish(self):
        text = (
            "Here is the conversation so far:\n\n<conversation>\n[User]: Mend it\n</conversation>"
            "\n\nCreate a new anchored summary from the conversation history in the <conversation> "
            "tags above so another coding agent can continue the work."
        )
        return {**no_tools(self.body()), "messages": [{"role": "user", "content": text}]}

    def go_on(self, _):
        self.said = [
            {"role": "user", "content": "What did we do so far?"},
            {"role": "assistant", "content": SUMMARY},
            {
                "role": "user",
                "content": "Continue if you have next steps, or stop and ask for clarification if "
                "you are unsure how to proceed.",
            },
        ]


CLIENTS = [ClaudeCode, Codex, CodexAtHome, OpenCode]


@dataclass
class Talk:
    """A client that talks to a server."""

    server: Serving
    client: Any
    asked: list[str]
    """Who acted, each time."""
    limits: dict[str, Any]
    name: str = field(default_factory=lambda: str(uuid.uuid4()))
    session: str = ""

    async def post(self, body):
        body = {**body, "orchestration": {"session": self.limits}}
        headers = {"x-session-id": self.name}
        async with self.server.http.post(self.client.path, json=body, headers=headers) as response:
            text = await response.text()
            assert response.status == 200, text
            self.session = response.headers["x-batuta-session"]
        lines = [line[6:] for line in text.splitlines() if line.startswith("data: {")]
        return [orjson.loads(line) for line in lines]

    async def send(self, *, fails=False):
        """Send the conversation, and do what comes back, which fails or not; return who acted."""
        self.client.fails = fails
        self.client.take(await self.post(self.client.body()))
        return self.asked[-1]

    async def compact(self, *, fails=False):
        """Have the conversation summed up, and go on with the summary; return who acted."""
        before = len(self.asked)
        self.client.go_on(await self.post(self.client.wish()))
        assert len(self.asked) == before, "a summary is nobody's action"
        return await self.send(fails=fails)

    async def finish(self):
        """Send the conversation, and be told that the task is done."""
        acted = self.asked[-1]
        self.asked.append(DONE)
        await self.post(self.client.body())
        self.asked.append(acted)
        self.client.said.append({"role": "assistant", "content": "Done."})

    async def say(self, words):
        self.client.said.append({"role": "user", "content": words})
        return await self.send()


def agents(asked, worker):
    """A worker that writes summaries and else calls a tool, another one each time."""

    def reply(request):
        last = request.messages[-1].text
        if any(words in last for words in ("TEXT ONLY", "CHECKPOINT", "anchored summary")):
            return Reply(text=SUMMARY, cost=Cost(Decimal("0.001")))
        if not request.tools:
            asked.append(f"{worker} advises")
            return Reply(text="Write + for -.", cost=Cost(Decimal("0.001")))
        if asked and asked[-1] == DONE:
            return Reply(text="Done.", cost=Cost(Decimal("0.001")))
        asked.append(worker)
        return call(arguments=f'{{"n":{len(asked)}}}')

    return ScriptedClient(reply)


def open_house(pattern, memory):
    asked: list[str] = []
    clients: Any = {WorkerId(name): agents(asked, name) for name in ("small", "big")}
    return asked, app_state(pattern(clients), clients, sessions=memory)


def failing(kind: type[Client]) -> Any:
    """A client of that kind whose tool fails in the same way where `fails` is set."""
    client: Any = kind()
    client.fails = False
    found = client.found
    client.found = lambda: FAILED if client.fails else found()
    return client


@pytest.mark.parametrize("kind", CLIENTS)
async def test_failures_and_who_acts_outlive_a_compaction(kind, replicas):  # noqa: F811
    """One failure before it and one behind it make two, and the stronger one stays."""
    one, other = replicas
    asked, state = open_house(lambda _: Escalate(), one)
    async with Serving(state) as server:
        talk = Talk(server, failing(kind), asked, {"max_turns": 2})
        assert await talk.send(fails=True) == "small"
        assert await talk.send() == "small", "one failure was told"
        assert await talk.compact(fails=True) == "small", "the task goes on"
        assert await talk.send() == "big", "the second failure"
        assert await talk.compact() == "big"
        assert await talk.send() == "big"
        assert await talk.say("Now the docs") == "small"
    kept = await other.load("local", talk.session)
    assert kept.turns == 2 and len(kept.threads) == 1


@pytest.mark.parametrize("kind", [ClaudeCode, Codex, CodexAtHome])
async def test_a_failure_that_is_told_with_the_wish_for_a_summary_counts(kind):
    asked, state = open_house(lambda _: Escalate(), LocalSessions())
    async with Serving(state) as server:
        talk = Talk(server, failing(kind), asked, {})
        assert await talk.send(fails=True) == "small"
        assert await talk.compact(fails=True) == "small"
        assert await talk.send() == "big"


@pytest.mark.parametrize("kind", CLIENTS)
async def test_the_same_failure_before_and_behind_a_compaction_is_the_same_failure_twice(kind):
    asked, state = open_house(lambda _: Advise(), LocalSessions())
    async with Serving(state) as server:
        talk = Talk(server, failing(kind), asked, {})
        await talk.send(fails=True)
        await talk.send()
        await talk.compact(fails=True)
        assert set(asked) == {"small"}
        await talk.send()
        assert asked[-2:] == ["big advises", "small"]


@pytest.mark.parametrize("kind", CLIENTS)
async def test_after_a_compaction_between_two_tasks_nothing_is_carried_on(kind):
    asked, state = open_house(lambda _: Escalate(), LocalSessions())
    async with Serving(state) as server:
        talk = Talk(server, failing(kind), asked, {})
        await talk.send(fails=True)
        await talk.send(fails=True)
        assert await talk.send() == "big"
        await talk.finish()
        talk.client.go_on(await talk.post(talk.client.wish()))
        assert await talk.say("Now the docs") == "small"


async def test_an_agent_that_is_started_after_a_compaction_begins_with_nothing():
    asked, state = open_house(lambda _: Escalate(), LocalSessions())
    async with Serving(state) as server:
        talk = Talk(server, failing(ClaudeCode), asked, {})
        await talk.send(fails=True)
        await talk.send(fails=True)
        assert await talk.send() == "big" and await talk.compact() == "big"
        started = Talk(server, failing(ClaudeCode), asked, {}, talk.name)
        started.client.said = [{"role": "user", "content": "Look for the tests"}]
        assert await started.send(fails=True) == "small"
        assert await started.send() == "small" and await talk.send() == "big"


@pytest.mark.parametrize("kind", CLIENTS)
async def test_an_agent_that_begins_before_the_summary_is_gone_on_with_takes_nothing(kind):
    """It has other tools than the agent that started it, as in Claude Code and opencode."""
    asked, state = open_house(lambda _: Escalate(), LocalSessions())
    async with Serving(state) as server:
        talk = Talk(server, failing(kind), asked, {"max_turns": 2})
        await talk.send(fails=True)
        await talk.send(fails=True)
        assert await talk.send() == "big"
        summed_up = await talk.post(talk.client.wish())
        started = Talk(server, failing(ChatClient), asked, {"max_turns": 2}, talk.name)
        started.client.said = [{"role": "user", "content": "Look for the tests"}]
        more = {"type": "function", "function": {"name": "look"}}
        started.client.extra = {"tools": [*ChatClient.extra["tools"], more]}
        assert await started.send() == "small"
        talk.client.go_on(summed_up)
        assert await talk.send() == "big", "the task goes on"


async def test_a_judge_is_asked_no_more_often_because_of_a_compaction():
    asked: list[str] = []
    judge = ScriptedClient(["REDO: no test ran.", "ACCEPT"])
    clients: Any = {WorkerId("small"): agents(asked, "small"), WorkerId("big"): judge}
    rules = SessionRules(consultations=1)
    state = app_state(Gate(clients=clients), clients, sessions=LocalSessions(), session_rules=rules)
    async with Serving(state) as server:
        talk = Talk(server, failing(ClaudeCode), asked, {})
        await talk.send()
        await talk.finish()
        assert len(judge.requests) == 1
        await talk.say("Now the docs")
        await talk.compact()
        await talk.finish()
        assert len(judge.requests) == 1
