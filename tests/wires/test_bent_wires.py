"""The streams of the corpus, bent at random: nothing that the upstream said is lost without a word.

Cut and joined anywhere, a stream says the same. Of one whose events are repeated, left out, or told in another
order, all that came is in the reply, or the reply is an error; and it costs no less than the upstream stated.
"""

from __future__ import annotations

import random
from decimal import Decimal

import pytest

from batuta.clients import HttpTransport
from batuta.clients.factory import open_provider_client
from batuta.core import NativeSearch, NullListener, Request, Tool, user_message
from batuta.core.server_tools import WEB_SEARCH
from batuta.errors import ClientError
from wires.bending import events_of, reordered, said_by
from wires.case import CASES
from wires.client_view import SCHEMA
from wires.test_wires import worker_specs
from wires.upstream import Upstream

pytestmark = pytest.mark.anyio

BENDABLE = [case for case in CASES if case.bend and case.turns[0].answer.stream]
ROUNDS = 12
PRICE = {"input": Decimal("0.000001"), "output": Decimal("0.000002")}


class Listening(NullListener):
    """Asks for a stream and keeps its texts."""

    streaming = True

    def __init__(self):
        self.text = ""

    async def on_delta(self, delta):
        self.text += delta.text


async def ask(client, case, upstream, pieces):
    """The reply, or the error, and what was told of it as it came."""
    upstream.answer, upstream.pieces, listener = case.turns[0].answer, pieces, Listening()
    tools = tuple(Tool(name=name, parameters=SCHEMA) for name in case.tools)
    if case.searches:
        tools += (Tool(name=WEB_SEARCH, native=NativeSearch(max_uses=3)),)
    request = Request(messages=(user_message(case.text),), tools=tools)
    try:
        return await client.complete(request, listener), listener.text
    except ClientError as error:
        return error, listener.text


def pieces_at(stream, rng):
    """The stream in pieces, cut anywhere."""
    cuts = sorted(rng.randrange(len(stream) + 1) for _ in range(rng.randrange(1, 9)))
    return [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True) if a < b]


def words_of(reply):
    """All that a reply says, as one text."""
    calls = "".join(call.name + call.arguments for call in reply.tool_calls)
    searches = "".join(f'{{"query": "{call.query}"}}' for call in reply.server_calls)
    return reply.text + reply.reasoning + calls + searches


@pytest.mark.slow
@pytest.mark.parametrize("case", BENDABLE, ids=lambda case: case.name)
async def test_a_stream_says_the_same_however_it_is_cut(case):
    rng = random.Random(case.name)
    stream = case.turns[0].answer.stream.encode()
    async with Upstream() as upstream, HttpTransport() as http:
        [spec, _] = worker_specs(case, upstream.origin)
        client = open_provider_client(spec, http)
        whole, told = await ask(client, case, upstream, [stream])
        for _ in range(ROUNDS):
            cut = pieces_at(stream, rng)
            again, told_again = await ask(client, case, upstream, cut)
            assert type(again) is type(whole), (cut, again)
            if not isinstance(whole, ClientError):
                assert words_of(again) == words_of(whole), cut
                assert (again.usage, again.cost, told_again) == (whole.usage, whole.cost, told), cut


@pytest.mark.slow
@pytest.mark.parametrize("case", BENDABLE, ids=lambda case: case.name)
async def test_nothing_is_lost_of_events_in_another_order(case):
    rng = random.Random(case.name)
    events = events_of(case.turns[0].answer.stream.encode())
    async with Upstream() as upstream, HttpTransport() as http:
        [spec, _] = worker_specs(case, upstream.origin)
        client = open_provider_client(spec, http)
        for _ in range(ROUNDS):
            sent = reordered(events, rng)
            reply, _ = await ask(client, case, upstream, [b"\n\n".join((*sent, b""))])
            pieces, counts = said_by(sent)
            if isinstance(reply, ClientError):
                assert reply.cost is not None, f"an error that costs nothing: {reply!r}, {sent}"
                continue
            lost = [piece for piece in pieces if piece.strip('"{} ') not in words_of(reply)]
            assert not lost or any(map(is_half, pieces)), (lost, words_of(reply), sent)
            stated = counts["input"] * PRICE["input"] + counts["output"] * PRICE["output"]
            assert reply.cost.usd >= stated, (reply.cost, counts, sent)


def is_half(piece):
    """Whether a character is cut in it: alone it is not to be found again."""
    return any("\ud800" <= one <= "\udfff" for one in piece)


@pytest.mark.slow
@pytest.mark.parametrize("case", BENDABLE, ids=lambda case: case.name)
async def test_a_stream_that_breaks_off_is_an_error_or_whole(case):
    rng = random.Random(case.name)
    stream = case.turns[0].answer.stream.encode()
    async with Upstream() as upstream, HttpTransport() as http:
        [spec, _] = worker_specs(case, upstream.origin)
        client = open_provider_client(spec, http)
        whole, _ = await ask(client, case, upstream, [stream])
        for _ in range(ROUNDS):
            kept = stream[: rng.randrange(1, len(stream))]
            reply, _ = await ask(client, case, upstream, [kept])
            if isinstance(reply, ClientError):
                assert reply.cost is not None, f"an error that costs nothing: {reply!r}, {kept}"
            elif not isinstance(whole, ClientError):
                assert words_of(reply) == words_of(whole), kept
