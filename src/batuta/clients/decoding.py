"""Decodes what providers send: server-sent events, and JSON whose values may be of any type.

Events are parsed incrementally: bytes in, events out (WHATWG HTML, section 9.2.6).
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

from batuta.core import (
    Finish,
    Reply,
    Thought,
    TokenLogprob,
    ToolCall,
    Usage,
)
from batuta.core.json_values import count_values

T = TypeVar("T")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

SseEvent = tuple[str, bytes]
"""The event's name (empty if it has none) and its data, lines joined by a line feed."""


@final
class SseParser:
    """Parses one stream; chunks may be cut anywhere, lines may end in LF, CR LF or CR.

    Comments, `id` and `retry` are dropped. Where no blank line ends an event, a whole object does
    that another one follows: both as one would be nothing.
    """

    __slots__ = ("_cr", "_data", "_first", "_has_bare_lines", "_is_dense", "_name", "_rest")

    def __init__(self, *, has_bare_lines: bool = False) -> None:
        """Begin a stream.

        Args:
            has_bare_lines: each line is the data of an event, with nothing before them.
        """
        self._has_bare_lines = has_bare_lines
        self._rest: list[bytes] = []
        self._data: list[bytes] = []
        self._name = ""
        self._cr = False
        self._first = True
        self._is_dense = False
        """True once an event came behind another without a blank line."""

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
        if self._first:
            self._first = False
            lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
        return self._read(lines)

    def close(self) -> list[SseEvent]:
        """Return the event that the stream's end leaves without a blank line, perhaps cut off."""
        return self.feed(b"\n\n")

    def _unify(self, chunk: bytes) -> bytes:
        """Return `chunk` with every line end as one LF."""
        if self._cr and chunk:
            self._cr = False
            chunk = chunk.removeprefix(b"\n")
        if b"\r" in chunk:
            self._cr = chunk.endswith(b"\r")
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
                if self._data or self._is_dense:
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
        """Take in a line of data; return the events that it ends, or is."""
        ended: Sequence[SseEvent] = ()
        if data.startswith(b"{") or is_end_mark(data):
            ended = self._end_whole()
            self._is_dense = self._is_dense or bool(ended)
        self._data.append(data)
        return (*ended, *self._end_whole()) if self._is_dense else ended

    def _end_whole(self) -> Sequence[SseEvent]:
        """Return the event whose data are an object in one line, or the mark of an end."""
        if len(self._data) != 1 or not _is_whole(self._data[0]):
            return ()
        event = (self._name, self._data[0])
        self._name, self._data = "", []
        return (event,)


def _is_whole(data: bytes) -> bool:
    """Tell whether the data of an event are an object, or the mark of an end."""
    if not (data.startswith(b"{") and data.endswith(b"}")):
        return is_end_mark(data)
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    return True


_HALF = re.compile("[\ud800-\udfff]")
_MOST_LENIENT_BYTES = 1 << 20
"""The largest text that is read though it is not strict JSON."""


def load_json(text: bytes) -> Any:
    """Read a JSON text; what servers write beside JSON is taken: NaN, half characters, a BOM.

    Raises:
        ValueError: it is none.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        if len(text) > _MOST_LENIENT_BYTES:
            raise
    try:
        return json.loads(text.decode("utf-8-sig", "replace"))
    except RecursionError:
        raise ValueError("a value is nested too deep") from None


_END_MARK_BYTES = 12


def is_end_mark(data: bytes) -> bool:
    """Tell whether the data of an event are `[DONE]`, which some servers quote or write small."""
    return len(data) <= _END_MARK_BYTES and data.strip(b' \t"').upper() == b"[DONE]"


LARGE_BODY = 200_000
"""Bytes of a reply that is read in another thread, once its values are counted."""
_MAX_VALUES = 1_000_000
"""Most values of a whole reply: 8,000 tokens, each with twenty likely ones, have as many."""


async def read_pieces(pieces: Sequence[bytes], read: Callable[[Any], T]) -> T:
    """Return what `read` makes of the JSON text in pieces.

    A large one does not hold the event loop.

    Raises:
        MalformedTextError: it is none, or has too many values.
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
    """A reply that should be JSON is none, or has more values than anybody needs."""


def join_halves(text: str, *, alone: str = "replace") -> str:
    """Join the halves of surrogate pairs in a text.

    Args:
        text: what may have been put together from pieces.
        alone: what becomes of a half that is alone, in the words of `bytes.decode`.
    """
    if text.isascii() or not _HALF.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", alone)


def dump_json(value: Any) -> str:
    """Write a value that a provider sent as JSON; halves of surrogate pairs in it are joined.

    Raises:
        TypeError: it is nested too deep, or a number is too large.
    """
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        return orjson.dumps(_join_all_halves(value)).decode()


_MAX_DEPTH = 254
"""The deepest nesting that orjson writes."""


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


MOST_TOKENS = 100_000_000
"""Tokens of one call at most: ten times the largest window that there is. More is not believed."""


def as_object(value: Any) -> dict[str, Any]:
    """Return `value` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType] - of JSON


def as_array(value: Any) -> list[Any]:
    """Return `value` if it is an array, else an empty one."""
    return value if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType] - of JSON


def as_string(value: Any) -> str:
    """Return `value` if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def as_count(value: Any) -> int:
    """Return `value` if it is a number of at least 0 that tokens could have, else 0."""
    if type(value) is int:
        return value if 0 <= value <= MOST_TOKENS else 0
    value = as_number(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return 0
    return max(int(value), 0) if value == value and abs(value) <= MOST_TOKENS else 0  # noqa: PLR0124 - NaN


_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,18})?(e-[0-9]{1,2})?", re.IGNORECASE)


def as_number(value: Any) -> Any:
    """Return the number that a text says: some servers tell their counts and dollars so."""
    if not isinstance(value, str) or not (found := _NUMBER.fullmatch(value)):
        return value
    return float(value) if found[1] or found[2] else int(value)


def need_string(value: Any) -> str:
    """Return `value`, which must be a string.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(value, str):
        raise TypeError(f"a string was expected, not {type(value).__name__}")
    return value


def is_wrong_count(value: Any) -> bool:
    """Return True if a number of tokens was told that cannot be one."""
    if value is None:
        return False
    value = as_number(value)
    return isinstance(value, bool) or as_count(value) != value


def raise_counts(known: dict[str, Any], stated: Any) -> None:
    """Take what a reply tells of its usage into what it told before; no number is lowered.

    Servers tell a usage several times, and some end with zeros or nulls. A value that can be no
    count stays only where there is no better one.
    """
    for name, value in as_object(stated).items():
        old, value = known.get(name), as_number(value)  # noqa: PLW2901
        if isinstance(value, dict) and isinstance(old, dict):
            # One level of nesting is enough: no provider's usage has more.
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
    """Return a usage; one that is told in another dialect's names alone has its counts by `own`."""
    if not usage or any(name in usage for name in own):
        return usage
    return usage | _foreign_counts({"usage": usage}, own)


def take_foreign(known: dict[str, Any], event: Mapping[str, Any], own: tuple[str, str]) -> None:
    """Take in the tokens that an event of another dialect states, so that they are paid for.

    Args:
        known: what the reply told of its usage before.
        event: the event.
        own: the names that the counts of input and output have in the dialect that was expected.

    Raises:
        ValueError: it has words, which would be lost.
    """
    raise_counts(known, _foreign_counts(event, own))
    choices = map(as_object, as_array(event.get("choices")))
    candidates = map(as_object, as_array(event.get("candidates")))
    places = [
        *(event.get(name) for name in ("delta", "message", "content_block", "item", "response")),
        *(choice.get(name) for choice in choices for name in ("delta", "message")),
        *(candidate.get("content") for candidate in candidates),
    ]
    spoken = any(as_object(place).get(name) for place in places for name in _SPOKEN)
    if spoken or as_string(event.get("delta")):
        raise ValueError("words in an event of another dialect")


_SPOKEN = (
    "arguments", "content", "output", "partial_json", "parts", "reasoning_content", "refusal",
    "text", "thinking", "tool_calls",
)  # fmt: skip
"""Fields of the dialects that have words of a model."""


def _foreign_counts(event: Mapping[str, Any], own: tuple[str, str]) -> dict[str, int]:
    places = (event, as_object(event.get("response")), as_object(event.get("message")))
    counts: dict[str, int] = {}
    for place in places:
        for usage in filter(None, (place.get("usage"), place.get("usageMetadata"))):
            usage = as_object(usage)  # noqa: PLW2901
            plain = max(as_count(usage.get(name)) for name in _INPUTS)
            found = (
                plain + sum(as_count(usage.get(name)) for name in _CACHE_INPUTS),
                max(as_count(usage.get(name)) for name in _OUTPUTS),
            )
            for name, count in zip(own, found, strict=True):
                if count > counts.get(name, 0):
                    counts[name] = count
    return counts


_CACHE_READ = frozenset({"cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens"})
_CACHE_WRITTEN = frozenset(
    {"cache_write_tokens", "cache_creation_input_tokens", "cache_creation_tokens"}
)


def read_cache_counts(usage: dict[str, Any]) -> tuple[int, int]:
    """Return the tokens of a prompt that a cache gave, and those that it was given.

    Servers and gateways tell them under several names, beside the counts or in their details.
    """
    read = written = 0
    for place in (usage, usage.get("prompt_tokens_details"), usage.get("input_tokens_details")):
        if place:
            counts = as_object(place)
            for name in _CACHE_READ & counts.keys():
                read = max(read, as_count(counts[name]))
            for name in _CACHE_WRITTEN & counts.keys():
                written = max(written, as_count(counts[name]))
    return read, written


def _higher_count(old: Any, new: Any) -> Any:
    """Return the larger number; what is no number stays only where there is none."""
    if _is_number(new):
        return max(old, new) if _is_number(old) else new
    return new if new and not _is_number(old) else old


def _is_number(value: Any) -> bool:
    """Tell whether a usage could have that number."""
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return plain and 0 <= value <= MOST_TOKENS


def with_joined_halves(provider_reply: ProviderReply) -> ProviderReply:
    """Return the reply with the halves in its texts joined."""
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
    """An error object in a reply of status 200: adapters raise it, `ProviderClient` catches it."""

    def __init__(self, payload: Any) -> None:
        super().__init__("an error object in a reply")
        self.payload = payload


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderReply:
    """A provider's reply, before it is counted and priced."""

    reply: Reply
    usage: Usage | None = None
    """None: the provider sent none."""
    usage_is_partial: bool = False
    """True if the usage came before the reply had ended."""
    usd: Decimal | None = None
    """The cost in dollars, if the provider states it."""
    hour_cache_write: int = 0
    """Tokens written to a cache that keeps them for an hour, a part of those written to a cache."""
    audio_input: int = 0
    """Tokens of recordings in the prompt that did not come from a cache."""


MAX_TOOL_CALLS = 1024
"""Tool calls of one reply."""
MAX_CHOICES = 128
"""The most replies to one request: OpenAI's own limit."""


def check_choices(count: int) -> None:
    """Refuse a number of replies that nobody asks for.

    Raises:
        ValueError: they are too many.
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
_BROKEN = re.compile(
    r"error|abort|cancel|fail|insufficient|interrupt|time_?d?_?out|unavailable|overload"
    r"|rate_limit|quota"
)
_BOTCHED = re.compile(r"malformed|too_many_tool|unexpected_tool|missing_thought")
_FINISH_WORDS = (
    (re.compile(r"filter|safety|sensitive|block|refus|guardrail|recitation|prohibit|spii|language"
                r"|moderat|risk|policy|armor|unsafe|censor|harm"), Finish.CONTENT_FILTER),
    # pause_turn: Anthropic's API stops its own searching there, and wants to be asked on.
    (re.compile(r"length|max|limit|trunc|window|incomplete|exceed|pause"), Finish.LENGTH),
    (re.compile(r"tool|function|call"), Finish.TOOL_CALLS),
)  # fmt: skip
_MOST_REASON_CHARACTERS = 100


def read_finish(reason: Any) -> Finish:
    """Return why a reply ended; a reason that nothing is known of is a plain end.

    The reasons are told apart by their words, as each of dozens of servers has its own:
    `length`, `MAX_TOKENS`, `max_output_reached`, `model_length`…

    Raises:
        ErrorReply: the provider broke the reply off, so what came of it is no answer.
        ValueError: the model wrote what is no answer, such as a call that cannot be read.
    """
    name = as_string(reason)[:_MOST_REASON_CHARACTERS]
    if (plain := _FINISHES.get(name)) is not None:
        return plain
    words = re.sub(r"[^a-z]+", "_", name.lower())
    if _BOTCHED.search(words):
        raise ValueError(f"the model's reply is no answer: {name}")
    if _BROKEN.search(words):
        message = f"the provider broke its reply off: {name}"
        raise ErrorReply({"error": {"message": message, "code": 502}})
    return next((finish for pattern, finish in _FINISH_WORDS if pattern.search(words)), Finish.STOP)


def resolve_finish(finish: Finish, calls: Sequence[ToolCall]) -> Finish:
    """Return `finish`; STOP and TOOL_CALLS are told apart by whether there are calls."""
    if finish not in {Finish.STOP, Finish.TOOL_CALLS}:
        return finish
    return Finish.TOOL_CALLS if calls else Finish.STOP


def bound_usage(prompt: int, output: int, *, cached: int, written: int, reasoning: int) -> Usage:
    """Return the usage of one call, no part of it larger than the whole."""
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
    """Read the log probabilities of a choice's tokens; those that cannot be read are left out."""
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
