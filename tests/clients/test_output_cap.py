"""A cap on output because of a limit in dollars is sent by every dialect, reasoning included."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.clients.anthropic import MessagesWire, Thinking
from batuta.clients.gemini import GeminiWire
from batuta.clients.openai_chat import COMPATIBLE, DEEPSEEK, OPENAI, OPENROUTER, ChatWire
from batuta.core import Request, Sampling, Worker, WorkerId, user
from batuta.core.bound import wanted_output
from batuta.core.usage import Price

EFFORTS = (None, "none", "minimal", "low", "medium", "high", "xhigh", "max")
WIRES = {
    "gpt-5": ChatWire("gpt-5", OPENAI),
    "local": ChatWire("local", COMPATIBLE),
    "deepseek-reasoner": ChatWire("deepseek-reasoner", DEEPSEEK),
    "openai/gpt-5": ChatWire("openai/gpt-5", OPENROUTER),
    "claude-sonnet-4-5": MessagesWire("claude-sonnet-4-5", Thinking()),
    "claude-opus-4-6": MessagesWire("claude-opus-4-6", Thinking()),
    "gemini-2.5-pro": GeminiWire("gemini-2.5-pro"),
    "gemini-3-pro-preview": GeminiWire("gemini-3-pro-preview"),
}


def sent(model, request, *, stream=False):
    body = WIRES[model].body(request, stream=stream)
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
    request = Request((user("hi"),), sampling, max_output=cap)
    most, body = sent(model, request, stream=stream)
    assert most <= cap
    thinking = body.get("thinking", {}).get("budget_tokens", 0)
    assert thinking == 0 or 1024 <= thinking < most


@pytest.mark.parametrize("model", WIRES)
@given(own=st.none() | st.integers(1, 60_000), effort=st.sampled_from(EFFORTS))
def test_a_cap_at_what_is_wanted_takes_nothing_away(model, own, effort):
    worker = Worker(WorkerId("w"), model, price=Price(1, 1))
    request = Request((user("hi"),), Sampling(max_tokens=own, effort=effort))
    wanted = wanted_output(request, worker)
    most, plain = sent(model, request)
    capped, body = sent(model, Request((user("hi"),), request.sampling, max_output=wanted))
    if most is not None:
        assert capped == most
        assert body.get("thinking") == plain.get("thinking")
