"""Replies whose JSON is of the wrong types are errors of the provider, in every dialect; none passes for a reply."""

import base64
import json
import time
from contextlib import suppress
from decimal import Decimal

import orjson
import pytest

from batuta.clients.anthropic.stream import AnthropicStreamAccumulator, parse_message
from batuta.clients.anthropic.stream import parse_usage as anthropic_usage
from batuta.clients.decoding import (
    MAX_CHOICES,
    MAX_TOOL_CALLS,
    with_joined_halves,
)
from batuta.clients.error_mapping import describe_wrong_format, error_from_reply
from batuta.clients.gemini.stream import GeminiStreamAccumulator, parse_response
from batuta.clients.gemini.stream import parse_usage as gemini_usage
from batuta.clients.native_search import SearchReader
from batuta.clients.openai.responses_stream import ResponsesStreamAccumulator
from batuta.clients.openai.stream import (
    OpenAIStreamAccumulator,
    parse_completion,
    parse_usage,
)
from batuta.clients.stated_cost import stated_usd
from batuta.clients.stream_reading import DECODING_ERRORS, HalfJoiner
from batuta.clients.tool_turns import add_round_trip_fields
from batuta.core import Citation, Message, Role

WRONG = [["f"], {"a": "b"}, 7, True, 1e308]


def streamed(accumulator, *told):
    for event in told:
        accumulator.add_event("", json.dumps(event).encode())
    return accumulator.result()


OLLAMA = {"model": "llama3.2", "created_at": "2026-08-04T08:52:19Z", "done": False}


@pytest.mark.parametrize("words", [{"message": {"content": "It is "}}, {"response": "It is "}])
def test_who_reaches_ollamas_own_api_is_told_what_to_change(words):
    assert "`base_url` end with /v1" in describe_wrong_format({**OLLAMA, **words})
    assert "/v1" not in describe_wrong_format({"choices": [], **words})


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
        with pytest.raises(DECODING_ERRORS):
            parse(told)


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("kind", ["text", "thinking"])
def test_a_fragment_is_a_string(wrong, kind):
    stream = AnthropicStreamAccumulator("m")
    delta = {"type": f"{kind}_delta", kind: wrong}
    with pytest.raises(DECODING_ERRORS):
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
    assert not streamed(OpenAIStreamAccumulator(), told).reply.logprobs, "it costs itself alone"


@pytest.mark.parametrize("wrong", [-1, 10**9, 9e14, "20 tokens", "-1", True, [], 0.5, float("nan")])
def test_a_wrong_number_of_tokens_makes_the_usage_unknown(wrong):
    assert parse_usage({"prompt_tokens": wrong, "completion_tokens": 5}) is None
    assert parse_usage({"prompt_tokens": 5, "completion_tokens": wrong}) is None
    assert anthropic_usage({"input_tokens": wrong, "output_tokens": 5}) is None
    assert gemini_usage({"promptTokenCount": 5, "candidatesTokenCount": wrong}) is None


@pytest.mark.parametrize(
    "wrong", [-1, 1e300, "-1", "$1", "nan", "1e9", True, float("nan"), float("inf")]
)
def test_a_wrong_cost_is_not_believed(wrong):
    assert stated_usd({"cost": wrong}) is None


@pytest.mark.parametrize(
    ("told", "usd"), [("0.0012", "0.0012"), ("1", "1"), ("1.2e-05", "0.000012")]
)
def test_a_cost_may_be_told_as_a_text(told, usd):
    assert stated_usd({"cost": told}) == Decimal(usd)
    event = {"choices": [{"index": 0, "delta": {"content": "Hm."}}], "usage": {"cost": told}}
    later = {"choices": [], "usage": {"cost": "0"}}
    assert streamed(OpenAIStreamAccumulator(), event, later).usd == Decimal(usd)


NESTED = json.loads("[" * 900 + "]" * 900)


def chunk(**delta):
    return {"model": "\ud83d", "choices": [{"index": 0, "delta": delta}]}


def call(**more):
    return {"index": 0, "id": "c\ud83d", "function": {"name": "f\ud83d", "arguments": "{}"}, **more}


def test_half_a_character_is_whole_or_replaced_wherever_it_stands():
    detail = {"index": 0, "type": "reasoning.text", "text": "so "}
    stream, halves = OpenAIStreamAccumulator("m"), HalfJoiner()
    told = [
        chunk(reasoning_details=[{**detail, "text": "so \ud83d"}]),
        chunk(reasoning_details=[{**detail, "text": "\ude00"}]),
        chunk(tool_calls=[{"index": 0, "function": {"arguments": '"\ud83d"'}}]),
        chunk(tool_calls=[{"index": 0, "id": "c\ud83d", "function": {"name": "f\ud83d"}}]),
    ]
    deltas = [delta for one in told for delta in stream.add_event("", json.dumps(one).encode())]
    reply = with_joined_halves(stream.result()).reply
    orjson.dumps([[halves.join(delta) for delta in deltas], reply], default=str)
    [made] = reply.tool_calls
    assert (made.name, made.id, reply.model) == ("f\ufffd", "c\ufffd", "\ufffd")
    said = {}
    add_round_trip_fields(
        said, Message(role=Role.ASSISTANT, parts=(made,), thoughts=reply.thoughts), "m", ""
    )
    assert said["reasoning_details"] == [{**detail, "text": "so 😀"}]


def test_half_a_character_in_what_another_dialect_signs():
    thinking = {"type": "thinking", "thinking": "", "signature": ""}
    part = {"functionCall": {"name": "f", "args": {"a": "\ud83d"}}, "thoughtSignature": "\ud83d"}
    anthropic = streamed(
        AnthropicStreamAccumulator("m"),
        {"type": "content_block_start", "index": 0, "content_block": thinking},
        {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "a\ud83d"}},
        {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "\ude00"}},
        {"type": "content_block_delta", "delta": {"type": "signature_delta", "signature": "s"}},
        {"type": "content_block_stop", "index": 0},
    )
    gemini = streamed(
        GeminiStreamAccumulator("m"), {"candidates": [{"content": {"parts": [part]}}]}
    )
    orjson.dumps([with_joined_halves(told).reply for told in (anthropic, gemini)], default=str)
    [thought] = with_joined_halves(anthropic).reply.thoughts
    assert (thought.text, thought.signature) == ("a😀", "s")


def test_half_a_character_in_an_error():
    assert orjson.dumps(str(error_from_reply({"error": {"message": "wrong \ud83d"}})))


def test_what_is_nested_too_deep_is_not_given_back_and_breaks_no_error():
    told = chunk(tool_calls=[call(extra_content={"google": NESTED})])
    assert streamed(OpenAIStreamAccumulator("m"), told).reply.thoughts == ()
    error = error_from_reply({"error": {"message": "too hot", "more": NESTED}})
    assert "too hot" in str(error)
    deep = {"error": {"message": "too hot"}}
    for _ in range(5_000):
        deep = {"error": {"message": "too hot"}, "more": deep}
    assert error_from_reply(deep).words == ""


def test_replies_and_items_have_a_most():
    many = [{"index": n, "delta": {}, "message": {}} for n in range(MAX_CHOICES + 1)]
    candidates = [{"index": n} for n in range(MAX_CHOICES + 1)]
    output = [{"type": "message", "id": f"m{n}"} for n in range(100_000)]
    for parse, told in (
        (parse_completion, {"choices": many}),
        (lambda one: streamed(OpenAIStreamAccumulator(), one), {"choices": many}),
        (parse_response, {"candidates": candidates}),
        (
            lambda one: streamed(ResponsesStreamAccumulator("m"), one),
            {"type": "response.completed", "response": {"output": output}},
        ),
    ):
        with pytest.raises(ValueError, match="more than"):
            parse(told)
    assert len(parse_completion({"choices": many[1:]}).reply.choices) == MAX_CHOICES


def test_the_name_of_a_call_has_an_end():
    pieces = [
        {"index": 0, "id": "c", "function": {"name": f"piece{number}"}} for number in range(1_000)
    ]
    with pytest.raises(ValueError, match="too long"):
        streamed(OpenAIStreamAccumulator("m"), *(chunk(tool_calls=[piece]) for piece in pieces))


HOSTILE_ARGUMENTS = {
    "repeated": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": f"x{n}"}} for n in range(8_000)],
    "escaped": [
        {"id": "c", "function": {"name": "f", "arguments": '"' + chr(92)}},
        *({"id": "d", "function": {"arguments": chr(92) * 400}} for _ in range(8_000)),
    ],
}  # fmt: skip


@pytest.mark.parametrize("fragments", HOSTILE_ARGUMENTS.values(), ids=HOSTILE_ARGUMENTS)
def test_twice_as_many_fragments_take_about_twice_as_long(fragments):
    def seconds(count):
        stream = OpenAIStreamAccumulator("m")
        began = time.thread_time()
        for fragment in fragments[:count]:
            stream.add_event("", json.dumps(chunk(tool_calls=[fragment])).encode())
        return time.thread_time() - began

    few, many = (min(seconds(count) for _ in range(2)) for count in (2_000, 8_000))
    assert many < 8 * few


CALLS = [{"index": n, "id": f"c{n}"} for n in range(MAX_TOOL_CALLS)]
CHUNK_OF_CALLS = {"choices": [{"index": 0, "delta": {"tool_calls": CALLS}}]}
OUTPUT = [
    {"type": "function_call", "call_id": f"c{n}", "name": "f", "arguments": "{}"}
    for n in range(MAX_TOOL_CALLS)
]
LONG, LONGER = "é " * 100_000, "x" * 4_000_000


def picture(number):
    data = base64.b64encode(b"\x89PNG\r\n\x1a\n%06d" % number).decode()
    return {"image_url": {"url": f"data:image/png;base64,{data}"}}


def candidate(text, **more):
    return {"candidates": [{"content": {"parts": [{"text": text}]}, **more}]}


def spoken(kind, **more):
    return {"type": f"response.output_text.{kind}", "output_index": 0, **more}


def block(**content):
    return {"type": "content_block_start", "index": 0, "content_block": content}


HEAVY = {
    "many indices": (
        OpenAIStreamAccumulator,
        [{"choices": [{"index": n, "delta": {}} for n in range(50_000)]}],
    ),
    "one index again and again": (
        OpenAIStreamAccumulator,
        [CHUNK_OF_CALLS, {"choices": [{"index": 0, "finish_reason": "stop"}] * 50_000}],
    ),
    "many ends of many calls": (
        OpenAIStreamAccumulator,
        [CHUNK_OF_CALLS, *([{"choices": [{"index": 0, "finish_reason": "stop"}]}] * 10_000)],
    ),
    "one id at many places": (
        OpenAIStreamAccumulator,
        [
            CHUNK_OF_CALLS,
            {"choices": [{"index": 0, "delta": {"tool_calls": [
                {"index": 5_000 + n, "id": f"c{MAX_TOOL_CALLS - 1}"} for n in range(50_000)
            ]}}]},
        ],
    ),
    "one item again and again": (
        lambda: ResponsesStreamAccumulator("m"),
        [{"type": "response.completed", "response": {"output": OUTPUT + OUTPUT[-1:] * 50_000}}],
    ),
    "many pictures": (
        OpenAIStreamAccumulator,
        [
            {"choices": [{"index": 0, "delta": {"images": [picture(n) for n in range(at, at + 100)]}}]}
            for at in range(0, 3_000, 100)
        ],
    ),
    "a whole message again and again": (
        OpenAIStreamAccumulator,
        [{"choices": [{"index": 0, "delta": {"content": LONGER}}]}, *([{"choices": [
            {"index": 0, "delta": {"content": "a"}, "finish_reason": "stop", "message": {"content": "a"}}
        ]}] * 4_000)],
    ),
    "many ends of a long text": (
        GeminiStreamAccumulator,
        [candidate(text=LONGER), *([candidate(text="a", finishReason="STOP")] * 4_000)],
    ),
    "many pages that a long text cites": (
        GeminiStreamAccumulator,
        [candidate(text="http://" * 30_000, finishReason="STOP", groundingMetadata={
            "groundingChunks": [{"web": {"uri": f"http://a.org/{n}"}} for n in range(4_000)],
            "groundingSupports": [{"groundingChunkIndices": [*range(4_000)]}],
        })],
    ),
    "a text that ends again and again": (
        lambda: ResponsesStreamAccumulator("m"),
        [spoken("delta", delta=LONG), *([spoken("done", text="é"), spoken("delta", delta="é")] * 2_000)],
    ),
    "a search's result again and again": (
        lambda: AnthropicStreamAccumulator("m"),
        [
            block(type="server_tool_use", id="s", name="web_search"),
            {"type": "content_block_delta", "index": 0, "delta": {
                "type": "input_json_delta", "partial_json": json.dumps({"query": "a", "x": [1] * 30_000})
            }},
            *([block(type="web_search_tool_result", tool_use_id="s")] * 2_000),
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HEAVY)
def test_what_comes_thousands_of_times_takes_time_linear_in_its_length(name):
    make, events = HEAVY[name]
    told = [orjson.dumps(event) for event in events]

    def take_in():
        accumulator, began = make(), time.process_time()
        with suppress(ValueError):
            for data in told:
                accumulator.add_event("", data)
        return time.process_time() - began

    assert any(take_in() < 0.6 for _ in range(3)), "also where others use the cores"


def test_half_a_character_in_a_search_is_replaced_as_in_the_text():
    searches = SearchReader()
    half = Citation(url="https://a.example/\ud83d", title="a\ud83d")
    [delta] = searches.add_call("s\ud83d", "q\ud83d", at=0, pages=(half,))
    searches.cite("https://b.example", "b\ud83d", "c\ud83d")
    for call in (delta.server_call, *searches.calls()):
        assert b"\xef\xbf\xbd" in orjson.dumps(call, default=str)
