"""Prompts that are cached at their providers: marks, keys, one worker for a conversation, a bill."""

from decimal import Decimal

import pytest
from bench.prompt_cache import SYSTEM, TOOLS, run_session

from batuta.clients import HttpTransport, ScriptedClient
from batuta.clients.anthropic.client import AnthropicAdapter, AnthropicClient, claude_rules
from batuta.clients.http_target import Secret
from batuta.clients.openai.client import (
    COMPATIBLE_DIALECT,
    OPENAI_DIALECT,
    OPENROUTER_DIALECT,
    OpenAIChatAdapter,
)
from batuta.clients.replay import request_fingerprint
from batuta.conductors import sequential_chain
from batuta.core import (
    Message,
    Plan,
    Pool,
    Price,
    PromptCache,
    Question,
    Reply,
    Request,
    Role,
    Round,
    Step,
    Text,
    Worker,
    WorkerId,
    Workflow,
    assistant_message,
    user_message,
)
from batuta.core.workflow import Draft
from batuta.errors import ProviderOverloadedError
from batuta.gateway import served_models
from batuta.gateway.access.caller import Caller
from batuta.gateway.serving.tenant_memory import tenant_key
from batuta.language import worker_messages
from fakes.caching import CachingAnthropic, dollars
from gateway.live_server import HI, Serving, scripted_state, server_state

pytestmark = pytest.mark.anyio
MARK = {"type": "ephemeral"}
PRICE = Price(
    input=Decimal(3), output=Decimal(15), cached=Decimal("0.3"), cache_write=Decimal("3.75")
)


async def heard_by(path, body):
    heard = []

    def answer(request):
        heard.append(request)
        return "Fine."

    async with Serving(ada=ScriptedClient(answer)) as server:
        status, headers, said = await server.post(path, json={"model": "worker/ada", **body})
    assert status == 200, said
    return heard[0], headers


async def test_marks_and_keys_of_every_dialect_reach_the_worker():
    text = {"type": "text", "text": "Long.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    body = {
        "max_tokens": 9,
        "system": [text],
        "messages": [{"role": "user", "content": [{**text, "cache_control": MARK}]}],
        "tools": [{"name": "look", "input_schema": {"type": "object"}, "cache_control": MARK}],
    }
    request, _ = await heard_by("/v1/messages", body)
    assert [message.parts[0].cache for message in request.messages] == ["1h", "5m"]
    assert request.tools[0].cache == "5m"
    request, _ = await heard_by("/v1/messages", {"max_tokens": 9, "messages": HI, "cache_control": MARK})  # fmt: skip
    assert request.cache == PromptCache(mark="5m")
    chat = {"messages": [{"role": "user", "content": [text]}], "prompt_cache_key": "k"}
    request, headers = await heard_by("/v1/chat/completions", chat)
    assert request.messages[0].parts[0].cache == "1h"
    assert request.cache.key and request.cache.key != "k"
    assert "x-batuta-ignored" not in headers
    body = {"input": "hi", "prompt_cache_key": "k", "prompt_cache_retention": "24h"}
    request, headers = await heard_by("/v1/responses", body)
    assert (request.cache.key is None, request.cache.retention) == (False, "24h")
    assert "x-batuta-ignored" not in headers


@pytest.mark.parametrize("control", ["ephemeral", {}, {"type": "x"}, {"type": "ephemeral", "ttl": "9m"}])  # fmt: skip
async def test_a_malformed_mark_is_refused(control):
    async with Serving() as server:
        part = {"type": "text", "text": "hi", "cache_control": control}
        body = {"model": "worker/ada", "max_tokens": 9, "messages": [{"role": "user", "content": [part]}]}  # fmt: skip
        for path in ("/v1/messages", "/v1/chat/completions"):
            assert (await server.post(path, json=body))[0] == 400


def test_a_key_is_another_one_for_each_tenant():
    asked = Question(messages=(user_message("hi"),), cache=PromptCache(key="k"))
    keys = {tenant_key(asked, Caller(tenant=name).tenant).cache.key for name in ("a", "b")}
    assert len(keys) == 2 and "k" not in keys


MARKED = Request(
    messages=(
        Message(role=Role.SYSTEM, parts=(Text("Rules.", cache="1h"), Text("More."))),
        Message(role=Role.USER, parts=(Text("hi", cache="5m"),)),
    ),
    cache=PromptCache(key="k", retention="24h"),
)


def test_marks_are_written_where_the_provider_knows_them():
    body = AnthropicAdapter("claude-x").build_body(MARKED, stream=False)
    assert body["system"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert "cache_control" not in body["system"][1]
    assert body["messages"][0]["content"][0]["cache_control"] == MARK
    assert "cache_control" not in body, "the client's own marks are enough"
    bare = Request(messages=(user_message("hi"),), cache=PromptCache(key="k"))
    assert AnthropicAdapter("claude-x").build_body(bare, stream=False)["cache_control"] == MARK
    openai = OpenAIChatAdapter("gpt-5", OPENAI_DIALECT).build_body(MARKED, stream=False)
    assert (openai["prompt_cache_key"], openai["prompt_cache_retention"]) == ("k", "24h")
    assert "cache_control" not in str(openai)
    router = OpenAIChatAdapter("anthropic/claude", OPENROUTER_DIALECT).build_body(
        MARKED, stream=False
    )
    assert router["messages"][0]["content"][0]["cache_control"]["ttl"] == "1h"
    assert "prompt_cache_key" not in router
    plain = OpenAIChatAdapter("m", COMPATIBLE_DIALECT).build_body(MARKED, stream=False)
    assert "cache" not in str(plain) and plain["messages"][1]["content"] == "hi"


def test_a_request_without_marks_has_the_fingerprint_that_it_had_before_there_were_any():
    bare = Request(messages=(Message(role=Role.USER, parts=(Text("hi"),)),))
    assert request_fingerprint(bare).hex() == "4f9495c23e641e6da3dd44c4702ad998"


def test_a_conducted_step_caches_the_turns_before_the_one_that_asks():
    question = Question(messages=(*MARKED.messages, assistant_message("Yes?"), MARKED.messages[1]))
    flow = Workflow(
        (
            Step(subtask="Plan.", worker=WorkerId("a")),
            Step(subtask="Do.", worker=WorkerId("a"), access=(0,)),
        )
    )
    rounds = (Round(decision=Plan(flow, Draft()), workflow=flow),)
    said = worker_messages(question, flow, 1, rounds)
    assert [message.parts[-1].cache for message in said] == [None, "5m", "5m", None]
    again = worker_messages(question, flow, 0, rounds)
    assert again[:-1] == said[:-1], "what stands before is the same for every step"


def test_the_models_own_limit_counts_where_none_was_given():
    ask = Request(messages=(user_message("hi"),))
    wire = {name: AnthropicAdapter(name).build_body(ask, stream=False)["max_tokens"] for name in ("claude-opus-4-5", "claude-opus-4-1", "claude-sonnet-4-5", "claude-3-5-haiku-latest", "claude-x")}  # fmt: skip
    assert list(wire.values()) == [64_000, 32_000, 64_000, 8_192, 4_096]
    assert claude_rules("claude-opus-4-6-20260205").max_output == 128_000


class Flaky:
    """Fails once."""

    def __init__(self, name, log):
        self.name, self.log, self.fails = name, log, 0

    async def complete(self, request, listener=None):
        self.log.append(self.name)
        if self.fails:
            self.fails -= 1
            raise ProviderOverloadedError("busy")
        return Reply(text="Fine.")


async def test_a_conversation_stays_with_the_worker_that_answered_it():
    log = []
    ada, bob = Flaky("ada", log), Flaky("bob", log)
    said = [*HI]
    async with Serving(scripted_state({"ada": ada, "bob": bob})) as server:

        async def turn(messages):
            log.clear()
            status, _, body = await server.post(json={"model": "batuta-mini", "messages": messages})
            assert status == 200
            return [*messages, body["choices"][0]["message"], {"role": "user", "content": "More."}]

        ada.fails = 1
        said = await turn(said)
        assert log == ["ada", "bob"]
        said = await turn(said)
        assert log == ["bob"], "its prompt is cached there"
        await turn([{"role": "user", "content": "Another question"}])
        assert log == ["ada"], "another conversation"
        bob.fails = 1
        said = await turn(said)
        assert log == ["bob", "ada"]
        await turn(said)
        assert log == ["ada"]


@pytest.mark.parametrize(("model", "factor"), [("worker/ada", 1.05), ("batuta-mini", 1.05)])
async def test_ten_turns_of_coding_cost_what_they_cost_without_us(model, factor):
    async with CachingAnthropic("Read it.", key="sk-test-anthropic") as direct:
        bare = await run_session(f"{direct.url}/v1/messages", "claude-x", direct.key)
        paid = dollars(direct.usages)
    assert bare["turns"] == 10
    async with (
        CachingAnthropic("Read it.", key="sk-test-anthropic") as provider,
        HttpTransport() as http,
    ):
        worker = Worker(id=WorkerId("ada"), model="claude-x", price=PRICE, strength=0.9)
        client = AnthropicClient(worker, http, base_url=provider.url, key=Secret(provider.key))
        pool = Pool((worker,))
        app_state = server_state(
            pool, {"ada": client}, served_models(pool, sequential_chain(["Do."], ["ada"]))
        )
        async with Serving(app_state) as server:
            told = await run_session(f"{server.url}/v1/messages", model, "any")
        assert not provider.wrong
        assert dollars(provider.usages) <= factor * paid
    assert told["cached"] / told["input"] > 0.5
    assert SYSTEM and TOOLS


async def test_without_marks_the_session_costs_more():
    async with CachingAnthropic("Read it.", key="sk-test-anthropic") as direct:
        await run_session(f"{direct.url}/v1/messages", "claude-x", direct.key)
        marked = dollars(direct.usages)
        direct.usages.clear()
        await run_session(f"{direct.url}/v1/messages", "claude-x", direct.key, marks=False)
        assert dollars(direct.usages) > 2 * marked, "else the test above would prove nothing"
