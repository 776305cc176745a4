"""Why a reply ended, in the words of the providers and of the servers that imitate them."""

from __future__ import annotations

import re
from typing import Any

from batuta.clients.decoding import ErrorReply, as_string
from batuta.core import Finish

_PLAIN = {
    "stop": Finish.STOP,
    "end_turn": Finish.STOP,
    "completed": Finish.STOP,
    "length": Finish.LENGTH,
    "max_tokens": Finish.LENGTH,
    "tool_calls": Finish.TOOL_CALLS,
    "tool_use": Finish.TOOL_CALLS,
    "content_filter": Finish.CONTENT_FILTER,
}
_BROKEN = re.compile(
    r"error|abort|cancel|fail|insufficient|interrupt|time_?d?_?out|unavailable|overload"
    r"|rate_limit|quota"
)
_BOTCHED = re.compile(r"malformed|too_many_tool|unexpected_tool|missing_thought")
_FINISHES = (
    (re.compile(r"filter|safety|sensitive|block|refus|guardrail|recitation|prohibit|spii|language"
                r"|moderat|risk|policy|armor|unsafe|censor|harm"), Finish.CONTENT_FILTER),
    # pause_turn: Anthropic's API stops its own searching there, and wants to be asked on.
    (re.compile(r"length|max|limit|trunc|window|incomplete|exceed|pause"), Finish.LENGTH),
    (re.compile(r"tool|function|call"), Finish.TOOL_CALLS),
)  # fmt: skip
_MOST_CHARACTERS = 100


def read_finish(reason: Any) -> Finish:
    """Return why a reply ended; a reason that nothing is known of is a plain end.

    The reasons are told apart by their words, as each of dozens of servers has its own:
    `length`, `MAX_TOKENS`, `max_output_reached`, `model_length`…

    Raises:
        ErrorReply: the provider broke the reply off, so what came of it is no answer.
        ValueError: the model wrote what is no answer, such as a call that cannot be read.
    """
    name = as_string(reason)[:_MOST_CHARACTERS]
    if (plain := _PLAIN.get(name)) is not None:
        return plain
    words = re.sub(r"[^a-z]+", "_", name.lower())
    if _BOTCHED.search(words):
        raise ValueError(f"the model's reply is no answer: {name}")
    if _BROKEN.search(words):
        message = f"the provider broke its reply off: {name}"
        raise ErrorReply({"error": {"message": message, "code": 502}})
    return next((finish for pattern, finish in _FINISHES if pattern.search(words)), Finish.STOP)
