"""What a client gives back as a provider's own is read as a stranger's."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode

import pytest

from batuta.clients import tool_turns
from batuta.clients.openai.stream import OpenAIStreamAccumulator
from batuta.core import Message, Role, Text, Thought, ToolCall
from batuta.core.small_number import read_small_number


@pytest.mark.parametrize("number", ["9" * 5_000, "999999999", "\u0663", "\u00b2", "-1", ""])
def test_numbers_of_calls_that_are_none_change_nothing(number):
    kept = {"extras": {number: {"google": {"thought_signature": "s"}}, "0": {"kept": True}}}
    written = urlsafe_b64encode(json.dumps(kept).encode()).decode()
    thought = Thought(model="m", redacted=tool_turns._PREFIX + written)
    call = ToolCall(id="call_1", name="f", arguments="{}")
    turn = Message(role=Role.ASSISTANT, parts=(Text("Yes."), call), thoughts=(thought,))
    said = {"tool_calls": [{"id": "call_1"}]}
    tool_turns.add_round_trip_fields(said, turn, "m", "")
    assert said == {"tool_calls": [{"id": "call_1", "extra_content": {"kept": True}}]}
    assert set(tool_turns.kept_signatures(turn, "m")) <= {999_999_999}


def test_small_numbers_are_read():
    assert [read_small_number(text) for text in ("0", "07", "123456789")] == [0, 7, 123456789]
    assert {read_small_number(text) for text in ("", "1234567890", "1.0", " 1", "\u0663")} == {None}


def piece(index: int, call_id: str, name: str, arguments: str, signature: str = "") -> dict:
    call = {"index": index, "id": call_id, "function": {"name": name, "arguments": arguments}}
    return {**call, "extra_content": {"google": {"thought_signature": signature or f"of {name}"}}}


WEATHER = piece(1, "call_2", "weather", '{"city":"Rome"}')


@pytest.mark.parametrize(
    "pieces",
    [
        [piece(0, "call_1", "now", "{}"), WEATHER],
        [piece(0, "call_1", "now", ""), WEATHER],
        [piece(0, "call_1", "now", "null"), WEATHER],
        [piece(0, "call_1", "now", '{"a":1}'), WEATHER],
        [
            piece(0, "call_1", "now", '{"a":1}'),
            piece(0, "call_9", "now", "", "of a name said twice"),
            WEATHER,
        ],
    ],
    ids=["empty object", "no arguments", "null", "arguments", "name repeated"],
)
def test_each_call_of_a_stream_keeps_its_signature(pieces):
    reading = OpenAIStreamAccumulator("m")
    for choice in ({"delta": {"tool_calls": pieces}}, {"delta": {}, "finish_reason": "tool_calls"}):
        reading.add_event("", json.dumps({"model": "m", "choices": [choice]}).encode())
    reply = reading.result().reply
    assert {call.name for call in reply.tool_calls} == {"now", "weather"}
    turn = Message(role=Role.ASSISTANT, parts=reply.tool_calls, thoughts=reply.thoughts)
    said = {"tool_calls": [{"name": call.name} for call in reply.tool_calls]}
    tool_turns.add_round_trip_fields(said, turn, "m", "")
    for call in said["tool_calls"]:
        assert call["extra_content"] == {"google": {"thought_signature": f"of {call['name']}"}}
