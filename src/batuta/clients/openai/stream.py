"""Parses chat completions: whole replies, and streams accumulated into a reply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, final

from batuta.clients.data_url import read_picture_address
from batuta.clients.decoding import (
    ErrorReply,
    ProviderReply,
    add_foreign_counts,
    as_array,
    as_count,
    as_object,
    as_string,
    bound_usage,
    check_choices,
    is_end_mark,
    is_wrong_count,
    load_json,
    merge_counts,
    parse_logprobs,
    read_cache_counts,
    read_finish,
    resolve_finish,
    with_own_names,
)
from batuta.clients.error_mapping import find_stated_error
from batuta.clients.native_search import SearchReader
from batuta.clients.openai.call_fragments import CallFragments, called_function, function_arguments
from batuta.clients.stated_cost import stated_usd
from batuta.clients.tool_turns import (
    ROUND_TRIP_FIELDS,
    RoundTripFields,
    ToolCallAccumulator,
    arguments_text,
    has_extra,
    round_trip_thoughts,
)
from batuta.core import Delta, Finish, Image, Reply, TokenLogprob, ToolCall, Usage

_COUNTS = ("prompt_tokens", "completion_tokens")


@final
class _ChoiceAccumulator:
    def __init__(self, number: int, called_model: str) -> None:
        self._number = number
        self._called_model = called_model
        self._round_trip: RoundTripFields | None = None
        """None until the first of these fields is received."""
        self._text: list[str] = []
        self._length = 0
        """Characters of the text so far."""
        self._reasoning: list[str] = []
        self._calls: CallFragments | None = None
        """None until the first tool call is received."""
        self._logprobs: list[TokenLogprob] = []
        self._images: dict[Image, None] = {}
        self._cited: SearchReader | None = None
        """None until the first citation is received."""
        self.finish: Finish | None = None
        self._refused = False
        self._has_words = False
        self._stop_sequence: str | None = None

    def reply(self, model: str) -> Reply:
        """Return what has been received of the reply so far."""
        calls = self._calls.tool_calls() if self._calls is not None else ()
        numbers = self._calls.emitted_numbers() if self._calls is not None else {}
        thought = self._round_trip and self._round_trip.thought(self._called_model, numbers)
        return Reply(
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            tool_calls=calls,
            finish=Finish.CONTENT_FILTER
            if self._refused
            else resolve_finish(self.finish or Finish.STOP, calls),
            model=model,
            thoughts=() if thought is None else (thought,),
            stop_sequence=self._stop_sequence,
            is_refusal=self._refused,
            logprobs=tuple(self._logprobs),
            images=tuple(self._images),
        )

    def add_words(self, choice: dict[str, Any]) -> Delta | None:
        """Add a chunk that has plain text only, and return its delta; None if it may have more."""
        words = None if self.finish is not None else _plain_words(choice)
        if words is None:
            return None
        self._has_words = True
        self._text.append(words)
        self._length += len(words)
        return Delta(text=words, choice=self._number)

    def add_fragment(self, choice: dict[str, Any], pages: Sequence[Any] = ()) -> Sequence[Delta]:
        """Add what one chunk has of this choice, and return its deltas.

        Args:
            choice: an element of the chunk's `choices`.
            pages: the URLs that the chunk cites for the whole reply.
        """
        if not pages and (words := self.add_words(choice)) is not None:
            return (words,)
        reason = choice.get("finish_reason")
        if reason and reason != "null":
            self.finish = _parse_finish(choice, reason)
            self._stop_sequence = _matched_stop_text(choice)
        message = self._fields_of(choice)
        text = _message_text(message)
        text += self._missing_rest(choice, text)
        reasoning = _message_reasoning(message)
        self._has_words = self._has_words or bool(text or reasoning or _tool_calls_of(message))
        logprobs = parse_logprobs(choice)
        self._logprobs += logprobs
        deltas: list[Delta] = []
        for image in _pictures_of(message):
            if image not in self._images:  # some servers repeat all images at the end
                self._images[image] = None
                deltas.append(Delta(image=image, choice=self._number))
        if text or reasoning or logprobs:
            self._text.append(text)
            self._length += len(text)
            self._reasoning.append(reasoning)
            refused = _is_refusal(message)
            self._refused = self._refused or refused
            deltas.append(
                Delta(
                    text=text,
                    reasoning=reasoning,
                    is_refusal=refused,
                    choice=self._number,
                    logprobs=logprobs,
                )
            )
        deltas += self._add_calls(message)
        if pages or message.get("annotations"):
            if self._cited is None:
                self._cited = SearchReader()
            _read_cited(self._cited, message, pages)
        return deltas + self.flush() if self.finish is not None else deltas

    def _add_calls(self, message: dict[str, Any]) -> list[Delta]:
        """Add the tool calls of a fragment, and the fields to send back with the message."""
        deltas: list[Delta] = []
        if any(map(message.get, ROUND_TRIP_FIELDS)):
            self._round_trip_fields().add_fields(message)
        for call in _tool_calls_of(message):
            if self._calls is None:
                self._calls = CallFragments()
            deltas += self._calls.add_fragment(call)
            if has_extra(call):
                self._round_trip_fields().add_extra(call, self._calls.last_position)
        return self._numbered(deltas)

    def _round_trip_fields(self) -> RoundTripFields:
        if self._round_trip is None:
            self._round_trip = RoundTripFields()
        return self._round_trip

    def _fields_of(self, choice: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a fragment.

        Some servers send a string as the delta, some a whole message in their only chunk, others
        the legacy completions API's `text`.
        """
        delta = choice.get("delta")
        if isinstance(delta, str):
            return {"content": delta}
        if delta := as_object(delta):
            return delta
        if text := choice.get("text"):
            return {"content": text}
        return {} if self._has_words else as_object(choice.get("message"))

    def _missing_rest(self, choice: dict[str, Any], last: str) -> str:
        """Return the end of the text, if only the whole message in the last chunk has it.

        Raises:
            ValueError: the message begins with text that no chunk had.
        """
        if not self._has_words or self.finish is None:
            return ""
        whole = _message_text(as_object(choice.get("message")))
        if not whole or len(whole) < self._length + len(last):
            return ""  # checked before joining the pieces, as such chunks may be frequent
        beginning = "".join((*self._text, last))
        if beginning not in whole:
            return ""
        if whole.startswith(beginning):
            return whole[len(beginning) :]
        raise ValueError("the message at the end begins with text that no chunk had")

    def flush(self) -> list[Delta]:
        """Return deltas for held tool calls, and with links to cited pages that the text lacks."""
        deltas = [] if self._calls is None else self._numbered(self._calls.flush())
        if self._cited is not None and (named := self._cited.end_text(self._text)):
            self._text.append(named)
            self._length += len(named)
            deltas.append(Delta(text=named, choice=self._number))
        return deltas

    def _numbered(self, deltas: Sequence[Delta]) -> list[Delta]:
        """Set the choice's number in the deltas."""
        return [replace(delta, choice=self._number) if self._number else delta for delta in deltas]


@final
class OpenAIStreamAccumulator:
    """Accumulates a stream of `chat.completion.chunk` objects."""

    def __init__(
        self, called_model: str = "", note_field: Callable[[str], None] | None = None
    ) -> None:
        """Begin an empty reply.

        Args:
            called_model: the called model; its reasoning is returned only to it.
            note_field: called at most once, with the name of the field that holds the reasoning;
                None if nobody needs the name.
        """
        self._called_model = called_model
        self._note_field = note_field
        self._choices: dict[int, _ChoiceAccumulator] = {}
        self._model = ""
        self._usage: dict[str, Any] = {}
        self.is_closed = False

    @property
    def is_finished(self) -> bool:
        """Whether `[DONE]` or all finish reasons were received; some servers do not send both."""
        ended = (choice.finish is not None for choice in self._choices.values())
        return self.is_closed or (bool(self._choices) and all(ended))

    def add_event(self, event: str, data: bytes) -> Sequence[Delta]:
        """Add a chunk and return its deltas.

        Raises:
            ErrorReply: the event is an error, or a choice was interrupted.
            AttributeError, TypeError or ValueError: the chunk is malformed or exceeds a limit, or
                the stream ended without a choice.
        """
        if is_end_mark(data):
            return self._close()
        chunk = load_json(data)
        plain = None if event == "error" else self._add_words(chunk)
        return self._add_chunk(event, chunk) if plain is None else (plain,)

    def _add_words(self, chunk: dict[str, Any]) -> Delta | None:
        """Add a chunk with plain text of one choice, the usual case; None if it may have more."""
        choices = as_array(chunk.get("choices"))
        if len(choices) != 1 or not self._model or any(map(chunk.get, _OTHER_CHUNK_FIELDS)):
            return None
        choice = as_object(choices[0])
        number = choice.get("index")
        known = self._choices.get(number) if type(number) is int else None
        return None if known is None or choice.get("usage") else known.add_words(choice)

    def _add_chunk(self, event: str, chunk: dict[str, Any]) -> Sequence[Delta]:
        if chunk.get("error") or event == "error":
            raise ErrorReply(chunk if chunk.get("error") else {"error": chunk})
        if usage := _usage_of(chunk):
            merge_counts(self._usage, usage)
        self._model = self._model or as_string(chunk.get("model"))
        choices = [as_object(choice) for choice in as_array(chunk.get("choices"))]
        if not choices:
            if not self._usage and (stated := find_stated_error(chunk)):
                raise ErrorReply(stated)
            add_foreign_counts(self._usage, chunk, _COUNTS)
            return ()
        check_choices(len(choices))
        pages = as_array(chunk.get("citations"))
        deltas = [
            delta
            for choice in choices
            for delta in self._choice(choice).add_fragment(choice, pages)
        ]
        if self._note_field and any(delta.reasoning for delta in deltas):
            self._report_field(self._note_field, choices[0].get("delta"))
        return deltas

    def _report_field(self, note: Callable[[str], None], message: Any) -> None:
        if name := reasoning_field_of(message):
            note(name)
            self._note_field = None

    def _close(self) -> Sequence[Delta]:
        if not self._choices:
            raise ValueError("the stream ended without a choice")
        self.is_closed = True
        return ()

    def result(self) -> ProviderReply:
        """Return what has been received of the reply so far."""
        replies = [choice.reply(self._model) for choice in self._choices.values()]
        return _joined_reply(replies or [Reply(text="", model=self._model)], self._usage)

    def _choice(self, choice: dict[str, Any]) -> _ChoiceAccumulator:
        number = as_count(choice.get("index"))
        known = self._choices.get(number)
        if known is None:
            check_choices(len(self._choices) + 1)
            # Some servers count from 1, so choices are numbered by their first appearance.
            known = self._choices[number] = _ChoiceAccumulator(
                len(self._choices), self._called_model
            )
        return known


_OTHER_CHUNK_FIELDS = ("error", "usage", "x_groq", "citations")
"""Fields of a chunk, besides its choices, that must be read."""
_WORDS = frozenset({"role", "content"})


def _plain_words(choice: dict[str, Any]) -> str | None:
    """Return the text of a fragment that has nothing else; None if it may have more."""
    delta = as_object(choice.get("delta"))
    words = delta.get("content")
    if not words or not isinstance(words, str):
        return None
    if choice.get("finish_reason") or choice.get("logprobs"):
        return None
    if len(delta) > 1 and any(map(delta.get, delta.keys() - _WORDS)):
        return None
    return words


def _usage_of(chunk: dict[str, Any]) -> Any:
    """Return the usage of a chunk: at its top level, in its choice (Moonshot) or in `x_groq`."""
    if usage := chunk.get("usage"):
        return usage
    choices = as_array(chunk.get("choices"))
    choice = as_object(choices[0]) if choices else {}
    if usage := choice.get("usage") or as_object(choice.get("delta")).get("usage"):
        return usage
    return as_object(chunk.get("x_groq")).get("usage")


def _joined_reply(replies: Sequence[Reply], usage: Any) -> ProviderReply:
    """Return the first reply, with the others as its alternatives."""
    first, *others = replies
    reply = replace(first, alternatives=tuple(others)) if others else first
    return ProviderReply(
        reply=reply,
        usage=parse_usage(usage),
        usd=stated_usd(usage),
        audio_input=_audio_tokens(usage),
    )


def _audio_tokens(usage: Any) -> int:
    """Return the audio tokens of the prompt that were not read from a cache.

    The cached tokens are assumed to be text as far as possible.
    """
    counts = as_object(usage)
    read = as_object(counts.get("prompt_tokens_details"))
    if not read.get("audio_tokens"):
        return 0
    fresh = as_count(counts.get("prompt_tokens")) - as_count(read.get("cached_tokens"))
    return max(min(as_count(read.get("audio_tokens")), fresh), 0)


def parse_completion(data: Any, called_model: str = "") -> ProviderReply:
    """Read a `chat.completion`.

    Args:
        data: the completion.
        called_model: the called model; its reasoning is returned only to it.

    Raises:
        ErrorReply: `data` is an error object, or a choice was interrupted.
        AttributeError, KeyError, TypeError or ValueError: `data` is not a valid completion.
    """
    if data.get("error"):
        raise ErrorReply(data)
    choices = data["choices"]
    check_choices(len(choices))
    if len(choices) > 1:
        choices = sorted(choices, key=lambda choice: as_count(choice.get("index")))
    model, pages = as_string(data.get("model")), as_array(data.get("citations"))
    replies = [_parse_choice(choice, model, called_model, pages) for choice in choices]
    return _joined_reply(replies, _usage_of(data))


def _parse_choice(
    choice: dict[str, Any], model: str, called_model: str, pages: Sequence[Any]
) -> Reply:
    message = _whole_message(choice)
    raw_calls = _tool_calls_of(message)
    calls = _whole_calls(raw_calls) if raw_calls else ()
    finish = _parse_finish(choice, choice.get("finish_reason"))
    text = _message_text(message)
    if pages or message.get("annotations"):
        cited = SearchReader()
        _read_cited(cited, message, pages)
        text += cited.end_text((text,))
    has_round_trip = raw_calls or any(map(message.get, ROUND_TRIP_FIELDS))
    return Reply(
        text=text,
        reasoning=_message_reasoning(message),
        tool_calls=calls,
        finish=resolve_finish(finish, calls),
        model=model,
        stop_sequence=_matched_stop_text(choice),
        thoughts=round_trip_thoughts(message, raw_calls, called_model) if has_round_trip else (),
        is_refusal=_is_refusal(message),
        logprobs=parse_logprobs(choice),
        images=_pictures_of(message),
    )


def _whole_calls(raw_calls: Sequence[dict[str, Any]]) -> tuple[ToolCall, ...]:
    calls = ToolCallAccumulator()
    for call in raw_calls:
        function = called_function(call)
        arguments = arguments_text(function_arguments(function))
        calls.start_call(as_string(call.get("id")), function["name"], arguments)
    return calls.tool_calls()


def _whole_message(choice: dict[str, Any]) -> dict[str, Any]:
    """Return the message of a whole reply.

    The legacy completions API has `text` instead; Azure sends no message if its content filter
    removed all of it.

    Raises:
        KeyError: the choice has no message, and was not filtered.
    """
    message, text = choice.get("message"), choice.get("text")
    if message is not None and not (text and message.get("content") is None):
        return message
    if text is not None:
        return {**(message or {}), "content": text}
    if read_finish(choice["finish_reason"]) is not Finish.CONTENT_FILTER:
        raise KeyError("message")
    return {}


def parse_usage(usage: Any) -> Usage | None:
    """Return the usage of one call; None if it is not stated, implausible or zero."""
    counts = with_own_names(as_object(usage), _COUNTS)
    if any(is_wrong_count(counts.get(name)) for name in _COUNTS):
        return None  # with one count implausible, neither is trusted
    prompt, output = (as_count(counts.get(name)) for name in _COUNTS)
    if counts.get("completion_tokens") is None:
        output = max(as_count(counts.get("total_tokens")) - prompt, 0)
    if not prompt and not output:
        return None
    cached, written = read_cache_counts(counts)
    reasoning = as_count(as_object(counts.get("completion_tokens_details")).get("reasoning_tokens"))
    if reasoning and as_count(counts.get("total_tokens")) == prompt + output + reasoning:
        output += reasoning  # some servers do not include reasoning in `completion_tokens`
    return bound_usage(prompt, output, cached=cached, written=written, reasoning=reasoning)


def _parse_finish(choice: dict[str, Any], reason: Any) -> Finish:
    if reason == "error":  # OpenRouter: the upstream model failed
        raise ErrorReply(choice)
    message = as_object(choice.get("delta") or choice.get("message"))
    refused = message.get("refusal") or _is_refusal(message)
    return Finish.CONTENT_FILTER if refused else read_finish(reason)


def _matched_stop_text(choice: dict[str, Any]) -> str | None:
    """Return the stop string that ended the reply, if the server states it as vLLM or SGLang do."""
    matched = choice.get("stop_reason", choice.get("matched_stop"))
    return matched if isinstance(matched, str) and matched else None


def _tool_calls_of(message: dict[str, Any]) -> Sequence[Any]:
    """Return the tool calls, or the legacy `function_call` as one."""
    calls = message.get("tool_calls")
    if isinstance(calls, dict):
        return (as_object(calls),)  # a single call instead of a list
    if not calls and (call := message.get("function_call")):
        return ({"index": 0, "function": call},)
    return [as_object(call) for call in calls or () if call]


def _message_text(message: dict[str, Any]) -> str:
    """Return the text of the content (a string, a part or parts), else the refusal or transcript.

    Raises:
        TypeError: the content has another type.
    """
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or _other_text(message)
    parts = [content] if "text" in as_object(content) else as_array(content)
    if not parts and content != []:
        raise TypeError("the content is neither a string nor parts")
    return "".join(map(_part_text, parts)) or _other_text(message)


def _other_text(message: dict[str, Any]) -> str:
    """Return the text outside the content: the refusal or the transcript of the audio."""
    refusal, recorded = message.get("refusal"), message.get("audio")
    return as_string(refusal) or (
        as_string(as_object(recorded).get("transcript")) if recorded else ""
    )


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    fields = as_object(part)
    return as_string(fields.get("text")) or as_string(fields.get("refusal"))


def _is_refusal(message: dict[str, Any]) -> bool:
    """Return True if a message contains a refusal and nothing else."""
    content = message.get("content")
    if not content:
        return bool(message.get("refusal"))
    return isinstance(content, list) and all(
        as_object(part).get("type") == "refusal" for part in as_array(content)
    )


def reasoning_field_of(message: Any) -> str:
    """Return the name of the field that holds plain-text reasoning, or ""."""
    fields = as_object(message)
    names = ("reasoning_content", "reasoning", "reasoning_text", "thinking")
    return next((name for name in names if fields.get(name) and isinstance(fields[name], str)), "")


def _message_reasoning(message: dict[str, Any]) -> str:
    """Return the reasoning of the first field that has any; several fields repeat the same text."""
    if name := reasoning_field_of(message):
        return message[name]
    details = message.get("reasoning_details") or message.get("thinking_blocks")
    if not details:
        return _thinking_parts(message)
    rows = [as_object(detail) for detail in as_array(details)]
    names = ("text", "summary", "thinking")
    return "".join(next(filter(None, (as_string(row.get(n)) for n in names)), "") for row in rows)


def _thinking_parts(message: dict[str, Any]) -> str:
    """Return the reasoning in content parts, as Magistral and Databricks send it."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return ""
    rows = map(as_object, as_array(content))
    parts = [row.get("thinking") or row.get("summary") for row in rows]
    return "".join(
        part if isinstance(part, str) else "".join(map(_part_text, as_array(part)))
        for part in parts
    )


def _read_cited(cited: SearchReader, message: dict[str, Any], pages: Sequence[Any]) -> None:
    """Record the pages that a message's annotations cite, and `pages`, which the reply cites."""
    for annotation in map(as_object, as_array(message.get("annotations"))):
        page = as_object(annotation.get("url_citation")) or annotation
        cited.cite(as_string(page.get("url")))
    for page in pages:
        cited.cite(as_string(page))


def _pictures_of(message: dict[str, Any]) -> tuple[Image, ...]:
    """Return the images of a message, without duplicates.

    Providers send them in the field `images` or as content parts.

    Raises:
        ValueError: an image has neither an `https:` nor a valid `data:` URL.
    """
    images, content = message.get("images"), message.get("content")
    if images is None and (content is None or isinstance(content, str)):
        return ()
    rows = [as_object(row) for row in (*as_array(images), *as_array(content))]
    urls = [_picture_address(row) for row in rows if "image_url" in row]
    return tuple(dict.fromkeys(read_picture_address(url) for url in urls))


def _picture_address(row: dict[str, Any]) -> str:
    """Return the image URL of a row: a string, or the `url` of a nested object."""
    named = row["image_url"]
    return named if isinstance(named, str) else as_string(as_object(named).get("url"))
