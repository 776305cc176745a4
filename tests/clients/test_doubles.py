"""The scripted and the replayed client."""

from decimal import Decimal

import anyio
import pytest

from batuta import errors
from batuta.clients import Replay, Scripted, fingerprint
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
    user,
)
from clients.cases import PRICE, Ear

pytestmark = pytest.mark.anyio
ASK = Request((user("Hello, what is 2 + 2?"),))
FULL = Reply("The answer is 4.", "Let me add.", (ToolCall("a", "add", '{"x": 2}'),))


@pytest.mark.parametrize("make", [lambda: Scripted([FULL]), lambda: Replay([(ASK, FULL)])])
@pytest.mark.parametrize("streaming", [False, True])
async def test_the_laws_of_a_client(make, streaming):
    ear = Ear(streaming=streaming)
    reply = await make().complete(ASK, ear)
    assert reply.text == FULL.text
    assert reply.usage.calls == 1
    if streaming:
        assert ear.text == FULL.text
        assert ear.reasoning == FULL.reasoning
        assert ear.calls() == [("a", "add", '{"x": 2}')]
    else:
        assert not ear.deltas


@pytest.mark.parametrize("latency", [0.0, 10.0])
async def test_scripted_is_cancelled_at_once(latency):
    with anyio.CancelScope() as scope:
        scope.cancel()
        await Scripted(["x"], latency=latency).complete(ASK)
    assert scope.cancelled_caught


async def test_a_sequence_is_used_up_in_order():
    client = Scripted(["one", errors.Overloaded("down"), "two"])
    assert (await client.complete(ASK)).text == "one"
    with pytest.raises(errors.Overloaded):
        await client.complete(ASK)
    assert (await client.complete(ASK)).text == "two"
    with pytest.raises(errors.BadRequest, match="no reply left after 3"):
        await client.complete(ASK)
    assert client.requests == [ASK] * 4


async def test_a_mapping_answers_by_what_is_asked_and_a_function_by_anything():
    client = Scripted({"weather": "rain", "2 + 2": "4"})
    assert (await client.complete(ASK)).text == "4"
    with pytest.raises(errors.BadRequest, match="no reply to this"):
        await client.complete(Request((user("else"),)))
    said = await Scripted(lambda r: r.messages[0].text.upper()).complete(ASK)
    assert said.text == "HELLO, WHAT IS 2 + 2?"


async def test_usage_is_counted_unless_the_script_states_it():
    reply = await Scripted(["x" * 41], price=PRICE).complete(ASK)
    assert reply.usage.output == 11
    assert reply.usage.estimated == 0
    assert reply.cost.usd == PRICE.of(reply.usage)
    stated = Reply("x", usage=Usage(calls=1, input=7, output=3))
    assert (await Scripted([stated]).complete(ASK)).cost == Cost(unpriced_calls=1)
    assert (await Scripted([stated]).complete(ASK)).usage.input == 7
    paid = Reply("x", cost=Cost(Decimal(2)))
    assert (await Scripted([paid], price=PRICE).complete(ASK)).cost.usd == 2


@pytest.mark.parametrize(("chunk", "number"), [(0, 1), (1, 16), (5, 4), (99, 1)])
async def test_fragments(chunk, number):
    ear = Ear()
    await Scripted(["The answer is 4."], chunk=chunk).complete(ASK, ear)
    assert len(ear.deltas) == number


async def test_replay_gives_each_reply_once_in_order_and_for_nothing():
    paid = Reply("one", usage=Usage(calls=1, input=9), cost=Cost(Decimal(5)))
    client = Replay([(ASK, paid), (ASK, Reply("two")), (Request((user("b"),)), Reply("b"))])
    first = await client.complete(ASK)
    assert (first.text, first.cost, first.usage.input) == ("one", Cost(), 9)
    assert (await client.complete(ASK)).text == "two"
    with pytest.raises(errors.BadRequest, match="no reply was recorded"):
        await client.complete(ASK)
    assert repr(client) == "Replay(1 replies left)"


async def test_replay_gives_recorded_failures_back():
    client = Replay([(ASK, Failure("timed_out", "silence", retryable=True))])
    with pytest.raises(errors.TimedOut, match="silence"):
        await client.complete(ASK)


def test_equal_requests_have_one_fingerprint_and_others_another():
    def request(**more):
        return Request((user("a"),), **more)

    one = request(tools=(Tool("t", "", {"b": 1, "a": [1]}),))
    same = request(tools=(Tool("t", "", {"a": [1], "b": 1}),))
    assert fingerprint(one) == fingerprint(same)
    others = [request(), request(prefill="x"), request(sampling=Sampling(seed=1)), ASK]
    assert len({fingerprint(r) for r in [one, *others]}) == 5
    assert Text("a").text == "a"
