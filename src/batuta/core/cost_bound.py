"""Upper bounds on the cost of a call, before it is made. Pure.

The usual estimate (`core.token_estimate`) is for display and rate limits and may be too low. The
budget reserves this bound instead:

- input: a token of a byte-level vocabulary has at least one byte, so a text has at most as many
  tokens as UTF-8 bytes (of its longest normal form, since a tokenizer may normalise). Additions by
  the provider (chat template, descriptions of tools) are covered by allowances. The bound never
  exceeds the worker's context window, if that is known.
- output: a cap that is sent to the worker (`Request.max_output`), reasoning included, for each of
  the requested replies.
- price: for input the highest of the worker's prices that can apply (fresh, read from or written to
  a cache, audio); for output its price; and what the call itself and its searches cost.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

from batuta.core.message import HOUR_MARK, Audio, File, Image, Message, Request, Text, ToolCall
from batuta.core.worker import Worker
from batuta.usage import ASSUMED_SEARCH, MILLION, Price

DEFAULT_OUTPUT_TOKENS = 4096
"""Output cap under a limit in dollars or a budget if the request and the worker set none."""
DEFAULT_REASONING_OUTPUT_TOKENS = 32_000
"""The same for a model that reasons by default, since reasoning counts as output."""
MIN_OUTPUT_TOKENS = 256
"""The lowest output cap to which a call is shortened to fit into a limit in dollars; a call that
does not fit even then is not made."""
THINKING_TOKENS: Mapping[str, int] = {
    "minimal": 1024,
    "low": 2048,
    "medium": 8192,
    "high": 16384,
    "xhigh": 32768,
    "max": 32768,
}
"""Thinking tokens of a Claude model for each effort, on top of `max_tokens`."""

REQUEST_TOKENS = 300
"""Allowance per request for the chat template: its own system prompt, markers."""
MESSAGE_TOKENS = 16
"""Allowance per message for the chat template."""
TOOLS_TOKENS = 700
"""Allowance for the provider's prompt about tools, if there are any."""
TOOL_TOKENS = 32
"""Allowance per tool for the provider's prompt."""
SEARCH_TOKENS = 16_384
"""Allowance for the results of one search that the provider runs."""
RESPONSE_FORMAT_TOKENS = 300
"""Allowance for the provider's prompt about the response format."""
IMAGE_TOKENS = 16_384
"""Maximum number of tokens of a picture of any size."""
FILE_TOKENS = 300_000
"""Maximum number of tokens of a file in addition to its bytes: a hundred pages, each also read as a
picture. (A recording needs no such allowance: it has less than one token per byte.)"""
_IMAGE_TOKENS_BY_MODEL = (("gpt-4o-mini", 48_200),)
"""Models for which a picture counts as more tokens, by the beginning of their names."""
_REASONING_MODELS = re.compile(
    r"o[134]|gpt-[5-9]|gpt-oss|gemini-(?:2\.5|[3-9])"
    r"|claude-(?:fable|mythos|(?:opus|sonnet|haiku)-[5-9])"
    r"|deepseek-(?:reasoner|r1|flash|pro|v[4-9])"
    r"|qwen3|qwq|magistral|grok-(?:3-mini|[4-9])|glm-(?:4\.[5-9]|[5-9])"
    r"|kimi-k(?:2-thinking|2\.[5-9]|[3-9])"
)
"""Models that reason by default, by the beginning of their names."""
_JSON_EXPANSION = 2
"""Factor by which JSON may be longer in the provider's prompt than as sent: indented, escaped."""
_UNBOUNDED_JSON_TOKENS = 10_000_000
"""Tokens assumed for values that cannot be serialized."""
_MAX_LETTERS = 20_000
"""With more distinct characters than this, the worst growth is assumed for all of them."""
_LETTERS_READ = 50_000
"""Characters scanned in one call, during which other threads wait."""
_MAX_GROWING = 64
"""With more distinct growing characters than this, the worst growth is assumed for all of them."""
_MAX_GROWTH = 11
"""The largest factor by which normalising lengthens a text: U+FDFA becomes a whole sentence."""
_MARKS_GROWTH = 2
"""A further factor if combining marks can be reordered between a letter and its own mark."""


def max_text_tokens(text: str) -> int:
    """Return the maximum number of tokens of `text` in any byte-level vocabulary.

    Takes linear time, whereas normalising is quadratic in the length of a run of combining marks.
    """
    if text.isascii():
        return len(text)
    size, letters = _utf8_length(text), set[str]()
    for at in range(0, len(text), _LETTERS_READ):
        letters.update(text[at : at + _LETTERS_READ])
        if len(letters) > _MAX_LETTERS:
            return _MAX_GROWTH * size
    forms = {letter: _normal_form(letter) for letter in letters if letter > "\x7f"}
    growing = {letter: form.growth for letter, form in forms.items() if form.growth}
    if len(growing) > _MAX_GROWING:
        return _MAX_GROWTH * size
    total = size + sum(growth * text.count(letter) for letter, growth in growing.items())
    # Reordering may put a mark between a decomposed letter and its own mark.
    mixed = any(form.has_marks for form in forms.values()) and any(
        form.is_compound for form in forms.values()
    )
    return _MARKS_GROWTH * total if mixed else total


class _NormalForm(NamedTuple):
    """How a character changes under Unicode normalisation."""

    growth: int
    """Bytes that normalising adds, at least 0."""
    has_marks: bool
    """Whether the character is, or normalises to, combining marks, which may be reordered."""
    is_compound: bool
    """Whether the character decomposes into others."""


@lru_cache(_MAX_LETTERS)
def _normal_form(letter: str) -> _NormalForm:
    forms = [unicodedata.normalize(form, letter) for form in ("NFC", "NFKC")]
    growth = max(0, *(_utf8_length(form) - _utf8_length(letter) for form in forms))
    marks = any(unicodedata.combining(one) for form in (letter, *forms) for one in form)
    return _NormalForm(growth, marks, unicodedata.normalize("NFKD", letter) != letter)


class PromptSize(NamedTuple):
    """An upper bound on the size of a prompt, independent of the worker."""

    tokens: int
    """Tokens without the pictures."""
    images: int
    """Number of pictures, whose tokens depend on the worker."""


def measure_prompt(request: Request) -> PromptSize:
    """Return an upper bound on the size of the prompt of `request`."""
    total, images = REQUEST_TOKENS, 0
    for message in request.messages:
        total += _max_message_tokens(message)
        images += len(message.images)
    if request.prefill:
        total += max_text_tokens(request.prefill)
    if request.tools:
        total += TOOLS_TOKENS
    for tool in request.tools:
        total += TOOL_TOKENS + max_text_tokens(tool.name) + max_text_tokens(tool.description)
        total += _max_json_tokens(tool.parameters)
        if tool.native is not None:
            total += tool.native.max_uses * SEARCH_TOKENS
    if request.response_format is not None:
        total += RESPONSE_FORMAT_TOKENS + _max_json_tokens(request.response_format.schema)
    return PromptSize(total, images)


def max_prompt_tokens(request: Request, worker: Worker, size: PromptSize | None = None) -> int:
    """Return the maximum number of tokens of the prompt; `size` is given if measured already."""
    size = size or measure_prompt(request)
    total = size.tokens
    if size.images:
        known = (most for name, most in _IMAGE_TOKENS_BY_MODEL if _is_model(worker, name))
        total += next(known, IMAGE_TOKENS) * size.images
    return total if worker.context_window is None else min(total, worker.context_window)


def can_prompt_have(request: Request, worker: Worker, tokens: int) -> bool:
    """Return True if `max_prompt_tokens` of `request` is at least `tokens`.

    Reads no more of a long prompt than is needed to decide.
    """
    if worker.context_window is not None and tokens > worker.context_window:
        return False
    total = REQUEST_TOKENS
    for message in request.messages:
        if total >= tokens:
            return True
        total += _max_message_tokens(message)
    return total >= tokens or max_prompt_tokens(request, worker) >= tokens


def desired_output_tokens(request: Request, worker: Worker) -> int:
    """Return the output cap, reasoning included, that a call has if the budget covers it.

    Without a limit in dollars or a budget, this cap is not added to the request.
    """
    if request.max_output is not None:
        return request.max_output
    sampling = request.sampling.with_defaults(worker.sampling)
    requested = sampling.max_tokens
    if requested is None:
        requested = (
            DEFAULT_REASONING_OUTPUT_TOKENS if reasons_unasked(worker) else DEFAULT_OUTPUT_TOKENS
        )
        if worker.context_window is not None:  # prompt and cap together must fit for some providers
            requested = min(requested, max(worker.context_window // 4, MIN_OUTPUT_TOKENS))
    if sampling.effort is not None and _is_model(worker, "claude"):
        requested += THINKING_TOKENS.get(sampling.effort, 0)
    return requested


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCostBound:
    """The maximum cost of a call, as a function of its output cap."""

    input_usd: Decimal
    """Dollars of the prompt, of the call itself and of its searches."""
    token_usd: Decimal
    """Dollars of one output token in each of the requested replies."""
    desired_output: int
    """The output cap, in tokens, if money does not matter."""
    min_output: int
    """The lowest output cap with which the call is made."""

    def usd(self, output: int) -> Decimal:
        """Return the dollars with an output cap of `output` tokens."""
        return self.input_usd + output * self.token_usd

    @property
    def max_usd(self) -> Decimal:
        """Dollars with the desired output cap."""
        return self.usd(self.desired_output)

    @property
    def min_usd(self) -> Decimal:
        """Dollars with the lowest output cap; with less money the call is not made."""
        return self.usd(self.min_output)

    def affordable_output(self, room: Decimal) -> int:
        """Return the output cap that `room` dollars cover; -1 if they do not cover the input.

        The cap is never higher than the desired one.
        """
        left = room - self.input_usd
        if left < 0:
            return -1
        if left >= self.desired_output * self.token_usd:
            return self.desired_output  # the division of a very large amount has no exact result
        return int(left // self.token_usd)


def bound_call_cost(
    request: Request,
    worker: Worker,
    unknown: Price,
    *,
    whole: bool = False,
    size: PromptSize | None = None,
) -> CallCostBound:
    """Return the maximum cost of a call.

    Args:
        request: the request to be sent.
        worker: the worker to be called.
        unknown: the price assumed for a worker without a price; its `search`, or `ASSUMED_SEARCH`
            if that is None, is assumed for searches of unknown price.
        whole: whether the output cap must not be lowered.
        size: the size of the prompt, if it was measured already.
    """
    price = worker.price or unknown
    highest = max(price.input, price.cached or Decimal(0), price.cache_write or Decimal(0))
    if has_hour_mark(request):
        highest = max(highest, price.hour_cache_write)
    if price.audio is not None and _has_recording(request):
        highest = max(highest, price.audio)
    desired = desired_output_tokens(request, worker)
    return CallCostBound(
        input_usd=max_prompt_tokens(request, worker, size) * highest / MILLION
        + price.call
        + _max_search_usd(request, price, unknown),
        token_usd=price.output * (request.sampling.choices or 1) / MILLION,
        desired_output=desired,
        min_output=desired if whole else min(desired, MIN_OUTPUT_TOKENS),
    )


def _max_search_usd(request: Request, price: Price, unknown: Price) -> Decimal:
    """Return the dollars of the searches that the provider may run."""
    uses = sum(tool.native.max_uses for tool in request.tools if tool.native is not None)
    if not uses:
        return Decimal(0)
    each = unknown.search if price.search is None else price.search
    return uses * (ASSUMED_SEARCH if each is None else each)


def has_hour_mark(request: Request) -> bool:
    """Return True if a part of the prompt is to be cached for an hour, which costs more."""
    if request.cache is not None and request.cache.mark == HOUR_MARK:
        return True
    for message in request.messages:
        for part in message.parts:
            if part.cache == HOUR_MARK:
                return True
    return any(tool.cache == HOUR_MARK for tool in request.tools) if request.tools else False


def _has_recording(request: Request) -> bool:
    return any(isinstance(part, Audio) for message in request.messages for part in message.parts)


def reasons_unasked(worker: Worker) -> bool:
    """Return True if the worker's model is known to reason without being asked to.

    Its reasoning counts as output.
    """
    return _REASONING_MODELS.match(_bare_name(worker)) is not None


def _is_model(worker: Worker, prefix: str) -> bool:
    return _bare_name(worker).startswith(prefix)


def _bare_name(worker: Worker) -> str:
    """Return the model's name in lower case without its vendor prefix, as in `openai/`."""
    return worker.model.lower().rpartition("/")[2]


def _max_message_tokens(message: Message) -> int:
    """Return the maximum number of tokens of a message without its pictures."""
    total = MESSAGE_TOKENS
    if message.reasoning or message.name:
        total += max_text_tokens(message.reasoning) + max_text_tokens(message.name or "")
    # Encrypted reasoning is billed as input.
    total += sum(len(thought.signature) + len(thought.redacted) for thought in message.thoughts)
    for part in message.parts:
        if isinstance(part, Text):
            total += max_text_tokens(part.text) + len(part.tokens)
        elif isinstance(part, Image):
            continue
        elif isinstance(part, File):
            total += FILE_TOKENS + len(part.data) + max_text_tokens(part.name)
        elif isinstance(part, Audio):
            total += len(part.data)
        elif isinstance(part, ToolCall):
            total += MESSAGE_TOKENS + max_text_tokens(part.id + part.name)
            total += _JSON_EXPANSION * max_text_tokens(part.arguments)
        else:
            total += (
                MESSAGE_TOKENS
                + max_text_tokens(part.call_id)
                + _JSON_EXPANSION * max_text_tokens(part.content)
            )
    return total


def _max_json_tokens(value: Mapping[str, Any]) -> int:
    if not value:
        return 0
    try:
        return _JSON_EXPANSION * len(json.dumps(value, default=str))
    except (RecursionError, TypeError, ValueError):
        return _UNBOUNDED_JSON_TOKENS


def _utf8_length(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
