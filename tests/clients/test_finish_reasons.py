"""Why a reply ended, in the words of many servers."""

import orjson
import pytest

from batuta.clients.decoding import ErrorReply, read_finish
from batuta.clients.openai.responses_stream import ResponsesStreamAccumulator
from batuta.clients.tool_turns import arguments_text
from batuta.core import Finish

REASONS = {
    Finish.STOP: (
        "stop", "STOP", "eos", "eos_token", "end_turn", "stop_sequence", "COMPLETE", "completed",
        "FINISH_REASON_STOP", "OTHER", "compaction", "", None, 7,
    ),
    Finish.LENGTH: (
        "length", "LENGTH", "MAX_TOKENS", "max_output_tokens", "max_new_tokens", "max_length",
        "max_output_reached", "model_length", "token_limit", "truncated", "incomplete",
        "model_context_window_exceeded", "pause_turn",
    ),
    Finish.CONTENT_FILTER: (
        "content_filter", "content-filter", "contentFiltered", "SAFETY", "RECITATION", "LANGUAGE",
        "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY", "MODEL_ARMOR", "sensitive",
        "guardrail_intervened", "refusal",
    ),
    Finish.TOOL_CALLS: (
        "tool_calls", "TOOL_CALLS", "tool_call", "tool_use", "tool-calls", "function_call",
    ),
}  # fmt: skip
BROKEN = (
    "error", "abort", "aborted", "cancelled", "network_error", "insufficient_system_resource",
    "timeout", "internal_error", "FAILED", "rate_limit",
)  # fmt: skip
BOTCHED = (
    "MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS",
    "MISSING_THOUGHT_SIGNATURE", "MALFORMED_RESPONSE",
)  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "finish"),
    [(reason, finish) for finish, words in REASONS.items() for reason in words],
)
def test_a_reason_is_read_by_its_words(reason, finish):
    assert read_finish(reason) is finish


@pytest.mark.parametrize("reason", BROKEN)
def test_a_reply_that_was_broken_off_is_an_error(reason):
    with pytest.raises(ErrorReply) as raised:
        read_finish(reason)
    assert reason in raised.value.payload["error"]["message"]


@pytest.mark.parametrize("reason", BOTCHED)
def test_a_reply_that_the_model_botched_is_none(reason):
    with pytest.raises(ValueError, match=reason):
        read_finish(reason)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ('{"city": "Rome"}', '{"city": "Rome"}'),
        ('"{\\"city\\": \\"Rome\\"}"', '{"city": "Rome"}'),
        ('```json\n{"city": "Rome"}\n```', '{"city": "Rome"}'),
        ('"Rome"', '"Rome"'),
        ("", "{}"),
        ("null", "{}"),
        ("```py\nx\n```", "```py\nx\n```"),
    ],
)
def test_arguments_are_taken_out_of_what_they_are_wrapped_in(given, text):
    assert arguments_text(given) == text


@pytest.mark.parametrize(
    ("reason", "error"), [("server_error", ErrorReply), ("malformed_call", ValueError)]
)
def test_a_streamed_response_that_was_broken_off_is_an_error_of_its_last_event(reason, error):
    stream = ResponsesStreamAccumulator("m")
    ended = {"status": "incomplete", "incomplete_details": {"reason": reason}, "output": []}
    with pytest.raises(error):
        stream.add_event("", orjson.dumps({"type": "response.incomplete", "response": ended}))
    assert not stream.result().reply.text
