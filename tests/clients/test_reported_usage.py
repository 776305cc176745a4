"""A provider's tokens and dollars are believed up to what its call can have used."""

import logging
import math
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.clients.anthropic.stream import parse_usage as anthropic_usage
from batuta.clients.decoding import ProviderReply
from batuta.clients.openai.responses_stream import parse_usage as responses_usage
from batuta.clients.openai.stream import parse_usage as openai_usage
from batuta.clients.reply_cost import (
    MARGIN,
    SERVER_TOKENS,
    SERVER_USD,
    UNCAPPED_OUTPUT_TOKENS,
    count_reply,
)
from batuta.clients.retry_after import parse_retry_after
from batuta.clients.stated_cost import stated_usd
from batuta.core import (
    Image,
    Price,
    Reply,
    Request,
    Sampling,
    Text,
    Tool,
    Usage,
    Worker,
    WorkerId,
    user_message,
)
from batuta.core.cost_bound import (
    MIN_OUTPUT_TOKENS,
    bound_call_cost,
    can_prompt_have,
    max_prompt_tokens,
)
from batuta.usage import ASSUMED_PRICE
from clients.cases import CASES, RecordingListener, worker
from fakes.server import Said

HUGE = 10**8
CAP = 4096
ASKED = Request(messages=(user_message("Why?"),), max_output=CAP)
HUGE_USAGES = {
    "openai": {"prompt_tokens": HUGE, "completion_tokens": HUGE, "total_tokens": 2 * HUGE},
    "responses": {"input_tokens": HUGE, "output_tokens": HUGE},
    "openrouter": {"prompt_tokens": 10, "completion_tokens": 5, "cost": 9999},
    "vllm": {"prompt_tokens": 10, "completion_tokens": HUGE, "total_tokens": HUGE + 10},
    "anthropic": {
        "input_tokens": HUGE,
        "output_tokens": HUGE,
        "cache_creation_input_tokens": HUGE,
        "cache_creation": {"ephemeral_1h_input_tokens": HUGE},
    },
    "gemini": {
        "promptTokenCount": HUGE,
        "candidatesTokenCount": HUGE,
        "thoughtsTokenCount": HUGE,
        "promptTokensDetails": [{"modality": "AUDIO", "tokenCount": HUGE}],
    },
}


def most_usd(price):
    asked = worker(price=price)
    prompts = MARGIN + SERVER_TOKENS / Decimal(max_prompt_tokens(ASKED, asked))
    bound = bound_call_cost(ASKED, asked, ASSUMED_PRICE)
    # cached for an hour the prompt may cost twice as much, a recording may too
    return 2 * prompts * bound.input_usd + MARGIN * CAP * bound.token_usd + SERVER_USD


@pytest.mark.anyio
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("streaming", [False, True])
async def test_no_dialect_lets_a_provider_empty_a_budget(case, http, streaming, caplog):
    async with case.fake(Said("Because.", usage=HUGE_USAGES[case.name])) as server:
        client = case.client(server, http)
        with caplog.at_level(logging.WARNING, "batuta.clients"):
            reply = await client.complete(ASKED, RecordingListener(streaming=streaming))
    assert 0 < reply.cost.usd <= most_usd(client.worker.price) < Decimal("0.2")
    assert reply.usage.total < 40_000 and reply.usage.estimated == 1
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("worker w: its provider states ")
    assert "100,000,000" in line or "$9,999" in line or "$9999" in line, line


COUNTS = st.integers(0, 2 * HUGE)
PRICES = st.sampled_from(
    [
        None,
        Price(input=Decimal(0), output=Decimal(0)),
        Price(input=Decimal(3), output=Decimal(15), cached=Decimal("0.3"), cache_write=Decimal(4)),
        Price(input=Decimal(1), output=Decimal(2), audio=Decimal(1)),
    ]
)


@given(
    numbers=st.tuples(COUNTS, COUNTS, COUNTS, COUNTS, COUNTS),
    price=PRICES,
    usd=st.none() | st.decimals(0, 10_000, places=6),
    cap=st.none() | st.integers(1, 100_000),
    window=st.none() | st.integers(1, 10**6),
    choices=st.none() | st.integers(1, 8),
    partial=st.booleans(),
    surcharges=st.tuples(COUNTS, COUNTS),
)
def test_whatever_is_stated_is_bounded_and_consistent(
    numbers, price, usd, cap, window, choices, partial, surcharges
):
    into, cached, written, out, reasoning = numbers
    cached = min(cached, into)
    stated = Usage(
        calls=1,
        input=into,
        cached=cached,
        cache_write=min(written, into - cached),
        output=out,
        reasoning=min(reasoning, out),
    )
    asked = Worker(id=WorkerId("w"), model="m", price=price, context_window=window)
    request = replace(ASKED, max_output=cap, sampling=Sampling(choices=choices))
    told = ProviderReply(
        reply=Reply(text="Because."),
        usage=stated,
        usd=usd,
        hour_cache_write=surcharges[0],
        audio_input=surcharges[1],
    )
    usage, cost = count_reply(asked, request, told, partial=partial)
    each = UNCAPPED_OUTPUT_TOKENS if cap is None else MARGIN * max(cap, MIN_OUTPUT_TOKENS)
    output = max(each * (choices or 1), MARGIN * len("Because."))
    assert usage.input <= MARGIN * max_prompt_tokens(request, asked) + SERVER_TOKENS
    assert usage.output <= output
    assert usage.input <= max(stated.input, 10) and usage.output <= max(stated.output, 10)
    assert cost.usd >= 0 and math.isfinite(cost.usd)
    if usd is not None:
        assert cost.usd <= usd and (cost.usd == usd or usage.estimated)
    if price is not None and not price.output:
        assert cost.usd <= SERVER_USD


@pytest.mark.parametrize("price", [None, Price(input=Decimal(1), output=Decimal(10))])
def test_what_a_call_can_have_used_is_believed_to_the_last_token(price, caplog):
    stated = Usage(calls=1, input=3_000, cached=2_000, output=CAP, reasoning=CAP - 10)
    told = ProviderReply(reply=Reply(text="x"), usage=stated, usd=Decimal("0.04"))
    assert count_reply(worker(price=price), ASKED, told, partial=False)[0] == stated
    assert count_reply(worker(price=price), ASKED, told, partial=False)[1].usd == told.usd
    assert not caplog.records


@given(
    texts=st.lists(st.text(max_size=40), min_size=1, max_size=6),
    pictures=st.integers(0, 2),
    window=st.none() | st.integers(1, 1_000),
    offset=st.integers(-60, 60),
)
def test_a_prompt_can_have_as_many_tokens_as_it_is_bounded_by(texts, pictures, window, offset):
    seen = tuple(Image(url="https://a.example/b.png") for _ in range(pictures))
    last = replace(user_message("Why?"), parts=(Text("Why?"), *seen))
    request = Request(messages=(*map(user_message, texts), last), tools=(Tool(name="look"),))
    asked = Worker(id=WorkerId("w"), model="m", context_window=window)
    most = max_prompt_tokens(request, asked)
    for tokens in (most + offset, most, most + 1):
        assert can_prompt_have(request, asked, tokens) == (tokens <= most)


def test_what_was_received_is_believed_beyond_the_cap():
    said = "word " * 10_000
    stated = Usage(calls=1, input=10, output=12_000)
    told = ProviderReply(reply=Reply(text=said), usage=stated)
    request = replace(ASKED, max_output=256)
    assert count_reply(worker(), request, told, partial=False)[0] == stated


def test_dollars_of_a_worker_without_a_price_are_bounded_by_the_assumed_one():
    told = ProviderReply(
        reply=Reply(text="x"), usage=Usage(calls=1, input=10, output=5), usd=Decimal(9999)
    )
    usage, cost = count_reply(worker(price=None), ASKED, told, partial=False)
    assert usage.estimated == 1 and cost.usd <= most_usd(ASSUMED_PRICE)


@pytest.mark.parametrize(
    "cost", [-1, math.nan, math.inf, -math.inf, "9999 dollars", True, 10**400, None, [], {}]
)
def test_a_cost_that_is_no_amount_is_not_believed(cost):
    assert stated_usd({"cost": cost}) is None


@pytest.mark.parametrize(
    "told",
    ["nan", "inf", "-5", "1e400", "9" * 400, "", "soon", f"Mon, {'9' * 20} Jan 2030 00:00:00 GMT"],
)
@pytest.mark.parametrize("name", ["retry-after", "retry-after-ms"])
def test_a_wait_is_finite_or_unknown(name, told):
    wait = parse_retry_after({name: told})
    assert wait is None or 0 <= wait <= 86_400


WHOLE = {"prompt_tokens": 1000, "completion_tokens": 500, "total_tokens": 1500}
CACHED = {
    "DeepSeek": (openai_usage, {**WHOLE, "prompt_cache_hit_tokens": 900}, (900, 0)),
    "Moonshot": (openai_usage, {**WHOLE, "cached_tokens": 900}, (900, 0)),
    "LiteLLM before Claude": (
        openai_usage,
        {**WHOLE, "cache_read_input_tokens": 900, "cache_creation_input_tokens": 50},
        (900, 50),
    ),
    "DashScope": (
        openai_usage,
        {**WHOLE, "prompt_tokens_details": {"cached_tokens": 9, "cache_creation_input_tokens": 50}},
        (9, 50),
    ),
    "names of the Responses API": (
        openai_usage,
        {**WHOLE, "input_tokens_details": {"cached_tokens": 900}},
        (900, 0),
    ),
    "names of chat completions": (
        responses_usage,
        {"input_tokens": 1000, "output_tokens": 500, "prompt_tokens_details": {"cached_tokens": 9}},
        (9, 0),
    ),
    "Anthropic's kinds alone": (
        anthropic_usage,
        {
            "input_tokens": 100,
            "output_tokens": 500,
            "cache_read_input_tokens": 850,
            "cache_creation": {"ephemeral_5m_input_tokens": 20, "ephemeral_1h_input_tokens": 30},
        },
        (850, 50),
    ),
}


@pytest.mark.parametrize(("parse", "usage", "counts"), CACHED.values(), ids=CACHED)
def test_a_cache_s_tokens_are_read_by_every_name(parse, usage, counts):
    found = parse(usage)
    assert (found.input, found.output) == (1000, 500)
    assert (found.cached, found.cache_write) == counts
