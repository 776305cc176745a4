"""What a call can cost at most, before it is made. Pure.

The ordinary estimate (`core.estimate`) is for showing and for rates; it may be too low. What is
reserved for a call is this bound:

- input: a token of a byte-level vocabulary is at least one byte, so a text has at most as many
  tokens as bytes of UTF-8 (as many as its longest normal form has, where a tokenizer normalises).
  What a provider adds (chat template, its words about tools) is an allowance. Never more than the
  worker's context window, where that is known.
- output: a cap that is sent to the worker (`Request.max_output`), reasoning included.
- price: the dearest that the worker has for input, cached or not.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from batuta.core.message import Image, Message, Request, Text, ToolCall
from batuta.core.usage import MILLION, Price
from batuta.core.worker import Worker

OUTPUT = 4096
"""Tokens that a reply may have under a limit in dollars where nobody has set a cap."""
REASONING_OUTPUT = 32_000
"""The same for a model that reasons unasked and pays for it from its output."""
LEAST_OUTPUT = 256
"""Tokens to which an answer may be shortened so that its call fits a limit in dollars; one that
does not fit even so is not made."""
THINKING_TOKENS: Mapping[str, int] = {
    "minimal": 1024,
    "low": 2048,
    "medium": 8192,
    "high": 16384,
    "xhigh": 32768,
    "max": 32768,
}
"""Tokens that a Claude may think for each effort, on top of `max_tokens`."""

REQUEST_TOKENS = 300
"""Allowance for what a chat template adds to a request: a system prompt of its own, markers."""
MESSAGE_TOKENS = 16
"""Allowance for what a chat template adds to a message."""
TOOLS_TOKENS = 700
"""Allowance for what a provider says of tools, if there are any."""
TOOL_TOKENS = 32
"""Allowance for what it says of each."""
FORM_TOKENS = 300
"""Allowance for what a provider says of the form of an answer."""
IMAGE_TOKENS = 16_384
"""Of a picture at most, whatever its size."""
_IMAGES = (("gpt-4o-mini", 48_200),)
"""Models whose pictures count as more."""
_REASONERS = (
    "o1",
    "o3",
    "o4",
    "gpt-5",
    "gemini-2.5",
    "gemini-3",
    "deepseek-reasoner",
)
_JSON = 2
"""How much longer a provider may write JSON into the prompt than we send it: indented, escaped."""
_TOO_DEEP = 10_000_000
"""Tokens of JSON that cannot be written: more than any window."""
_CHUNK = 256
"""Characters that are normalised at once: sorting a long run of marks takes the square of it."""
_SEAM = 16
"""Bytes by which a text may grow where two chunks meet."""


def max_tokens_of(text: str) -> int:
    """Tokens that `text` has at most in a byte-level vocabulary, whatever its script."""
    if text.isascii():
        return len(text)
    plain = compatible = 0
    for at in range(0, len(text), _CHUNK):
        chunk = text[at : at + _CHUNK]
        plain += _bytes(unicodedata.normalize("NFC", chunk)) + _SEAM
        compatible += _bytes(unicodedata.normalize("NFKC", chunk)) + _SEAM
    return max(_bytes(text), plain, compatible)


def max_tokens_in(request: Request, worker: Worker) -> int:
    """Tokens that the prompt of `request` has at most for that worker."""
    image = next((most for name, most in _IMAGES if _named(worker, name)), IMAGE_TOKENS)
    total = REQUEST_TOKENS + max_tokens_of(request.prefill)
    total += sum(_of_message(message, image) for message in request.messages)
    if request.tools:
        total += TOOLS_TOKENS
    for tool in request.tools:
        total += TOOL_TOKENS + max_tokens_of(tool.name) + max_tokens_of(tool.description)
        total += _of_json(tool.parameters)
    if request.response_format is not None:
        total += FORM_TOKENS + _of_json(request.response_format.schema)
    return total if worker.context_window is None else min(total, worker.context_window)


def wanted_output(request: Request, worker: Worker) -> int:
    """Output tokens that the call may have if money does not matter, reasoning included."""
    if request.max_output is not None:
        return request.max_output
    sampling = request.sampling.over(worker.sampling)
    said = sampling.max_tokens
    if said is None:
        said = REASONING_OUTPUT if _named(worker, *_REASONERS) else OUTPUT
        if worker.context_window is not None:  # some refuse a prompt and a cap beyond their window
            said = min(said, max(worker.context_window // 4, LEAST_OUTPUT))
    if sampling.effort is not None and _named(worker, "claude"):
        said += THINKING_TOKENS.get(sampling.effort, 0)
    return said


@dataclass(frozen=True, slots=True)
class CallBound:
    """The most that a call can cost, as a function of the cap on its output."""

    input_usd: Decimal
    """Dollars of the prompt."""
    token_usd: Decimal
    """Dollars of a token of output."""
    wanted: int
    """Output tokens that it may have if money does not matter."""
    least: int
    """Output tokens below which it is not worth making."""

    def usd(self, output: int) -> Decimal:
        """Dollars, with at most so many tokens of output."""
        return self.input_usd + output * self.token_usd

    @property
    def most_usd(self) -> Decimal:
        """Dollars, if it may say all that it wants."""
        return self.usd(self.wanted)

    @property
    def least_usd(self) -> Decimal:
        """Dollars below which it is not made."""
        return self.usd(self.least)

    def fitting(self, room: Decimal) -> int:
        """Output tokens for which those dollars suffice, at most the wanted; -1: not for any."""
        left = room - self.input_usd
        if left < 0:
            return -1
        if not self.token_usd:
            return self.wanted
        return min(self.wanted, int(left // self.token_usd))


def bound_of(request: Request, worker: Worker, unknown: Price, *, whole: bool = False) -> CallBound:
    """What a call can cost at most.

    Args:
        request: what is asked.
        worker: who is asked.
        unknown: the price that counts where the worker has none.
        whole: its output cannot be shortened.
    """
    price = worker.price or unknown
    dearest = max(price.input, price.cached or Decimal(0), price.cache_write or Decimal(0))
    wanted = wanted_output(request, worker)
    return CallBound(
        input_usd=max_tokens_in(request, worker) * dearest / MILLION,
        token_usd=price.output / MILLION,
        wanted=wanted,
        least=wanted if whole else min(wanted, LEAST_OUTPUT),
    )


def _named(worker: Worker, *prefixes: str) -> bool:
    """Whether the model's name, without its maker's, begins with one of those."""
    return worker.model.rpartition("/")[2].startswith(prefixes)


def _of_message(message: Message, image: int) -> int:
    total = MESSAGE_TOKENS + max_tokens_of(message.reasoning) + max_tokens_of(message.name or "")
    for part in message.parts:
        if isinstance(part, Text):
            total += max_tokens_of(part.text)
        elif isinstance(part, Image):
            total += image
        elif isinstance(part, ToolCall):
            total += MESSAGE_TOKENS + max_tokens_of(part.id + part.name)
            total += _JSON * max_tokens_of(part.arguments)
        else:
            total += (
                MESSAGE_TOKENS + max_tokens_of(part.call_id) + _JSON * max_tokens_of(part.content)
            )
    return total


def _of_json(value: Mapping[str, Any]) -> int:
    if not value:
        return 0
    try:
        return _JSON * len(json.dumps(value, default=str))
    except (RecursionError, TypeError, ValueError):
        return _TOO_DEEP


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
