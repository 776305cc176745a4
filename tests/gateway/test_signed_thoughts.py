"""Anthropic's forms end to end: thoughts with their signatures, stop sequences, refusals."""

from contextlib import asynccontextmanager

import pytest

from batuta.clients import HttpTransport
from batuta.clients.anthropic.client import AnthropicClient
from batuta.clients.http_target import Secret
from batuta.clients.openai.client import OpenAIChatClient
from batuta.core import Pool, Worker, WorkerId
from batuta.gateway import served_models
from fakes.anthropic import FakeAnthropic
from fakes.openai import FakeOpenAI
from fakes.sdks import anthropic
from fakes.server import Said
from gateway.live_server import HI, Serving, server_state

pytestmark = pytest.mark.anyio
MODEL = "claude-sonnet-4-5"
THINKING = {"type": "enabled", "budget_tokens": 2000}
TOOL = {"name": "look", "input_schema": {"type": "object", "properties": {}}}
CALL = Said("Let me look.", reasoning="I must look first.", calls=(("c1", "look", {"at": 1}),))


class Redacting(FakeAnthropic):
    """Keeps its thoughts to itself."""

    def whole(self, said, received, *, usage):
        body = super().whole(said, received, usage=usage)
        content = [b for b in body["content"] if b["type"] != "thinking"]
        return {**body, "content": [{"type": "redacted_thinking", "data": "opaque"}, *content]}


@asynccontextmanager
async def through(fake, kind=AnthropicClient, model=MODEL):
    """A server over that provider, and Anthropic's own client of it."""
    async with fake as provider, HttpTransport() as http:
        worker = Worker(id=WorkerId("ada"), model=model, strength=0.9)
        client = kind(worker, http, base_url=provider.url, key=Secret(provider.key))
        pool = Pool((worker,))
        async with Serving(server_state(pool, {"ada": client}, served_models(pool))) as server:
            sdk = anthropic.AsyncAnthropic(base_url=server.url, api_key="any", max_retries=0)
            try:
                yield provider, sdk, server
            finally:
                await sdk.close()


def ask(messages=HI, **more):
    return {"model": "worker/ada", "max_tokens": 4000, "thinking": THINKING, "tools": [TOOL], "messages": messages, **more}  # fmt: skip


def answering(body):
    results = any(b["type"] == "tool_result" for m in body["messages"] for b in m["content"])
    return Said("Seen.", reasoning="So it is.") if results else CALL


@pytest.mark.parametrize("stream", [False, True])
async def test_a_thought_survives_a_tools_result(stream):
    async with through(FakeAnthropic(answering)) as (provider, sdk, _):
        if stream:
            async with sdk.messages.stream(**ask()) as events:
                first = await events.get_final_message()
        else:
            first = await sdk.messages.create(**ask())
        assert [block.type for block in first.content] == ["thinking", "text", "tool_use"]
        assert first.content[0].thinking == "I must look first."
        call = first.content[-1].id
        result = {"type": "tool_result", "tool_use_id": call, "content": "There."}
        said = {"role": "assistant", "content": first.content}
        turns = [*HI, said, {"role": "user", "content": [result]}]
        second = await sdk.messages.create(**ask(turns))
        assert not provider.wrong
        sent = provider.requests[-1].body
        assert sent["thinking"]["type"] == "enabled", "it goes on thinking"
        assert sent["messages"][1]["content"][0] == {"type": "thinking", "thinking": "I must look first.", "signature": "s"}  # fmt: skip
        assert [block.type for block in second.content] == ["thinking", "text"]


async def test_a_redacted_thought_survives_too():
    async with through(Redacting(answering)) as (provider, sdk, _):
        first = await sdk.messages.create(**ask())
        assert first.content[0].type == "redacted_thinking"
        result = {"type": "tool_result", "tool_use_id": first.content[-1].id, "content": "There."}
        turns = [*HI, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]  # fmt: skip
        await sdk.messages.create(**ask(turns))
        assert not provider.wrong
        assert provider.requests[-1].body["messages"][1]["content"][0] == {"type": "redacted_thinking", "data": "opaque"}  # fmt: skip


@pytest.mark.parametrize("signature", ["batuta-reasoning:claude-opus-4-5:s", "s", "batuta-reasoning", "batuta-progress"])  # fmt: skip
async def test_a_thought_of_somebody_else_is_not_sent(signature):
    async with through(FakeAnthropic(answering)) as (provider, sdk, _):
        call = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}
        thought = {"type": "thinking", "thinking": "Mine.", "signature": signature}
        result = {"type": "tool_result", "tool_use_id": "c1", "content": "There."}
        turns = [*HI, {"role": "assistant", "content": [thought, call]}, {"role": "user", "content": [result]}]  # fmt: skip
        await sdk.messages.create(**ask(turns))
        assert not provider.wrong
        assert "thinking" not in provider.requests[-1].body


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_sequence_is_told(stream):
    class Stopping(FakeAnthropic):
        def whole(self, said, received, *, usage):
            body = super().whole(said, received, usage=usage)
            return {**body, "stop_reason": "stop_sequence", "stop_sequence": "END"}

        def events(self, said, received, *, usage):
            old, new = b'"stop_sequence": null}, "usage"', b'"stop_sequence": "END"}, "usage"'
            return [e.replace(old, new) for e in super().events(said, received, usage=usage)]

    body = ask(stop_sequences=["END"], thinking={"type": "disabled"}, tools=[])
    async with through(Stopping("Until")) as (_, sdk, _server):
        if stream:
            async with sdk.messages.stream(**body) as events:
                got = await events.get_final_message()
        else:
            got = await sdk.messages.create(**body)
        assert (got.stop_reason, got.stop_sequence) == ("stop_sequence", "END")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_is_one_in_chat_completions_too(stream):
    class Refusing(FakeOpenAI):
        def whole(self, said, received, *, usage):
            body = super().whole(said, received, usage=usage)
            body["choices"][0]["message"] |= {"content": None, "refusal": said.text}
            return body

        def events(self, said, received, *, usage):
            return [e.replace(b'"content"', b'"refusal"') for e in super().events(said, received, usage=usage)]  # fmt: skip

    async with through(Refusing("I cannot do that."), OpenAIChatClient, "gpt-5") as (  # pyright: ignore[reportArgumentType]
        _,
        _sdk,
        server,
    ):
        asked = {"model": "worker/ada", "messages": HI}
        if stream:
            chunks = [c async for c in await server.openai.chat.completions.create(**asked, stream=True)]  # fmt: skip
            said = "".join(c.choices[0].delta.refusal or "" for c in chunks if c.choices)
            assert not any(c.choices[0].delta.content for c in chunks if c.choices)
            reason = next(c.choices[0].finish_reason for c in reversed(chunks) if c.choices)
        else:
            choice = (await server.openai.chat.completions.create(**asked)).choices[0]
            said, reason = choice.message.refusal, choice.finish_reason
            assert choice.message.content is None
        assert (said, reason) == ("I cannot do that.", "stop")
