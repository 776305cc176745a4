"""What a client gives back as a provider's own is read as a stranger's."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode

import pytest

from batuta.clients import tool_turns
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
