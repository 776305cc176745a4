"""A cap on output because of a limit in dollars is sent by every dialect, reasoning included."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.clients.anthropic.client import AnthropicAdapter, claude_rules
from batuta.clients.gemini.client import GeminiAdapter
from batuta.clients.openai.client import (
    COMPATIBLE_DIALECT,
    DEEPSEEK_DIALECT,
    OPENAI_DIALECT,
    OPENROUTER_DIALECT,
    OpenAIChatAdapter,
)
from batuta.core import Request, Sampling, Worker, WorkerId, user_message
from batuta.core.cost_bound import desired_output_tokens
from batuta.usage import Price

EFFORTS = (None, "none", "minimal", "low", "medium", "high", "xhigh", "max")
WIRES = {
    "gpt-5": OpenAIChatAdapter("gpt-5", OPENAI_DIALECT),
    "local": OpenAIChatAdapter("local", COMPATIBLE_DIALECT),
    "deepseek-reasoner": OpenAIChatAdapter("deepseek-reasoner", DEEPSEEK_DIALECT),
    "openai/gpt-5": OpenAIChatAdapter("openai/gpt-5", OPENROUTER_DIALECT),
    "claude-sonnet-4-5": AnthropicAdapter("claude-sonnet-4-5"),
    "claude-opus-4-6": AnthropicAdapter("claude-opus-4-6"),
    "gemini-2.5-pro": GeminiAdapter("gemini-2.5-pro"),
    "gemini-3-pro-preview": GeminiAdapter("gemini-3-pro-preview"),
}


def sent(model, request, *, stream=False):
    body = WIRES[model].build_body(request, stream=stream)
    config = body.get("generationConfig", body)
    names = ("max_completion_tokens", "max_tokens", "maxOutputTokens")
    return next((config[name] for name in names if name in config), None), body


@pytest.mark.parametrize("model", WIRES)
@given(
    cap=st.integers(1, 60_000),
    own=st.none() | st.integers(1, 60_000),
    effort=st.sampled_from(EFFORTS),
    stream=st.booleans(),
)
def test_nothing_above_the_cap_is_asked_for(model, cap, own, effort, stream):
    sampling = Sampling(max_tokens=own, effort=effort)
    request = Request(messages=(user_message("hi"),), sampling=sampling, max_output=cap)
    most, body = sent(model, request, stream=stream)
    assert most <= cap
    thinking = body.get("thinking", {}).get("budget_tokens", 0)
    assert thinking == 0 or 1024 <= thinking < most


@pytest.mark.parametrize("model", ["claude-opus-4-1", "claude-sonnet-4-5", "claude-3-7-sonnet"])
@given(own=st.none() | st.integers(1, 70_000), effort=st.sampled_from(EFFORTS[2:]))
def test_thinking_and_answer_fit_into_the_model_s_own_limit(model, own, effort):
    sampling = Sampling(max_tokens=own, effort=effort)
    request = Request(messages=(user_message("hi"),), sampling=sampling)
    body = AnthropicAdapter(model).build_body(request, stream=False)
    assert 1024 <= body["thinking"]["budget_tokens"] < body["max_tokens"]
    assert body["max_tokens"] <= claude_rules(model).max_output


@pytest.mark.parametrize("model", WIRES)
@given(own=st.none() | st.integers(1, 60_000), effort=st.sampled_from(EFFORTS))
def test_a_cap_at_what_is_wanted_takes_nothing_away(model, own, effort):
    worker = Worker(id=WorkerId("w"), model=model, price=Price(input=1, output=1))  # pyright: ignore[reportArgumentType]
    request = Request(
        messages=(user_message("hi"),), sampling=Sampling(max_tokens=own, effort=effort)
    )
    wanted = desired_output_tokens(request, worker)
    most, plain = sent(model, request)
    capped, body = sent(
        model, Request(messages=(user_message("hi"),), sampling=request.sampling, max_output=wanted)
    )
    if most is not None:
        # Without a limit of the client's the model's own is sent, which is more than is reserved.
        assert capped == (most if own is not None else min(most, wanted))
        assert body.get("thinking") == plain.get("thinking")
