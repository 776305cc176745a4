"""Replies whose JSON is of the wrong types are errors of the provider, in every dialect; none passes for a reply."""

import json

import pytest

from batuta.clients.anthropic.stream import AnthropicStreamAccumulator, parse_message
from batuta.clients.anthropic.stream import parse_usage as anthropic_usage
from batuta.clients.call import _DECODING_ERRORS
from batuta.clients.gemini.stream import parse_response
from batuta.clients.gemini.stream import parse_usage as gemini_usage
from batuta.clients.openai.stream import (
    OpenAIStreamAccumulator,
    parse_completion,
    parse_usage,
    reported_usd,
)

WRONG = [["f"], {"a": "b"}, 7, True, 1e308]


def streamed(accumulator, *told):
    for event in told:
        accumulator.add_event("", json.dumps(event).encode())
    return accumulator.result()


@pytest.mark.parametrize("wrong", [*WRONG, None])
def test_a_tools_name_is_a_string(wrong):
    function = {"name": wrong, "arguments": "{}"}
    message = {"content": None, "tool_calls": [{"id": "c", "function": function}]}
    block = {"type": "tool_use", "id": "t", "name": wrong, "input": {}}
    start = {"type": "content_block_start", "index": 0, "content_block": block}
    part = {"functionCall": {"name": wrong, "args": {}}}
    for parse, told in (
        (parse_completion, {"choices": [{"message": message, "finish_reason": "stop"}]}),
        (parse_message, {"type": "message", "content": [block]}),
        (parse_response, {"candidates": [{"content": {"parts": [part]}, "finishReason": "STOP"}]}),
        (lambda one: streamed(AnthropicStreamAccumulator("m"), one), start),
    ):
        with pytest.raises(_DECODING_ERRORS):
            parse(told)


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("kind", ["text", "thinking"])
def test_a_fragment_is_a_string(wrong, kind):
    stream = AnthropicStreamAccumulator("m")
    delta = {"type": f"{kind}_delta", kind: wrong}
    with pytest.raises(_DECODING_ERRORS):
        streamed(stream, {"type": "content_block_delta", "index": 0, "delta": delta})
    assert stream.result().reply.text == "", "what came before can still be billed"


def test_probabilities_within_probabilities_are_not_followed():
    token = {"token": "a", "logprob": -1.0}
    for _ in range(400):
        token = {"token": "a", "logprob": -1.0, "top_logprobs": [token]}
    told = {"choices": [{"delta": {}, "logprobs": {"content": [token]}}]}
    [found] = streamed(OpenAIStreamAccumulator(), told).reply.logprobs
    assert [other.others for other in found.others] == [()]
    told["choices"][0]["logprobs"]["content"] = [{"token": ["a"], "logprob": 0}]
    with pytest.raises(_DECODING_ERRORS):
        streamed(OpenAIStreamAccumulator(), told)


@pytest.mark.parametrize("wrong", [-1, 10**9, 9e14, "20", True, [], 0.5, float("nan")])
def test_a_wrong_number_of_tokens_makes_the_usage_unknown(wrong):
    assert parse_usage({"prompt_tokens": wrong, "completion_tokens": 5}) is None
    assert parse_usage({"prompt_tokens": 5, "completion_tokens": wrong}) is None
    assert anthropic_usage({"input_tokens": wrong, "output_tokens": 5}) is None
    assert gemini_usage({"promptTokenCount": 5, "candidatesTokenCount": wrong}) is None


@pytest.mark.parametrize("wrong", [-1, 1e300, "1", True, float("nan"), float("inf")])
def test_a_wrong_cost_is_not_believed(wrong):
    assert reported_usd({"cost": wrong}) is None
