"""The laws of a Client, and what goes wrong, for every dialect that speaks HTTP."""

import traceback
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from email.utils import format_datetime

import anyio
import pytest

from batuta import errors
from batuta.clients import HttpTransport
from batuta.clients.http_target import HttpTarget
from batuta.core import (
    Finish,
    Image,
    Message,
    Request,
    ResponseFormat,
    Role,
    Sampling,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    assistant_message,
    system_message,
    user_message,
)
from clients.cases import CASES, RecordingListener
from fakes import Fault, Said
from fakes.server import KEY

pytestmark = pytest.mark.anyio

ASK = Request(messages=(system_message("Be brief."), user_message("Hello?")))
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
PIXEL = "data:image/png;base64,iVBORw0KGgo="


async def heard(client, request, *, streaming):
    listener = RecordingListener(streaming=streaming)
    reply = await client.complete(request, listener)
    if streaming:
        assert listener.text == reply.text
        assert listener.reasoning == reply.reasoning
        calls = [(i, n, a or "{}") for i, n, a in listener.calls()]
        assert calls == [(c.id, c.name, c.arguments) for c in reply.tool_calls]
    else:
        assert not listener.deltas
    assert reply.usage.calls == 1
    return reply


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_plain_reply_is_counted_and_priced(case, http, streaming):
    async with case.fake("Salut, ça va? 🎼", chunk=3) as server:
        reply = await heard(case.client(server, http), ASK, streaming=streaming)
    assert not server.wrong
    assert reply.text == "Salut, ça va? 🎼"
    assert reply.finish is Finish.STOP
    assert reply.usage.input == 20
    assert reply.usage.output == 10
    assert reply.usage.cached in {4, 6}
    assert reply.usage.estimated == 0
    assert reply.cost.usd == Decimal("0.00012")
    assert reply.model.endswith("-2026")


@pytest.mark.parametrize("streaming", [False, True])
async def test_reasoning_and_parallel_tool_calls_come_through(case, http, streaming):
    calls = (("call_a", "add", {"x": 1, "y": [2, "ü"]}), ("call_b", "now", {}))
    said = Said("Let me see.", reasoning="Hmm, two calls.", calls=calls)
    request = Request(
        messages=(user_message("Add."),),
        tools=(Tool(name="add", description="adds", parameters=SCHEMA), Tool(name="now")),
        tool_choice="auto",
        parallel_tool_calls=True,
    )
    async with case.fake(said, chunk=4) as server:
        reply = await heard(case.client(server, http), request, streaming=streaming)
    assert not server.wrong
    assert reply.text == "Let me see."
    assert reply.reasoning == "Hmm, two calls."
    assert [call.name for call in reply.tool_calls] == ["add", "now"]
    assert len({call.id for call in reply.tool_calls}) == 2
    assert "ü" in reply.tool_calls[0].arguments or "\\u00fc" in reply.tool_calls[0].arguments
    assert reply.tool_calls[1].arguments == "{}"
    assert reply.finish is Finish.TOOL_CALLS


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("effort", [None, "none", "low", "high", "max"])
async def test_a_whole_conversation_is_said_in_the_dialect(case, http, streaming, effort):
    request = Request(
        messages=(
            system_message("Be brief."),
            Message(role=Role.DEVELOPER, parts=(Text("Be kind."),)),
            user_message("One."),
            user_message("Two."),
            assistant_message("Hm."),
            Message(role=Role.USER, parts=(Text("What is this?"), Image(url=PIXEL, detail="low"))),
            Message(role=Role.USER, parts=(Image(url="https://example.org/a.png"),)),
            Message(
                role=Role.ASSISTANT,
                parts=(
                    Text("I look."),
                    ToolCall(id="a:1", name="look", arguments='{"x": 1}'),
                    ToolCall(id="b", name="look", arguments="no json"),
                ),
                reasoning="Look first.",
            ),
            Message(role=Role.TOOL, parts=(ToolResult(call_id="a:1", content="a cat"),)),
            Message(role=Role.TOOL, parts=(ToolResult(call_id="b", content='{"found": "dog"}'),)),
            user_message("So?"),
        ),
        sampling=Sampling(
            temperature=0.5,
            top_p=0.9,
            max_tokens=100,
            stop=() if case.name == "responses" else ("END",),
            seed=7,
            effort=effort,
        ),
        tools=(Tool(name="look", description="looks", parameters=SCHEMA, strict=True),),
        tool_choice="look",
        parallel_tool_calls=False,
        response_format=ResponseFormat(
            kind="json_schema", name="answer", schema=SCHEMA, strict=True
        ),
    )
    async with case.fake("{}") as server:
        await heard(case.client(server, http), request, streaming=streaming)
        no_tools = Request(messages=(user_message("So?"),), sampling=request.sampling)
        await heard(case.client(server, http), no_tools, streaming=streaming)
    assert not server.wrong


async def test_json_objects_and_every_tool_choice_are_said(case, http):
    async with case.fake("{}") as server:
        client = case.client(server, http)
        for choice in (None, "auto", "none", "required", "look"):
            request = Request(
                messages=(user_message("So?"),),
                tools=(Tool(name="look"),),
                tool_choice=choice,
                response_format=ResponseFormat(kind="json_object"),
            )
            await client.complete(request)
    assert not server.wrong


@pytest.mark.parametrize("streaming", [False, True])
async def test_usage_that_is_not_told_is_estimated(case, http, streaming):
    async with case.fake("x" * 40, [Fault.NO_USAGE]) as server:
        reply = await heard(case.client(server, http), ASK, streaming=streaming)
    assert reply.usage.estimated == 1
    assert reply.usage.output == 10
    assert reply.usage.input > 0
    assert reply.cost.usd > 0


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault.RATE_LIMIT, errors.RateLimitError),
        (Fault.NO_CREDIT, errors.InsufficientCreditError),
        (Fault.SERVER_ERROR, errors.ProviderOverloadedError),
        (Fault.OVERLOADED, errors.ProviderOverloadedError),
        (Fault.UNAUTHORISED, errors.ProviderAuthError),
        (Fault.NOT_FOUND, errors.ModelNotFoundError),
        (Fault.TOO_LONG, errors.ContextLengthError),
        (Fault.CUT, errors.StreamInterruptedError),
        (Fault.SILENCE, errors.ProviderTimeoutError),
        (Fault.SILENCE_AFTER, errors.ProviderTimeoutError),
        (Fault.MALFORMED, errors.InvalidReplyError),
        (Fault.MISSHAPEN, errors.InvalidReplyError),
        (Fault.HTML, errors.InvalidReplyError),
        (Fault.ERROR_INSIDE, errors.ProviderOverloadedError),
        (Fault.REDIRECT, errors.ModelNotFoundError),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
@pytest.mark.parametrize("streaming", [False, True])
async def test_every_fault_is_one_clear_error(case, http, streaming, fault, kind):
    async with case.fake("A reply of some length.", [fault]) as server:
        client = case.client(server, http)
        with pytest.raises(errors.ClientError) as caught:
            await client.complete(ASK, RecordingListener(streaming=streaming))
        error = caught.value
        assert type(error) is kind, error
        points = ", which points to http://127.0.0.1:1/elsewhere"
        assert error.host == server.host + (points if fault is Fault.REDIRECT else "")
        assert server.host not in str(error) and "127.0.0.1" not in str(error)
        assert "/v1" not in str(error)
        assert "\n" not in str(error)
        told = "".join(traceback.format_exception(error)) + repr(error) + repr(client)
        assert KEY not in told
        assert error.__cause__ is None
        assert error.__context__ is None
        if kind in {
            errors.StreamInterruptedError,
            errors.ProviderTimeoutError,
            errors.InvalidReplyError,
        }:
            assert error.usage.calls == error.usage.estimated == 1
            assert error.usage.input > 0
            assert error.cost.usd > 0
        # The session still works.
        assert (await client.complete(ASK)).text


async def test_a_stream_that_ends_without_its_end_mark_is_interrupted(case, http):
    async with case.fake("A reply of some length.", [Fault.EARLY_END]) as server:
        listener = RecordingListener()
        with pytest.raises(errors.StreamInterruptedError) as caught:
            await case.client(server, http).complete(ASK, listener)
    told = 1 if case.name == "anthropic" else 0  # its first event counts one token
    assert caught.value.usage.output == max(-(-len(listener.text) // 4), told)


async def test_tokens_of_a_broken_stream_are_kept(http):
    case = CASES[0]
    async with case.fake("A reply of some length." * 9, [Fault.CUT], chunk=40) as server:
        listener = RecordingListener()
        with pytest.raises(errors.StreamInterruptedError) as caught:
            await case.client(server, http).complete(ASK, listener)
    assert listener.text
    told = 1 if case.name == "anthropic" else 0  # its first event counts one token
    assert caught.value.usage.output == max(-(-len(listener.text) // 4), told)


async def test_nobody_there_is_unreachable(case, http):
    async with case.fake() as server:
        client = case.client(server, http)
    with pytest.raises(
        errors.ProviderUnreachableError, match="no connection to the provider"
    ) as caught:
        await client.complete(ASK)
    assert caught.value.__context__ is None


@pytest.mark.parametrize("host", ["a..example.org", ".example.org", f"{'a' * 64}.example.org"])
async def test_a_host_that_cannot_be_resolved_is_said(http, host):
    target = HttpTarget(url=f"http://{host}/v1")
    for call in (http.post(target, {}), http.fetch(target, "*/*", 100)):
        with pytest.raises(errors.ProviderUnreachableError, match="is not a valid name"):
            await call


@pytest.mark.parametrize("streaming", [False, True])
async def test_cancellation_closes_the_connection(case, streaming):
    async with (
        HttpTransport(idle=30) as http,
        case.fake("slow " * 1000, gap=0.05, latency=0.2 if streaming else 30) as server,
    ):
        client = case.client(server, http)
        async with anyio.create_task_group() as group:
            group.start_soon(client.complete, ASK, RecordingListener(streaming=streaming))
            await server.started.wait()
            await anyio.sleep(0.3 if streaming else 0.05)
            assert not server.closed.is_set()
            group.cancel_scope.cancel()
        with anyio.fail_after(20):
            await server.closed.wait()


async def test_a_deadline_is_honoured(case, http):
    async with case.fake("late", latency=5) as server:
        with anyio.move_on_after(0.1) as scope:
            await case.client(server, http).complete(ASK)
        assert scope.cancelled_caught


@pytest.mark.parametrize("streaming", [False, True])
async def test_connections_are_used_again(case, http, streaming):
    async with case.fake("x" * 100) as server:
        client = case.client(server, http)
        for _ in range(4):
            await client.complete(ASK, RecordingListener(streaming=streaming))
    assert len(server.connections) == 1


async def test_many_calls_at_once_do_not_mix(case):
    def echo(body):
        said = body.get("messages") or body.get("input") or body["contents"]
        return str(said)[-60:]

    replies = {}

    async def ask(client, number):
        listener = RecordingListener(streaming=bool(number % 2))
        reply = await client.complete(
            Request(messages=(user_message(f"This is number {number}."),)), listener
        )
        replies[number] = reply.text

    async with HttpTransport(connect=60, idle=60) as http, case.fake(echo) as server:
        client = case.client(server, http)
        async with anyio.create_task_group() as group:
            for number in range(30):
                group.start_soon(ask, client, number)
    assert all(f"number {number}." in text for number, text in replies.items())
    assert len(replies) == 30


@pytest.mark.parametrize(
    ("headers", "low", "high"),
    [
        ({"retry-after": "3"}, 3, 3),
        ({"retry-after": "1.5"}, 1.5, 1.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25, 0.25),
        ({"retry-after": "IN AN HOUR"}, 3000, 3600),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0, 0),
        ({"retry-after": "-4"}, 0, 0),
    ],
)
async def test_retry_after_is_read_in_all_its_forms(case, http, headers, low, high):
    hence = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    headers = {name: value.replace("IN AN HOUR", hence) for name, value in headers.items()}
    async with case.fake("x", [Fault.RATE_LIMIT], retry_after=headers) as server:
        with pytest.raises(errors.RateLimitError) as caught:
            await case.client(server, http).complete(ASK)
    assert low <= caught.value.retry_after <= high


@pytest.mark.parametrize("value", ["soon", "nan", "inf", "", "1e999"])
async def test_a_senseless_retry_after_is_no_wait(http, value):
    case = CASES[0]
    async with case.fake("x", [Fault.RATE_LIMIT], retry_after={"retry-after": value}) as server:
        with pytest.raises(errors.RateLimitError) as caught:
            await case.client(server, http).complete(ASK)
    assert caught.value.retry_after is None


async def test_what_the_listener_raises_stops_the_call(case):
    class Refusing(RecordingListener):
        async def on_delta(self, delta):
            raise errors.LimitReachedError("tokens", "5", "4")

    async with HttpTransport(idle=30) as http, case.fake("slow " * 1000, gap=0.05) as server:
        with pytest.raises(errors.LimitReachedError):
            await case.client(server, http).complete(ASK, Refusing())
        with anyio.fail_after(20):
            await server.closed.wait()


async def test_a_request_and_a_reply_that_are_too_large_are_refused(case):
    async with (
        HttpTransport(max_request_bytes=5000, max_reply_bytes=5000) as http,
        case.fake("x" * 20_000, chunk=1000) as server,
    ):
        client = case.client(server, http)
        with pytest.raises(errors.BadRequestError, match="bytes"):
            await client.complete(Request(messages=(user_message("y" * 6000),)))
        assert not server.requests
        for streaming in (False, True):
            with pytest.raises(errors.InvalidReplyError, match="more than the allowed"):
                await client.complete(ASK, RecordingListener(streaming=streaming))


async def test_a_worker_s_own_sampling_is_its_default(http):
    from batuta.clients import OpenAIChatClient, Secret
    from clients.cases import worker
    from fakes import FakeOpenAI

    async with FakeOpenAI() as server:
        own = worker("gpt-4.1", sampling=Sampling(temperature=0.2, max_tokens=9))
        client = OpenAIChatClient(own, http, base_url=server.url, key=Secret(KEY))
        await client.complete(
            Request(messages=(user_message("x"),), sampling=Sampling(max_tokens=5))
        )
    assert server.requests[0].body["temperature"] == 0.2
    assert server.requests[0].body["max_completion_tokens"] == 5


def test_one_session_serves_one_loop_after_another():
    case = CASES[0]
    lasting = HttpTransport()

    async def once():
        async with case.fake("x") as server:
            await case.client(server, lasting).complete(ASK)
        await lasting.close()

    for _ in range(2):
        anyio.run(once)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("cut", [False, True])
async def test_an_empty_reply_is_a_reply(case, http, streaming, cut):
    words = {
        "anthropic": "max_tokens",
        "gemini": "MAX_TOKENS",
        "responses": "max_output_tokens",
    }
    finish = words.get(case.name, "length") if cut else ""
    async with case.fake(Said("", finish=finish)) as server:
        reply = await case.client(server, http).complete(
            ASK, RecordingListener(streaming=streaming)
        )
    assert (reply.text, reply.tool_calls, reply.usage.calls) == ("", (), 1)
    assert reply.finish is (Finish.LENGTH if cut else Finish.STOP)
