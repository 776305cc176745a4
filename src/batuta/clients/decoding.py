"""Decodes providers' replies: server-sent events, and JSON whose values may have any type.

Events are parsed incrementally, from bytes to events (WHATWG HTML, section 9.2.6).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, TypeVar, final

import anyio.to_thread
import orjson

from batuta.core import Finish, Reply, Thought, TokenLogprob, ToolCall, Usage
from batuta.core.json_values import LARGE_BODY, count_values

T = TypeVar("T")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

SseEvent = tuple[str, bytes]
"""The event's name (empty if it has none), and the lines of its data joined by line feeds."""


@final
class SseParser:
    """Parses one stream; chunks may end anywhere, lines may end in LF, CR LF or CR.

    Comments, `id` and `retry` are dropped. Some servers put no blank line between events. Then a
    line with a complete JSON object is an event: the first such line as soon as another event
    begins, each later line immediately.
    """

    __slots__ = (
        "_data", "_ended_in_cr", "_has_bare_lines", "_is_first", "_lacks_blank_lines", "_name",
        "_rest",
    )  # fmt: skip

    def __init__(self, *, has_bare_lines: bool = False) -> None:
        """Begin a stream.

        Args:
            has_bare_lines: each line is the data of one event, without the prefix `data:`.
        """
        self._has_bare_lines = has_bare_lines
        self._rest: list[bytes] = []
        """The pieces of the last line, which has not ended."""
        self._data: list[bytes] = []
        """The lines of data of the event that has not ended."""
        self._name = ""
        self._ended_in_cr = False
        """True if the last chunk ended in CR, so that an LF belongs to the same line end."""
        self._is_first = True
        """True until the first line was read, which may begin with a byte order mark."""
        self._lacks_blank_lines = False
        """True once data followed a complete event without a blank line between them."""

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Return the events that `chunk` completes."""
        chunk = self._unify(chunk)
        cut = chunk.rfind(b"\n")
        if cut < 0:
            # Pieces are joined only once a line ends: a long line stays linear in time.
            self._rest.append(chunk)
            return []
        block = b"".join((*self._rest, chunk[:cut]))
        self._rest = [chunk[cut + 1 :]]
        lines = block.split(b"\n")
        if self._is_first:
            self._is_first = False
            lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
        return self._read(lines)

    def close(self) -> list[SseEvent]:
        """Return the last event if no blank line ended it, else nothing; it may be truncated."""
        return self.feed(b"\n\n")

    def _unify(self, chunk: bytes) -> bytes:
        """Return `chunk` with all line ends as LF."""
        if self._ended_in_cr and chunk:
            self._ended_in_cr = False
            chunk = chunk.removeprefix(b"\n")
        if b"\r" in chunk:
            self._ended_in_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return chunk

    def _read(self, lines: list[bytes]) -> list[SseEvent]:
        events: list[SseEvent] = []
        for line in lines:
            if not line:
                if self._data:
                    events.append((self._name, b"\n".join(self._data)))
                    self._data = []
                self._name = ""
            elif self._has_bare_lines:
                events.append(("", line))
            elif line.startswith(b"data: "):
                if self._data or self._lacks_blank_lines:
                    events += self._add_line(line[6:])
                else:
                    self._data.append(line[6:])
            else:
                events += self._field(line)
        return events

    def _field(self, line: bytes) -> Sequence[SseEvent]:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            return self._add_line(value)
        if name != b"event":
            return ()
        ended = self._end_whole() if self._name else ()
        self._name = value.decode("utf-8", "replace")
        return ended

    def _add_line(self, data: bytes) -> Sequence[SseEvent]:
        """Add a line of data; return the events that are complete now."""
        ended: Sequence[SseEvent] = ()
        if data.startswith(b"{") or is_end_mark(data):
            ended = self._end_whole()
            self._lacks_blank_lines = self._lacks_blank_lines or bool(ended)
        self._data.append(data)
        return (*ended, *self._end_whole()) if self._lacks_blank_lines else ended

    def _end_whole(self) -> Sequence[SseEvent]:
        """Return and drop the pending event if its data is one line with an object or end mark."""
        if len(self._data) != 1 or not _is_whole(self._data[0]):
            return ()
        event = (self._name, self._data[0])
        self._name, self._data = "", []
        return (event,)


def _is_whole(data: bytes) -> bool:
    """Return True if the data of an event is a complete object or the end mark."""
    if not (data.startswith(b"{") and data.endswith(b"}")):
        return is_end_mark(data)
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    return True


_HALF = re.compile("[\ud800-\udfff]")
"""Matches one half of a surrogate pair."""
_MAX_LENIENT_BYTES = 1 << 20
"""Maximum size of a text that is parsed although it is not strict JSON."""


def load_json(text: bytes) -> Any:
    """Parse JSON.

    Texts of up to 1 MiB may have NaN, lone surrogates, a byte order mark or invalid UTF-8.

    Raises:
        ValueError: `text` is not JSON.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        if len(text) > _MAX_LENIENT_BYTES:
            raise
    try:
        return json.loads(text.decode("utf-8-sig", "replace"))
    except RecursionError:
        raise ValueError("a value is nested too deep") from None


_END_MARK_BYTES = 12


def is_end_mark(data: bytes) -> bool:
    """Return True if the data of an event is `[DONE]`, also quoted or in lower case."""
    return len(data) <= _END_MARK_BYTES and data.strip(b' \t"').upper() == b"[DONE]"


_MAX_VALUES = 1_000_000
"""Maximum number of JSON values in a large reply; 8,000 tokens with 20 `top_logprobs` each have
as many."""


async def read_pieces(pieces: Sequence[bytes], read: Callable[[Any], T]) -> T:
    """Parse the JSON text that the pieces make, pass its value to `read` and return the result.

    All this happens in another thread if the text is large, so that the event loop is not blocked.

    Raises:
        MalformedTextError: the text is not JSON, or is large and has too many values.
    """
    if sum(map(len, pieces)) <= LARGE_BODY:
        return _read_text(b"".join(pieces), read)
    return await anyio.to_thread.run_sync(_read_large, pieces, read)


def _read_large(pieces: Sequence[bytes], read: Callable[[Any], T]) -> T:
    text = b"".join(pieces)
    if count_values(text, _MAX_VALUES) > _MAX_VALUES:
        raise MalformedTextError
    return _read_text(text, read)


def _read_text(text: bytes, read: Callable[[Any], T]) -> T:
    try:
        value = load_json(text)
    except ValueError:
        raise MalformedTextError from None
    return read(value)


class MalformedTextError(Exception):
    """A reply that should be JSON is not JSON, or has too many values."""


def join_halves(text: str, *, alone: str = "replace") -> str:
    """Join surrogate pairs whose halves are separate characters of `text`.

    Args:
        text: text that may have been joined from pieces.
        alone: the treatment of lone surrogates: an error handler of `bytes.decode`.
    """
    if text.isascii() or not _HALF.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", alone)


def parse_object(text: str, name: str) -> dict[str, Any]:
    """Return the JSON object in `text`; another value, or malformed JSON, is put into a field.

    Args:
        text: JSON text; empty text is an empty object.
        name: the field's name.
    """
    try:
        value = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        value = text
    return value if isinstance(value, dict) else {name: value}  # pyright: ignore[reportUnknownVariableType]


def dump_json(value: Any) -> str:
    """Return a provider's value as JSON text, with the halves of surrogate pairs joined.

    Raises:
        TypeError: the value is nested too deep, or a number is too large.
    """
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        return orjson.dumps(_join_all_halves(value)).decode()


_MAX_DEPTH = 254
"""Deepest nesting that orjson serializes."""


def _join_all_halves(value: Any, depth: int = 0) -> Any:
    if depth > _MAX_DEPTH:
        raise TypeError("a value is nested too deep")
    if isinstance(value, str):
        return join_halves(value)
    if isinstance(value, list):
        return [_join_all_halves(one, depth + 1) for one in as_array(value)]
    if isinstance(value, dict):
        return {join_halves(k): _join_all_halves(v, depth + 1) for k, v in as_object(value).items()}
    return value


MAX_TOKENS = 100_000_000
"""Maximum plausible number of tokens of one call: ten times the largest context window."""


def as_object(value: Any) -> dict[str, Any]:
    """Return `value` if it is an object, else an empty object."""
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType] - of JSON


def as_array(value: Any) -> list[Any]:
    """Return `value` if it is an array, else an empty array."""
    return value if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType] - of JSON


def as_string(value: Any) -> str:
    """Return `value` if it is a string, else an empty string."""
    return value if isinstance(value, str) else ""


def as_count(value: Any) -> int:
    """Return a plausible number of tokens as an integer, also from a string; else 0."""
    if type(value) is int:
        return value if 0 <= value <= MAX_TOKENS else 0
    value = as_number(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return 0
    return max(int(value), 0) if value == value and abs(value) <= MAX_TOKENS else 0  # noqa: PLR0124 - NaN


_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,18})?(e-[0-9]{1,2})?", re.IGNORECASE)


def as_number(value: Any) -> Any:
    """Return the number in a string, as some servers send numbers as strings; else `value`.

    Only numbers without a sign and with at most 9 digits before the point are recognized.
    """
    if not isinstance(value, str) or not (found := _NUMBER.fullmatch(value)):
        return value
    return float(value) if found[1] or found[2] else int(value)


def need_string(value: Any) -> str:
    """Return `value`, which must be a string.

    Raises:
        TypeError: `value` is not a string.
    """
    if not isinstance(value, str):
        raise TypeError(f"a string was expected, not {type(value).__name__}")
    return value


def is_wrong_count(value: Any) -> bool:
    """Return True if `value` is not None and not a plausible, whole number of tokens."""
    if value is None:
        return False
    value = as_number(value)
    return isinstance(value, bool) or as_count(value) != value


def merge_counts(known: dict[str, Any], stated: Any) -> None:
    """Merge the usage of an event into that of earlier events; no number is lowered.

    Servers send the usage several times, and some end with zeros or nulls. A value that is not a
    number is kept only if there is no number.
    """
    for name, value in as_object(stated).items():
        old, value = known.get(name), as_number(value)  # noqa: PLW2901
        if isinstance(value, dict) and isinstance(old, dict):
            # One level is enough: no provider nests its usage deeper.
            old.update((n, _higher_count(old.get(n), v)) for n, v in value.items())  # pyright: ignore[reportUnknownVariableType,reportUnknownMemberType,reportUnknownArgumentType] - of JSON
        else:
            known[name] = _higher_count(old, value)


_INPUTS = ("prompt_tokens", "input_tokens", "promptTokenCount", "promptTokens", "inputTokens")
_OUTPUTS = (
    "completion_tokens", "output_tokens", "candidatesTokenCount", "completionTokens",
    "outputTokens",
)  # fmt: skip
_CACHE_INPUTS = ("cache_read_input_tokens", "cache_creation_input_tokens")


def with_own_names(usage: dict[str, Any], own: tuple[str, str]) -> dict[str, Any]:
    """Return `usage`; if it has neither field of `own`, add their counts from another API's fields.

    Args:
        usage: the usage that a provider states.
        own: the fields of input and output tokens in the expected API.
    """
    if not usage or any(name in usage for name in own):
        return usage
    return usage | _foreign_counts({"usage": usage}, own)


def add_foreign_counts(
    known: dict[str, Any], event: Mapping[str, Any], own: tuple[str, str]
) -> None:
    """Add the token counts of an event in another API's format, so that the tokens are billed.

    Args:
        known: the usage of earlier events; changed.
        event: the event.
        own: the fields of input and output tokens in the expected API.

    Raises:
        ValueError: the event has generated text, which would be lost.
    """
    merge_counts(known, _foreign_counts(event, own))
    choices = map(as_object, as_array(event.get("choices")))
    candidates = map(as_object, as_array(event.get("candidates")))
    objects = [
        *(event.get(name) for name in ("delta", "message", "content_block", "item", "response")),
        *(choice.get(name) for choice in choices for name in ("delta", "message")),
        *(candidate.get("content") for candidate in candidates),
    ]
    has_text = any(as_object(each).get(name) for each in objects for name in _TEXT_FIELDS)
    if has_text or as_string(event.get("delta")):
        raise ValueError("text in an event of another API")


_TEXT_FIELDS = (
    "arguments", "content", "output", "partial_json", "parts", "reasoning_content", "refusal",
    "text", "thinking", "tool_calls",
)  # fmt: skip
"""Fields that hold generated text, in any of the APIs."""


def _foreign_counts(event: Mapping[str, Any], own: tuple[str, str]) -> dict[str, int]:
    objects = (event, as_object(event.get("response")), as_object(event.get("message")))
    counts: dict[str, int] = {}
    for each in objects:
        for usage in filter(None, (each.get("usage"), each.get("usageMetadata"))):
            usage = as_object(usage)  # noqa: PLW2901
            plain = max(as_count(usage.get(name)) for name in _INPUTS)
            stated = (
                plain + sum(as_count(usage.get(name)) for name in _CACHE_INPUTS),
                max(as_count(usage.get(name)) for name in _OUTPUTS),
            )
            for name, count in zip(own, stated, strict=True):
                if count > counts.get(name, 0):
                    counts[name] = count
    return counts


_CACHE_READ = frozenset({"cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens"})
_CACHE_WRITTEN = frozenset(
    {"cache_write_tokens", "cache_creation_input_tokens", "cache_creation_tokens"}
)


def read_cache_counts(usage: dict[str, Any]) -> tuple[int, int]:
    """Return the prompt tokens read from a cache and those written to it.

    Servers and gateways use several field names, at the top level or in the token details.
    """
    read = written = 0
    for each in (usage, usage.get("prompt_tokens_details"), usage.get("input_tokens_details")):
        if each:
            counts = as_object(each)
            for name in _CACHE_READ & counts.keys():
                read = max(read, as_count(counts[name]))
            for name in _CACHE_WRITTEN & counts.keys():
                written = max(written, as_count(counts[name]))
    return read, written


def _higher_count(old: Any, new: Any) -> Any:
    """Return the larger number; if neither is a number, `new` unless it is empty, else `old`."""
    if _is_number(new):
        return max(old, new) if _is_number(old) else new
    return new if new and not _is_number(old) else old


def _is_number(value: Any) -> bool:
    """Return True if `value` is a plausible number of tokens."""
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return plain and 0 <= value <= MAX_TOKENS


def with_joined_halves(provider_reply: ProviderReply) -> ProviderReply:
    """Return the reply with the halves of surrogate pairs joined in its strings.

    `SearchReader` has already joined the halves in the strings of server calls.
    """
    reply = _join_reply(provider_reply.reply)
    return provider_reply if reply is provider_reply.reply else replace(provider_reply, reply=reply)


def _join_reply(reply: Reply) -> Reply:
    joined: dict[str, Any] = {
        "text": join_halves(reply.text),
        "reasoning": join_halves(reply.reasoning),
        "tool_calls": tuple(map(_join_call, reply.tool_calls)),
        "model": join_halves(reply.model),
        "stop_sequence": reply.stop_sequence and join_halves(reply.stop_sequence),
        "thoughts": tuple(map(join_thought, reply.thoughts)),
        "alternatives": tuple(map(_join_reply, reply.alternatives)),
    }
    changed = {name: value for name, value in joined.items() if value != getattr(reply, name)}
    return replace(reply, **changed) if changed else reply


def _join_call(call: ToolCall) -> ToolCall:
    return replace(
        call,
        id=join_halves(call.id),
        name=join_halves(call.name),
        arguments=join_halves(call.arguments),
    )


def join_thought(thought: Thought) -> Thought:
    """Join the halves of surrogate pairs in a thought."""
    return replace(
        thought,
        text=join_halves(thought.text),
        signature=join_halves(thought.signature),
        redacted=join_halves(thought.redacted),
    )


class ErrorReply(Exception):
    """A reply with status 200 states an error; `ProviderClient` raises it as a ClientError."""

    def __init__(self, payload: Any) -> None:
        super().__init__("an error object in a reply")
        self.payload = payload
        """The reply, or an object with its error in the field `error`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderReply:
    """A provider's parsed reply, before its usage is checked and priced."""

    reply: Reply
    usage: Usage | None = None
    """None if the provider stated no plausible usage."""
    usage_is_partial: bool = False
    """True if the usage was stated before the reply ended."""
    usd: Decimal | None = None
    """The cost in dollars; None if the provider does not state it."""
    hour_cache_write: int = 0
    """Tokens written to a cache with a lifetime of an hour; included in `usage.cache_write`."""
    audio_input: int = 0
    """Audio tokens of the prompt that were not read from a cache."""


MAX_TOOL_CALLS = 1024
"""Maximum number of tool calls in one reply."""
MAX_CHOICES = 128
"""Maximum number of choices (`n`) of one request; the limit is OpenAI's."""


def check_choices(count: int) -> None:
    """Check the number of choices in a reply.

    Raises:
        ValueError: `count` is more than `MAX_CHOICES`.
    """
    if count > MAX_CHOICES:
        raise ValueError(f"more than {MAX_CHOICES} replies to one request")


_FINISHES = {
    "stop": Finish.STOP,
    "end_turn": Finish.STOP,
    "completed": Finish.STOP,
    "length": Finish.LENGTH,
    "max_tokens": Finish.LENGTH,
    "tool_calls": Finish.TOOL_CALLS,
    "tool_use": Finish.TOOL_CALLS,
    "content_filter": Finish.CONTENT_FILTER,
}
_INTERRUPTED = re.compile(
    r"error|abort|cancel|fail|insufficient|interrupt|time_?d?_?out|unavailable|overload"
    r"|rate_limit|quota"
)
_INVALID_OUTPUT = re.compile(r"malformed|too_many_tool|unexpected_tool|missing_thought")
_FINISH_WORDS = (
    (re.compile(r"filter|safety|sensitive|block|refus|guardrail|recitation|prohibit|spii|language"
                r"|moderat|risk|policy|armor|unsafe|censor|harm"), Finish.CONTENT_FILTER),
    # pause_turn: Anthropic's API paused its server tools; the client must continue the turn.
    (re.compile(r"length|max|limit|trunc|window|incomplete|exceed|pause"), Finish.LENGTH),
    (re.compile(r"tool|function|call"), Finish.TOOL_CALLS),
)  # fmt: skip
_MAX_REASON_CHARACTERS = 100


def read_finish(reason: Any) -> Finish:
    """Return the finish reason; an unknown reason counts as STOP.

    Reasons are recognized by words in them, as dozens of servers have their own: `length`,
    `MAX_TOKENS`, `max_output_reached`, `model_length`…

    Raises:
        ErrorReply: the provider interrupted the reply, so it is not a complete answer.
        ValueError: the model's output is invalid, such as a malformed tool call.
    """
    name = as_string(reason)[:_MAX_REASON_CHARACTERS]
    if (plain := _FINISHES.get(name)) is not None:
        return plain
    words = re.sub(r"[^a-z]+", "_", name.lower())
    if _INVALID_OUTPUT.search(words):
        raise ValueError(f"the model's output is not a valid answer: {name}")
    if _INTERRUPTED.search(words):
        message = f"the provider interrupted its reply: {name}"
        raise ErrorReply({"error": {"message": message, "code": 502}})
    return next((finish for pattern, finish in _FINISH_WORDS if pattern.search(words)), Finish.STOP)


def resolve_finish(finish: Finish, calls: Sequence[ToolCall]) -> Finish:
    """Return `finish`, but STOP and TOOL_CALLS according to whether there are calls."""
    if finish not in {Finish.STOP, Finish.TOOL_CALLS}:
        return finish
    return Finish.TOOL_CALLS if calls else Finish.STOP


def bound_usage(prompt: int, output: int, *, cached: int, written: int, reasoning: int) -> Usage:
    """Return the usage of one call, with every part bounded by its total."""
    cached = min(cached, prompt)
    return Usage(
        calls=1,
        input=prompt,
        cached=cached,
        cache_write=min(written, prompt - cached),
        output=output,
        reasoning=min(reasoning, output),
    )


_LEAST_LOGPROB = -9999.0
"""OpenAI's value for the logarithm of zero."""


def parse_logprobs(choice: dict[str, Any]) -> tuple[TokenLogprob, ...]:
    """Read the log probabilities of a choice's tokens; malformed entries are left out."""
    rows = as_array(as_object(choice.get("logprobs")).get("content"))
    return tuple(token for row in rows if (token := _parse_token(as_object(row))) is not None)


def _parse_token(row: dict[str, Any]) -> TokenLogprob | None:
    chosen = _parse_alternative(row)
    others = [_parse_alternative(as_object(other)) for other in as_array(row.get("top_logprobs"))]
    return chosen and replace(chosen, others=tuple(other for other in others if other is not None))


def _parse_alternative(row: dict[str, Any]) -> TokenLogprob | None:
    token, logprob, utf8 = row.get("token"), row.get("logprob"), row.get("bytes")
    if not isinstance(token, str) or isinstance(logprob, bool):
        return None
    if not isinstance(logprob, (int, float)):
        return None
    return TokenLogprob(
        token=join_halves(token),
        logprob=float(logprob) if math.isfinite(logprob) else _LEAST_LOGPROB,
        utf8=None if utf8 is None else tuple(as_count(byte) for byte in as_array(utf8)),
    )
