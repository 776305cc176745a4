"""The usage and cost of a call: the provider's numbers, as far as they are plausible.

A provider's numbers are accepted up to `MARGIN` times what the call can use, by our own bound from
the request (`core.cost_bound`), and a little more. A larger number is lowered to that limit, the
call is marked as estimated, and a warning is logged.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from decimal import Decimal

from batuta.clients.decoding import ProviderReply
from batuta.core import Cost, Reply, Request, ServerCall, Usage, Worker
from batuta.core.cost_bound import (
    MIN_OUTPUT_TOKENS,
    bound_call_cost,
    can_prompt_have,
    desired_output_tokens,
    max_prompt_tokens,
    max_text_tokens,
)
from batuta.core.formatting import format_usd
from batuta.core.server_tools import WEB_SEARCH
from batuta.core.token_estimate import estimate_usage
from batuta.usage import ASSUMED_PRICE, audio_surcharge, hour_cache_surcharge, usage_cost

logger = logging.getLogger(__name__)

MARGIN = 2
"""The provider's numbers are accepted up to this multiple of our own bound."""
SERVER_TOKENS = 4096
"""Additional input tokens accepted, for a system prompt that the server adds."""
SERVER_USD = Decimal("0.02")
"""Additional dollars accepted, for what is not billed by tokens, such as a search or a fee."""
UNCAPPED_OUTPUT_TOKENS = 262_144
"""Output tokens accepted without a cap: about twice the longest output of the known models."""


def count_reply(
    worker: Worker, request: Request, provider_reply: ProviderReply, *, partial: bool
) -> tuple[Usage, Cost]:
    """Return the usage and the cost of a call.

    Args:
        worker: the called worker.
        request: the request that was sent.
        provider_reply: the parsed reply.
        partial: the provider has stated at most a part of the usage.
    """
    stated = _complete_usage(request, provider_reply, partial=partial)
    if provider_reply.usd is None and _is_believable(worker, request, provider_reply, stated):
        return stated, _own_cost(worker, request, stated, provider_reply)
    bound = max_prompt_tokens(request, worker)
    prompt = MARGIN * bound + SERVER_TOKENS
    output = _max_output_tokens(worker, request, provider_reply, stated.output)
    usage = _bound_usage(stated, prompt, output)
    if usage is not stated:
        logger.warning(
            "worker %s: its provider states %s input tokens and %s output tokens, more than the "
            "call can have used; %s and %s are counted",
            worker.id,
            f"{stated.input:,}",
            f"{stated.output:,}",
            f"{usage.input:,}",
            f"{usage.output:,}",
        )
    if provider_reply.usd is None:
        return usage, _own_cost(worker, request, usage, provider_reply)
    most = _max_usd(worker, request, prompt / Decimal(max(bound, 1)), output)
    if provider_reply.usd <= most:
        return usage, Cost(provider_reply.usd)
    logger.warning(
        "worker %s: its provider states a cost of %s, more than the call can have cost; %s is "
        "counted. If the stated cost is correct, the worker's `price` is too low",
        worker.id,
        format_usd(provider_reply.usd),
        format_usd(most),
    )
    return replace(usage, estimated=1), Cost(most)


def _is_believable(
    worker: Worker, request: Request, provider_reply: ProviderReply, stated: Usage
) -> bool:
    if _is_small(stated):
        return True
    prompt = -(-(stated.input - SERVER_TOKENS) // MARGIN)
    return can_prompt_have(request, worker, prompt) and (
        stated.output <= _max_output_tokens(worker, request, provider_reply, stated.output)
    )


def has_small_usage(provider_reply: ProviderReply) -> bool:
    """Return True if the stated usage is so small that `count_reply` need not read the request."""
    usage = _whole_usage(provider_reply, partial=provider_reply.usage_is_partial)
    return usage is not None and provider_reply.usd is None and _is_small(usage)


def _is_small(usage: Usage) -> bool:
    """Return True if the usage is plausible for any request with any cap."""
    return usage.input <= SERVER_TOKENS and usage.output <= MARGIN * MIN_OUTPUT_TOKENS


def price_searches(worker: Worker, request: Request, reply: Reply) -> tuple[ServerCall, ...]:
    """Return the server-side calls, with the cost of each search.

    Failed searches cost nothing. Searches beyond `MARGIN` times the allowed number are not charged,
    as they are not plausible.
    """
    if not reply.server_calls:
        return ()
    price = None if worker.price is None else worker.price.search
    each = Cost(unpriced_calls=1) if price is None else Cost(price)
    left = MARGIN * sum(tool.native.max_uses for tool in request.tools if tool.native is not None)
    priced: list[ServerCall] = []
    for call in reply.server_calls:
        paid = call.name == WEB_SEARCH and not call.error and left > 0
        left -= paid
        priced.append(replace(call, cost=each) if paid else call)
    return tuple(priced)


def _whole_usage(provider_reply: ProviderReply, *, partial: bool) -> Usage | None:
    """Return the stated usage; None if it is incomplete.

    Zero prompt tokens, or zero output tokens for a non-empty reply, count as not stated.
    """
    stated, reply = provider_reply.usage, provider_reply.reply
    content = reply.text or reply.reasoning or reply.tool_calls or reply.images
    is_whole = stated is not None and stated.input and (stated.output or not content)
    return stated if is_whole and not partial else None


def _complete_usage(request: Request, provider_reply: ProviderReply, *, partial: bool) -> Usage:
    """Return the stated usage, completed by our estimate where it is missing."""
    if (whole := _whole_usage(provider_reply, partial=partial)) is not None:
        return whole
    stated, guessed = provider_reply.usage, estimate_usage(request, provider_reply.reply)
    if stated is None:
        return guessed
    prompt = max(stated.input, guessed.input) if partial else stated.input or guessed.input
    output = max(stated.output, guessed.output) if partial else stated.output or guessed.output
    return replace(stated, input=prompt, output=output, estimated=1)


def _bound_usage(stated: Usage, most_input: int, most_output: int) -> Usage:
    """Return the usage lowered to both limits and marked as estimated; unchanged if within them."""
    if stated.input <= most_input and stated.output <= most_output:
        return stated
    into, out = min(stated.input, most_input), min(stated.output, most_output)
    cached = min(stated.cached, into)
    return replace(
        stated,
        input=into,
        cached=cached,
        cache_write=min(stated.cache_write, into - cached),
        output=out,
        reasoning=min(stated.reasoning, out),
        estimated=1,
    )


def _max_output_tokens(
    worker: Worker, request: Request, provider_reply: ProviderReply, stated: int
) -> int:
    """Return the largest plausible number of output tokens, by the cap or by the received reply.

    The reply is measured only if more tokens than the cap allows, or a cost, are stated.
    """
    capped = request.max_output is not None or (
        request.sampling.with_defaults(worker.sampling).max_tokens is not None
    )
    cap = max(desired_output_tokens(request, worker), MIN_OUTPUT_TOKENS)
    allowed = MARGIN * cap if capped else UNCAPPED_OUTPUT_TOKENS
    allowed *= max(request.sampling.choices or 1, 1)
    if stated <= allowed and provider_reply.usd is None:
        return allowed
    replies = provider_reply.reply.choices
    received = sum(
        max_text_tokens(reply.text)
        + max_text_tokens(reply.reasoning)
        + sum(max_text_tokens(call.name + call.arguments) for call in reply.tool_calls)
        for reply in replies
    )
    return max(allowed, MARGIN * received)


def _max_usd(worker: Worker, request: Request, prompts: Decimal, output: int) -> Decimal:
    """Return the largest plausible cost: `prompts` times the prompt, `output` tokens, and fees."""
    bound = bound_call_cost(request, worker, ASSUMED_PRICE)
    each = bound.token_usd / (request.sampling.choices or 1)
    return prompts * bound.input_usd + output * each + SERVER_USD


def _own_cost(
    worker: Worker, request: Request, usage: Usage, provider_reply: ProviderReply
) -> Cost:
    """Return the cost of the call by the worker's price, including its searches."""
    cost = _priced_cost(worker, usage, provider_reply)
    calls = price_searches(worker, request, provider_reply.reply)
    return sum((call.cost for call in calls), cost) if calls else cost


def _priced_cost(worker: Worker, usage: Usage, provider_reply: ProviderReply) -> Cost:
    """Return the cost of the usage by the worker's price, with cache and audio surcharges."""
    price = worker.price
    cost = usage_cost(usage, price)
    kept = min(provider_reply.hour_cache_write, usage.cache_write)
    recorded = min(provider_reply.audio_input, usage.input - usage.cached)
    if price is None or not (kept or recorded):
        return cost
    return cost + Cost(hour_cache_surcharge(price, kept) + audio_surcharge(price, recorded))
