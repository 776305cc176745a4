"""Approximate token counts, for display, rate limits and providers that report no usage.

An estimate may be too low; reservations use the upper bounds of `core.cost_bound` instead.
"""

from __future__ import annotations

from batuta.core.message import Audio, File, Image, Message, Reply, Request, Text, ToolCall
from batuta.usage import Usage

CHARACTERS_PER_TOKEN = 4
"""Characters per token of English text; other scripts have more tokens (see `token_weight`)."""
TOKENS_PER_IMAGE = 1000
TOKENS_PER_MESSAGE = 4
_BASE64_PER_TOKEN = 40
"""Approximate Base64 characters in a token of a file or a recording."""
_DATA_PARTS = (File, Audio)
_WEIGHT_PER_TOKEN = 12
"""Weight of one token, as `token_weight` counts it."""


def token_weight(text: str) -> int:
    """Return the estimated tokens of `text`, in twelfths of a token.

    A token is 4 ASCII characters, or 3 bytes of other scripts: a Chinese character counts as one
    token, a Cyrillic letter as two thirds of a token.
    """
    if text.isascii():
        return len(text) * 3
    ascii_only = len(text.encode("ascii", "ignore"))
    others = len(text.encode("utf-8", "surrogatepass")) - ascii_only
    return ascii_only * 3 + others * 4


def tokens_from_weight(weight: int) -> int:
    """Return the tokens of a weight in twelfths of a token, rounded up."""
    return -(-weight // _WEIGHT_PER_TOKEN)


def estimate_tokens(text: str) -> int:
    """Return the estimated tokens of `text`, rounded up."""
    return tokens_from_weight(token_weight(text))


def estimate_request_tokens(request: Request) -> int:
    """Return the estimated tokens of the prompt, without its response format and reasoning."""
    total = sum(_estimate_message_tokens(message) for message in request.messages)
    for tool in request.tools:
        total += estimate_tokens(tool.name + tool.description + str(tool.parameters))
    return total + estimate_tokens(request.prefill)


def estimate_usage(request: Request, reply: Reply) -> Usage:
    """Return the usage of one call whose provider reported none, marked as an estimate."""
    reasoning = sum(estimate_tokens(choice.reasoning) for choice in reply.choices)
    calls = (call for choice in reply.choices for call in choice.tool_calls)
    output = sum(estimate_tokens(call.name + call.arguments) for call in calls)
    output += sum(estimate_tokens(choice.text) for choice in reply.choices) + reasoning
    output += TOKENS_PER_IMAGE * sum(len(choice.images) for choice in reply.choices)
    return Usage(
        calls=1,
        input=estimate_request_tokens(request),
        output=output,
        reasoning=reasoning,
        estimated=1,
    )


def _estimate_message_tokens(message: Message) -> int:
    total = TOKENS_PER_MESSAGE
    for part in message.parts:
        if isinstance(part, Text):
            total += estimate_tokens(part.text) + len(part.tokens)
        elif isinstance(part, Image):
            total += TOKENS_PER_IMAGE
        elif isinstance(part, _DATA_PARTS):
            total += max(TOKENS_PER_IMAGE, len(part.data) // _BASE64_PER_TOKEN)
        elif isinstance(part, ToolCall):
            total += estimate_tokens(part.name + part.arguments)
        else:
            total += estimate_tokens(part.content)
    return total
