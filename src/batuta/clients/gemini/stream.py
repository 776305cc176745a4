"""Parses Gemini's responses: whole replies, and streams accumulated into a reply."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

from batuta.clients.data_url import read_picture
from batuta.clients.decoding import (
    ErrorReply,
    ProviderReply,
    add_foreign_counts,
    as_array,
    as_count,
    as_object,
    as_string,
    check_choices,
    dump_json,
    is_end_mark,
    is_wrong_count,
    load_json,
    merge_counts,
    read_finish,
    resolve_finish,
    with_own_names,
)
from batuta.clients.error_mapping import find_stated_error
from batuta.clients.native_search import SearchReader
from batuta.clients.tool_turns import RoundTripFields, ToolCallAccumulator, arguments_text
from batuta.core import Citation, Delta, Finish, Image, Reply, Usage

_COUNTS = ("promptTokenCount", "candidatesTokenCount")


@final
class _CandidateAccumulator:
    """Accumulates one candidate of the responses, which becomes one reply."""

    def __init__(self, number: int, called_model: str) -> None:
        self._number = number
        self._called_model = called_model
        self._round_trip = RoundTripFields()
        self._text: list[str] = []
        self._length = 0
        """Characters of the text so far."""
        self._reasoning: list[str] = []
        self._calls = ToolCallAccumulator()
        self._images: list[Image] = []
        self._searches = SearchReader()
        self._queries: dict[str, None] = {}
        """The queries of the searches so far, in order."""
        self._pages: dict[str, Citation] = {}
        self._newest: list[Citation] = []
        """The pages of the latest grounding metadata."""
        self.finish: Finish | None = None

    def add_candidate(self, candidate: dict[str, Any]) -> Sequence[Delta]:
        """Add what one response has of this candidate, and return its deltas.

        The deltas of searches are returned once the finish reason is known.
        """
        if reason := candidate.get("finishReason"):
            self.finish = read_finish(reason)
        parts = as_array(as_object(candidate.get("content")).get("parts"))
        read = (self._add_part(part) for part in parts if part)
        deltas = [delta for delta in read if delta is not None]
        self._add_grounding(as_object(candidate.get("groundingMetadata")))
        if self.finish is not None:
            deltas += self._emit_searches()
            if named := self._searches.end_text(self._text):
                deltas.append(self._add_text(named))
        return deltas

    def _add_grounding(self, grounding: dict[str, Any]) -> None:
        """Add Google's search queries, and the pages that the text cites.

        Grounding metadata is sent in one or several responses of a stream. Later ones may repeat or
        omit earlier data, and chunk indices refer to the newest list of pages.
        """
        webs = [
            as_object(as_object(one).get("web"))
            for one in as_array(grounding.get("groundingChunks"))
        ]
        pages = [
            Citation(url=as_string(web.get("uri")), title=as_string(web.get("title")))
            for web in webs
        ]
        self._newest = pages or self._newest
        self._pages |= {page.url: page for page in pages}
        queries = map(as_string, as_array(grounding.get("webSearchQueries")))
        self._queries |= dict.fromkeys(queries)
        for support in map(as_object, as_array(grounding.get("groundingSupports"))):
            quote = as_string(as_object(support.get("segment")).get("text"))
            for index in map(as_count, as_array(support.get("groundingChunkIndices"))):
                if index < len(self._newest):
                    page = self._newest[index]
                    self._searches.cite(page.url, page.title, quote)

    def _emit_searches(self) -> list[Delta]:
        """Return deltas for new searches.

        The reply's first search gets all pages received so far, since Google does not say which
        search found which page.
        """
        deltas = list[Delta]()
        for number, query in enumerate(
            [*self._queries][len(self._searches) :], len(self._searches)
        ):
            pages = () if number else [*self._pages.values()]
            deltas += self._searches.add_call(
                f"google_{number}", query, at=self._length, pages=pages
            )
        return [replace(one, choice=self._number) for one in deltas]

    def reply(self, model: str) -> Reply:
        """Return what has been received of the reply so far.

        Without a finish reason the reply ends as if it were complete.
        """
        calls = self._calls.tool_calls()
        self._emit_searches()
        thought = self._round_trip.thought(self._called_model)
        return Reply(
            thoughts=() if thought is None else (thought,),
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            tool_calls=calls,
            finish=resolve_finish(self.finish or Finish.STOP, calls),
            model=model,
            images=tuple(self._images),
            server_calls=self._searches.calls(),
        )

    def _add_part(self, part: dict[str, Any]) -> Delta | None:
        if call := part.get("functionCall"):
            given: Any = call.get("args")
            arguments = arguments_text(given if isinstance(given, str) else dump_json(given))
            if signature := as_string(part.get("thoughtSignature")):
                signed = {"extra_content": {"google": {"thought_signature": signature}}}
                self._round_trip.add_extra(signed, len(self._calls))
            delta = self._calls.start_call(as_string(call.get("id")), call["name"], arguments)
            return replace(delta, choice=self._number) if self._number else delta
        if (inline := as_object(part.get("inlineData"))) and not part.get("thought"):
            image = read_picture(as_string(inline.get("data")), as_string(inline.get("mimeType")))
            self._images.append(image)
            return Delta(image=image, choice=self._number)
        text = as_string(part.get("text"))
        if not text:
            return None
        if part.get("thought"):
            self._reasoning.append(text)
            return Delta(reasoning=text, choice=self._number)
        return self._add_text(text)

    def _add_text(self, text: str) -> Delta:
        self._text.append(text)
        self._length += len(text)
        return Delta(text=text, choice=self._number)


@final
class GeminiStreamAccumulator:
    """Accumulates a stream of `GenerateContentResponse` objects, or a single one."""

    def __init__(self, called_model: str = "") -> None:
        """Begin an empty reply.

        Args:
            called_model: the called model; its reasoning is returned only to it.
        """
        self._called_model = called_model
        self._candidates: dict[int, _CandidateAccumulator] = {}
        self._is_blocked = False
        self._usage: dict[str, Any] = {}
        self._model = ""
        self.is_closed = False
        """Always False: Google's stream has no end mark, and usage may follow the finish reason."""

    @property
    def is_finished(self) -> bool:
        """Whether the prompt was blocked, or there are candidates and each has a finish reason."""
        ended = [candidate.finish is not None for candidate in self._candidates.values()]
        return self._is_blocked or (bool(ended) and all(ended))

    def add_event(self, event: str, data: bytes) -> Sequence[Delta]:
        """Add an event and return its deltas; OpenAI's end mark has none.

        Raises:
            ErrorReply: the event states an error, or a finish reason that is one.
            AttributeError, KeyError, TypeError or ValueError: the event is malformed, has text in
                another API's format, or exceeds a limit on candidates, calls and searches.
        """
        return () if is_end_mark(data) else self.add_chunk(load_json(data))

    def add_chunk(self, chunk: Any) -> Sequence[Delta]:
        """Add a response, whole or a chunk of a stream, and return its deltas.

        Raises:
            ErrorReply: `chunk` states an error, or a finish reason that is one.
            AttributeError, KeyError, TypeError or ValueError: `chunk` is malformed, has text in
                another API's format, or exceeds a limit on candidates, calls and searches.
        """
        chunk = _with_camel_case(chunk)
        if chunk.get("error"):
            raise ErrorReply(chunk)
        merge_counts(self._usage, chunk.get("usageMetadata"))
        self._model = as_string(chunk.get("modelVersion")) or self._model
        if as_object(chunk.get("promptFeedback")).get("blockReason"):
            self._is_blocked = True
        deltas: list[Delta] = []
        if not self._usage and not self._is_blocked and (stated := find_stated_error(chunk)):
            raise ErrorReply(stated)
        if not chunk.get("candidates"):
            add_foreign_counts(self._usage, chunk, _COUNTS)
        for candidate in sorted(chunk.get("candidates") or (), key=_index_of):
            deltas += self._candidate(_index_of(candidate)).add_candidate(candidate)
        return deltas

    def _candidate(self, number: int) -> _CandidateAccumulator:
        known = self._candidates.get(number)
        if known is None:
            check_choices(len(self._candidates) + 1)
            # Numbered by first appearance: a single candidate may have an index other than 0.
            known = _CandidateAccumulator(len(self._candidates), self._called_model)
            self._candidates[number] = known
        return known

    def result(self) -> ProviderReply:
        """Return what has been received so far: the first candidate, the others as alternatives.

        A blocked prompt gives a reply with the finish `Finish.CONTENT_FILTER`.
        """
        replies = [candidate.reply(self._model) for candidate in self._candidates.values()]
        blocked = Finish.CONTENT_FILTER if self._is_blocked else Finish.STOP
        first = replies[0] if replies else Reply(text="", model=self._model, finish=blocked)
        if self._is_blocked:
            first = replace(first, finish=blocked)
        return ProviderReply(
            reply=replace(first, alternatives=tuple(replies[1:])),
            usage=parse_usage(self._usage),
            audio_input=_audio_tokens(self._usage),
        )


def _index_of(candidate: Any) -> int:
    return as_count(candidate.get("index"))


_MAX_NESTING = 12
"""The depth to which names of fields are converted."""
_NAME_IN_SNAKE_CASE = re.compile(r"_([a-z])")


def _with_camel_case(chunk: Any) -> Any:
    """Return a response with camelCase names; Google's libraries also write snake_case."""
    candidates = [as_object(each) for each in as_array(as_object(chunk).get("candidates"))]
    parts = [
        one for each in candidates for one in as_array(as_object(each.get("content")).get("parts"))
    ]
    objects = (as_object(chunk), *candidates, *map(as_object, parts))
    is_snake_case = any("_" in name for each in objects for name in each)
    return _rename_fields(chunk) if is_snake_case else chunk


def _rename_fields(value: Any, nested: int = _MAX_NESTING) -> Any:
    if not nested:
        return value
    if isinstance(value, list):
        return [_rename_fields(one, nested - 1) for one in as_array(value)]
    if isinstance(value, dict):
        return {
            _NAME_IN_SNAKE_CASE.sub(lambda found: found[1].upper(), name): (
                one if name == "args" else _rename_fields(one, nested - 1)
            )
            for name, one in as_object(value).items()
        }
    return value


def parse_response(data: Any, called_model: str = "") -> ProviderReply:
    """Parse a complete response.

    Args:
        data: the response.
        called_model: the called model; its reasoning is returned only to it.

    Raises:
        ErrorReply: `data` is an error object, or its finish reason states an error.
        AttributeError, KeyError, TypeError or ValueError: `data` is malformed, exceeds a limit on
            candidates, calls and searches, or has neither a candidate nor a blocked prompt.
    """
    accumulator = GeminiStreamAccumulator(called_model)
    chunks = as_array(data) or [data]  # a server that ignores `alt=sse` streams one array
    for chunk in chunks:
        accumulator.add_chunk(chunk)
    if not accumulator.is_finished and not any(chunk["candidates"] for chunk in chunks):
        raise ValueError("no candidates")
    return accumulator.result()


def parse_usage(usage: Any) -> Usage | None:
    """Return the usage of one call; None if it is not stated, implausible or zero.

    Thoughts and tool results, which the API counts separately, are added to the output and to the
    input respectively.
    """
    counts = with_own_names(as_object(usage), _COUNTS)
    if any(is_wrong_count(counts.get(name)) for name in _COUNTS):
        return None
    prompt = as_count(counts.get("promptTokenCount")) + as_count(
        counts.get("toolUsePromptTokenCount")
    )
    thoughts = as_count(counts.get("thoughtsTokenCount"))
    output = as_count(counts.get("candidatesTokenCount")) + thoughts
    if counts.get("candidatesTokenCount") is None:
        output = max(output, as_count(counts.get("totalTokenCount")) - prompt)
    if not prompt and not output:
        return None
    cached = min(as_count(counts.get("cachedContentTokenCount")), prompt)
    return Usage(calls=1, input=prompt, cached=cached, output=output, reasoning=thoughts)


def _audio_tokens(usage: Any) -> int:
    """Return the audio tokens of the prompt that were not read from a cache."""
    counts = as_object(usage)
    recorded, cached = (
        sum(
            as_count(as_object(row).get("tokenCount"))
            for row in as_array(counts.get(name))
            if as_object(row).get("modality") == "AUDIO"
        )
        for name in ("promptTokensDetails", "cacheTokensDetails")
    )
    return max(min(recorded, as_count(counts.get("promptTokenCount"))) - cached, 0)
