"""The scripted and the replayed client."""

from decimal import Decimal

import anyio
import pytest

from batuta import errors
from batuta.clients import RunReplayClient, ScriptedClient, request_fingerprint
from batuta.core import (
    Cost,
    Failure,
    Reply,
    Request,
    Sampling,
    Text,
    Tool,
    ToolCall,
    Usage,
    user_message,
)
from clients.cases import PRICE, RecordingListener

pytestmark = pytest.mark.anyio
ASK = Request(messages=(user_message("Hello, what is 2 + 2?"),))
FULL = Reply(
    text="The answer is 4.",
    reasoning="Let me add.",
    tool_calls=(ToolCall(id="a", name="add", arguments='{"x": 2}'),),
)


@pytest.mark.parametrize(
    "make", [lambda: ScriptedClient([FULL]), lambda: RunReplayClient([(ASK, FULL)])]
)
@pytest.mark.parametrize("streaming", [False, True])
async def test_the_laws_of_a_client(make, streaming):
    listener = RecordingListener(streaming=streaming)
    reply = await make().complete(ASK, listener)
    assert reply.text == FULL.text
    assert reply.usage.calls == 1
    if streaming:
        assert listener.text == FULL.text
        assert listener.reasoning == FULL.reasoning
        assert listener.calls() == [("a", "add", '{"x": 2}')]
    else:
        assert not listener.deltas


@pytest.mark.parametrize("latency", [0.0, 10.0])
async def test_scripted_is_cancelled_at_once(latency):
    with anyio.CancelScope() as scope:
        scope.cancel()
        await ScriptedClient(["x"], latency=latency).complete(ASK)
    assert scope.cancelled_caught


async def test_a_sequence_is_used_up_in_order():
    client = ScriptedClient(["one", errors.ProviderOverloadedError("down"), "two"])
    assert (await client.complete(ASK)).text == "one"
    with pytest.raises(errors.ProviderOverloadedError):
        await client.complete(ASK)
    assert (await client.complete(ASK)).text == "two"
    with pytest.raises(errors.BadRequestError, match="no reply left after 3"):
        await client.complete(ASK)
    assert client.requests == [ASK] * 4


async def test_a_mapping_answers_by_what_is_asked_and_a_function_by_anything():
    client = ScriptedClient({"weather": "rain", "2 + 2": "4"})
    assert (await client.complete(ASK)).text == "4"
    with pytest.raises(errors.BadRequestError, match="no reply to this"):
        await client.complete(Request(messages=(user_message("else"),)))
    said = await ScriptedClient(lambda r: r.messages[0].text.upper()).complete(ASK)
    assert said.text == "HELLO, WHAT IS 2 + 2?"


async def test_usage_is_counted_unless_the_script_states_it():
    reply = await ScriptedClient(["x" * 41], price=PRICE).complete(ASK)
    assert reply.usage.output == 11
    assert reply.usage.estimated == 0
    assert reply.cost.usd == PRICE.of(reply.usage)
    stated = Reply(text="x", usage=Usage(calls=1, input=7, output=3))
    assert (await ScriptedClient([stated]).complete(ASK)).cost == Cost(unpriced_calls=1)
    assert (await ScriptedClient([stated]).complete(ASK)).usage.input == 7
    paid = Reply(text="x", cost=Cost(Decimal(2)))
    assert (await ScriptedClient([paid], price=PRICE).complete(ASK)).cost.usd == 2


@pytest.mark.parametrize(("chunk", "number"), [(0, 1), (1, 16), (5, 4), (99, 1)])
async def test_fragments(chunk, number):
    listener = RecordingListener()
    await ScriptedClient(["The answer is 4."], chunk=chunk).complete(ASK, listener)
    assert len(listener.deltas) == number


async def test_replay_gives_each_reply_once_in_order_and_for_nothing():
    paid = Reply(text="one", usage=Usage(calls=1, input=9), cost=Cost(Decimal(5)))
    client = RunReplayClient(
        [
            (ASK, paid),
            (ASK, Reply(text="two")),
            (Request(messages=(user_message("b"),)), Reply(text="b")),
        ]
    )
    first = await client.complete(ASK)
    assert (first.text, first.cost, first.usage.input) == ("one", Cost(), 9)
    assert (await client.complete(ASK)).text == "two"
    with pytest.raises(errors.BadRequestError, match="no reply was recorded"):
        await client.complete(ASK)
    assert repr(client) == "Replay(1 replies left)"


@pytest.mark.parametrize("kind", [errors.ProviderTimeoutError, errors.UnsupportedFieldError])
async def test_replay_gives_recorded_failures_back(kind):
    client = RunReplayClient([(ASK, Failure.of(kind("silence")))])
    with pytest.raises(kind, match="silence"):
        await client.complete(ASK)


def test_equal_requests_have_one_fingerprint_and_others_another():
    def request(**more):
        return Request(messages=(user_message("a"),), **more)

    one = request(tools=(Tool(name="t", description="", parameters={"b": 1, "a": [1]}),))
    same = request(tools=(Tool(name="t", description="", parameters={"a": [1], "b": 1}),))
    assert request_fingerprint(one) == request_fingerprint(same)
    others = [request(), request(prefill="x"), request(sampling=Sampling(seed=1)), ASK]
    assert len({request_fingerprint(r) for r in [one, *others]}) == 5
    assert Text("a").text == "a"
