"""Bounds what a call can cost, before it is made. Pure.

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
"""Tokens that a reply may have under a limit in dollars where nobody has set a cap."""
DEFAULT_REASONING_OUTPUT_TOKENS = 32_000
"""The same for a model that reasons unasked and pays for it from its output."""
MIN_OUTPUT_TOKENS = 256
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
SEARCH_TOKENS = 16_384
"""Allowance for what a search that the provider runs adds to the prompt."""
RESPONSE_FORMAT_TOKENS = 300
"""Allowance for what a provider says of the form of an answer."""
IMAGE_TOKENS = 16_384
"""Of a picture at most, whatever its size."""
FILE_TOKENS = 300_000
"""Of a file at most besides its bytes: a hundred pages, each read as a picture too. A recording has
less than a token a byte, at what its tokens cost more than a text's."""
_IMAGE_TOKENS_BY_MODEL = (("gpt-4o-mini", 48_200),)
"""Models whose pictures count as more."""
_REASONING_MODELS = re.compile(
    r"o[134]|gpt-[5-9]|gpt-oss|gemini-(?:2\.5|[3-9])"
    r"|claude-(?:fable|mythos|(?:opus|sonnet|haiku)-[5-9])"
    r"|deepseek-(?:reasoner|r1|flash|pro|v[4-9])"
    r"|qwen3|qwq|magistral|grok-(?:3-mini|[4-9])|glm-(?:4\.[5-9]|[5-9])"
    r"|kimi-k(?:2-thinking|2\.[5-9]|[3-9])"
)
"""Models that reason unasked, by the beginning of their names."""
_JSON_EXPANSION = 2
"""How much longer a provider may write JSON into the prompt than we send it: indented, escaped."""
_UNBOUNDED_JSON_TOKENS = 10_000_000
"""Tokens of JSON that cannot be written: more than any window."""
_MAX_LETTERS = 20_000
"""Different letters of a text beyond which each is taken for the worst."""
_LETTERS_READ = 50_000
"""Letters that are read at once: other threads wait meanwhile."""
_MAX_GROWING = 64
"""The same of letters that grow."""
_MAX_GROWTH = 11
"""Times by which normalising makes a text longer at most: one Arabic letter is a whole blessing."""
_MARKS_GROWTH = 2
"""The same where letters stay what they are and only marks are put in another order."""


def max_text_tokens(text: str) -> int:
    """Return the tokens that `text` has at most in a byte-level vocabulary, whatever its script.

    It takes time linear in the text; normalising it would take the square of a run of marks.
    """
    if text.isascii():
        return len(text)
    size, letters = _utf8_length(text), set[str]()
    for at in range(0, len(text), _LETTERS_READ):
        letters.update(text[at : at + _LETTERS_READ])
        if len(letters) > _MAX_LETTERS:
            return _MAX_GROWTH * size
    found = {letter: _normal_form(letter) for letter in letters if letter > "\x7f"}
    growing = {letter: form.growth for letter, form in found.items() if form.growth}
    if len(growing) > _MAX_GROWING:
        return _MAX_GROWTH * size
    total = size + sum(growth * text.count(letter) for letter, growth in growing.items())
    # A mark may come between a letter and a mark that was one with it.
    mixed = any(form.has_marks for form in found.values()) and any(
        form.is_compound for form in found.values()
    )
    return _MARKS_GROWTH * total if mixed else total


class _NormalForm(NamedTuple):
    """The form that a letter takes where text is normalised."""

    growth: int
    """Bytes that are added."""
    has_marks: bool
    """Whether it is a mark, which is put in order among others, or such come of it."""
    is_compound: bool
    """Whether it is taken apart."""


@lru_cache(_MAX_LETTERS)
def _normal_form(letter: str) -> _NormalForm:
    forms = [unicodedata.normalize(form, letter) for form in ("NFC", "NFKC")]
    growth = max(0, *(_utf8_length(form) - _utf8_length(letter) for form in forms))
    marks = any(unicodedata.combining(one) for form in (letter, *forms) for one in form)
    return _NormalForm(growth, marks, unicodedata.normalize("NFKD", letter) != letter)


class PromptSize(NamedTuple):
    """How large a prompt is at most, as far as that is the same for every worker."""

    tokens: int
    """Without the pictures."""
    images: int


def measure_prompt(request: Request) -> PromptSize:
    """Return the size of the prompt of `request`."""
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
    """Return the tokens that the prompt of `request` has at most for that worker."""
    size = size or measure_prompt(request)
    total = size.tokens
    if size.images:
        known = (most for name, most in _IMAGE_TOKENS_BY_MODEL if _is_model(worker, name))
        total += next(known, IMAGE_TOKENS) * size.images
    return total if worker.context_window is None else min(total, worker.context_window)


def can_prompt_have(request: Request, worker: Worker, tokens: int) -> bool:
    """Return True if the prompt of `request` may have so many tokens for that worker.

    `max_prompt_tokens` says the same; of a long prompt no more is read than shows it.
    """
    if worker.context_window is not None and tokens > worker.context_window:
        return False
    found = REQUEST_TOKENS
    for message in request.messages:
        if found >= tokens:
            return True
        found += _max_message_tokens(message)
    return found >= tokens or max_prompt_tokens(request, worker) >= tokens


def desired_output_tokens(request: Request, worker: Worker) -> int:
    """Return the output tokens, reasoning included, that the call may have without a budget."""
    if request.max_output is not None:
        return request.max_output
    sampling = request.sampling.with_defaults(worker.sampling)
    requested = sampling.max_tokens
    if requested is None:
        requested = (
            DEFAULT_REASONING_OUTPUT_TOKENS if reasons_unasked(worker) else DEFAULT_OUTPUT_TOKENS
        )
        if worker.context_window is not None:  # some refuse a prompt and a cap beyond their window
            requested = min(requested, max(worker.context_window // 4, MIN_OUTPUT_TOKENS))
    if sampling.effort is not None and _is_model(worker, "claude"):
        requested += THINKING_TOKENS.get(sampling.effort, 0)
    return requested


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCostBound:
    """The most that a call can cost, as a function of the cap on its output."""

    input_usd: Decimal
    """Dollars of the prompt."""
    token_usd: Decimal
    """Dollars of a token of output, in each of the replies that are asked for."""
    desired_output: int
    """Output tokens that it may have if money does not matter."""
    min_output: int
    """Output tokens below which it is not worth making."""

    def usd(self, output: int) -> Decimal:
        """Return the dollars, with at most so many tokens of output."""
        return self.input_usd + output * self.token_usd

    @property
    def max_usd(self) -> Decimal:
        """Dollars, if it may say all that it wants."""
        return self.usd(self.desired_output)

    @property
    def min_usd(self) -> Decimal:
        """Dollars below which it is not made."""
        return self.usd(self.min_output)

    def affordable_output(self, room: Decimal) -> int:
        """Return the output tokens for which it suffices, at most the wanted; -1: for none."""
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
    """Bound what a call can cost.

    Args:
        request: what is asked.
        worker: who is asked.
        unknown: the price that counts where the worker has none.
        whole: its output cannot be shortened.
        size: of the prompt, if it was measured already.
    """
    price = worker.price or unknown
    dearest = max(price.input, price.cached or Decimal(0), price.cache_write or Decimal(0))
    if has_hour_mark(request):
        dearest = max(dearest, price.hour_cache_write)
    if price.audio is not None and _has_recording(request):
        dearest = max(dearest, price.audio)
    wanted = desired_output_tokens(request, worker)
    return CallCostBound(
        input_usd=max_prompt_tokens(request, worker, size) * dearest / MILLION
        + price.call
        + _max_search_usd(request, price, unknown),
        token_usd=price.output * (request.sampling.choices or 1) / MILLION,
        desired_output=wanted,
        min_output=wanted if whole else min(wanted, MIN_OUTPUT_TOKENS),
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
    """Return True if a part of the prompt is heard."""
    return any(isinstance(part, Audio) for message in request.messages for part in message.parts)


def reasons_unasked(worker: Worker) -> bool:
    """Return True if the worker's model is known to reason, and to pay for it from its output."""
    return _REASONING_MODELS.match(_bare_name(worker)) is not None


def _is_model(worker: Worker, *prefixes: str) -> bool:
    """Return True if the model's name, without its maker's, begins with one of those."""
    return _bare_name(worker).startswith(prefixes)


def _bare_name(worker: Worker) -> str:
    return worker.model.lower().rpartition("/")[2]


def _max_message_tokens(message: Message) -> int:
    """Bound the tokens of a message without its pictures."""
    total = MESSAGE_TOKENS
    if message.reasoning or message.name:
        total += max_text_tokens(message.reasoning) + max_text_tokens(message.name or "")
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
