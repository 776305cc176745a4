"""Parses Anthropic's messages: whole replies, and streams accumulated into a reply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

from batuta.clients.decoding import (
    ErrorReply,
    ProviderReply,
    add_foreign_counts,
    as_array,
    as_count,
    as_object,
    as_string,
    dump_json,
    is_end_mark,
    is_wrong_count,
    load_json,
    merge_counts,
    need_string,
    read_finish,
    resolve_finish,
    with_own_names,
)
from batuta.clients.error_mapping import find_stated_error
from batuta.clients.native_search import SearchReader, search_error_code
from batuta.clients.tool_turns import ToolCallAccumulator, arguments_text
from batuta.core import Citation, Delta, Finish, Reply, Thought, Usage

_COUNTS = ("input_tokens", "output_tokens")
_BILLED = (*_COUNTS, "cache_read_input_tokens", "cache_creation_input_tokens")
_EVENTS = frozenset(
    {
        "content_block_delta", "content_block_start", "content_block_stop", "error",
        "message_delta", "message_start", "message_stop", "ping",
    }
)  # fmt: skip


@final
class AnthropicStreamAccumulator:
    """Accumulates a stream of events from `message_start` to `message_stop`."""

    def __init__(self, model: str = "") -> None:
        """Begin an empty reply.

        Args:
            model: the called model; its signed thoughts are returned only to it.
        """
        self._called_model = model
        self._thoughts: list[Thought] = []
        self._thought: Thought | None = None
        self._thought_pieces: list[str] = []
        """The pieces of the thought's text since its block began."""
        self._signature_pieces: list[str] = []
        self._stop_sequence: str | None = None
        """The stop sequence that ended the reply; None: none has."""
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls = ToolCallAccumulator()
        self._blocks: dict[int, int] = {}
        """The index of the tool call in each block that has one, by the block's index."""
        self._searches = SearchReader()
        self._search_inputs: dict[str, list[str]] = {}
        """The pieces of each search's input, by the search's id."""
        self._open_search = ""
        """The id of the search whose input is being received."""
        self._early_results: dict[str, dict[str, Any]] = {}
        """Results received before their searches, by the search's id."""
        self._length = 0
        """Characters of the text so far."""
        self._block_text: list[str] = []
        """The pieces of the text since the last text block ended."""
        self._initial_arguments: dict[int, str] = {}
        """Arguments received complete at the start of a call and not passed on yet, by the call's
        index."""
        self._server_blocks: set[int] = set()
        """Indices of blocks with calls that the API runs itself, such as its MCP connector's."""
        self._model = ""
        self._finish: Finish | None = None
        self._usage: dict[str, Any] = {}
        self.is_closed = False
        """Whether `message_stop` was received after the reply had begun."""

    @property
    def _has_begun(self) -> bool:
        return bool(self._model or self._finish or self._usage or self._text or len(self._calls))

    @property
    def is_finished(self) -> bool:
        """Whether a stop reason was received, or `message_stop` after the reply had begun."""
        return self.is_closed or bool(self._finish)

    def add_event(self, event: str, data: bytes) -> Sequence[Delta]:
        """Add an event and return its deltas; `ping` has none.

        An event of an unknown kind has no deltas either, but its token counts are read.

        Raises:
            ErrorReply: the event states an error, or a stop reason that is one.
            AttributeError, KeyError, TypeError or ValueError: the event is malformed, has text in
                another API's format, or exceeds a limit on calls and searches.
        """
        if is_end_mark(data):
            return ()
        content = load_json(data)
        kind = as_string(content.get("type"))
        if kind not in _EVENTS and (event in _EVENTS or not kind):
            kind = event  # the `event:` line also names the type
        if "usage" in content:  # an event of any kind may state what the reply cost
            merge_counts(self._usage, content["usage"])
        index = as_count(content.get("index"))
        if kind == "content_block_delta":
            return self._add_block_delta(index, content["delta"])
        if kind == "content_block_start":
            return self._start_block(index, content["content_block"])
        if kind == "content_block_stop":
            ended = (*self._end_thought(), *self._end_text(), *self._emit_given())
            return (*ended, *self._emit_early(self._open_search))
        if kind == "error":
            raise ErrorReply(content)
        return self._add_message_event(kind, content)

    def _add_message_event(self, kind: str, event: dict[str, Any]) -> Sequence[Delta]:
        """Add an event about the message rather than a block, or of an unknown kind."""
        if kind == "message_start":
            self._model = as_string(event["message"].get("model"))
            merge_counts(self._usage, event["message"].get("usage"))
        elif kind == "message_delta":
            delta = as_object(event.get("delta"))
            if reason := as_string(delta.get("stop_reason")):
                self._finish = read_finish(reason)
            self._stop_sequence = as_string(delta.get("stop_sequence")) or self._stop_sequence
        elif kind == "message_stop":
            self.is_closed = self._has_begun  # an end before any content is ignored
            return (*self._emit_given(), *self._emit_early(*self._early_results))
        elif not kind and (stated := find_stated_error(event)):
            raise ErrorReply(stated)
        else:
            merge_counts(self._usage, as_object(event.get("message")).get("usage"))
            if kind not in _EVENTS:
                add_foreign_counts(self._usage, event, _COUNTS)
        return ()

    def result(self) -> ProviderReply:
        """Return what has been received of the reply so far, except an unfinished thought.

        Without a stop reason the reply ends as if it were complete.
        """
        self._emit_given()
        self._emit_early(*self._early_results)
        self._end_text()
        calls = self._calls.tool_calls()
        reply = Reply(
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            tool_calls=calls,
            finish=resolve_finish(self._finish or Finish.STOP, calls),
            model=self._model,
            thoughts=tuple(self._thoughts),
            stop_sequence=self._stop_sequence,
            server_calls=self._searches.calls(),
        )
        # Until the stop reason was received, the output token count is not complete.
        return ProviderReply(
            reply=reply,
            usage=parse_usage(self._usage),
            usage_is_partial=not self._finish,
            hour_cache_write=_hour_cache_write(self._usage),
        )

    def _start_block(self, index: int, block: dict[str, Any]) -> Sequence[Delta]:
        if block["type"] == "tool_use":
            self._open_search = ""
            self._blocks[index] = number = len(self._calls)
            # Usually empty. Servers that do not stream the input send it here; some do both.
            if whole := block.get("input"):
                self._initial_arguments[number] = arguments_text(dump_json(whole))
            return (
                *self._emit_given(number),
                self._calls.start_call(as_string(block.get("id")), block["name"]),
            )
        if block["type"] in _SEARCH_BLOCKS:
            return self._add_search(block)
        self._open_search = ""
        if block["type"].endswith("_tool_use"):
            self._server_blocks.add(index)
        _read_citations(self._searches, block)
        self._thought = thought_of(block, self._called_model)
        self._thought_pieces, self._signature_pieces = [], []
        return self._add_text(as_string(block.get("text")), as_string(block.get("thinking")))

    def _emit_given(self, before: int | None = None) -> list[Delta]:
        """Return deltas with arguments that were sent at the start of a call and not streamed.

        Args:
            before: the index of the first call that is left out; None: no call is left out.
        """
        numbers = [n for n in self._initial_arguments if before is None or n < before]
        return [self._calls.add_arguments(n, self._initial_arguments.pop(n)) for n in numbers]

    def _end_thought(self) -> Sequence[Delta]:
        """End a thinking block; return a delta if the thought is signed or redacted."""
        thought, self._thought = self._thought, None
        if thought is None:
            return ()
        text = thought.text + "".join(self._thought_pieces)
        signature = thought.signature + "".join(self._signature_pieces)
        if not (signature or thought.redacted):
            return ()
        thought = replace(thought, text=text, signature=signature)
        self._thoughts.append(thought)
        return (Delta(thought=thought),)

    def _add_block_delta(self, index: int, delta: dict[str, Any]) -> Sequence[Delta]:
        kind = delta["type"]
        if kind == "text_delta":
            return self._add_text(need_string(delta["text"] or ""), "")
        if kind == "signature_delta":
            self._signature_pieces.append(as_string(delta.get("signature")))
        if kind == "thinking_delta":
            self._thought_pieces.append(need_string(delta["thinking"] or ""))
            return self._add_text("", self._thought_pieces[-1])
        if kind == "citations_delta":
            _read_citation(self._searches, as_object(delta.get("citation")))
        if kind == "input_json_delta" and (piece := delta.get("partial_json")):
            return self._add_input(index, piece)
        return ()

    def _add_input(self, index: int, piece: Any) -> Sequence[Delta]:
        """Add a piece of a search's input, or of a call's arguments.

        The input of other calls that the API runs itself is dropped.
        """
        if self._open_search and index not in self._blocks:
            self._search_inputs[self._open_search].append(as_string(piece))
            return ()
        if index in self._server_blocks:
            return ()
        # If the block is unknown, the piece belongs to the last call.
        number = self._blocks.get(index, len(self._calls) - 1)
        if number < 0:
            raise ValueError("arguments without a call")
        self._initial_arguments.pop(number, None)
        return (self._calls.add_arguments(number, piece),)

    def _add_text(self, text: str, reasoning: str) -> Sequence[Delta]:
        if not text and not reasoning:
            return ()
        self._text.append(text)
        self._length += len(text)
        self._block_text.append(text)
        self._reasoning.append(reasoning)
        return (Delta(text=text, reasoning=reasoning),)

    def _end_text(self) -> Sequence[Delta]:
        """End a text block; return a delta with links to cited pages that it lacks."""
        text, self._block_text = "".join(self._block_text), []
        return self._add_text(self._searches.end_text((text,)), "")

    def _add_search(self, block: dict[str, Any]) -> Sequence[Delta]:
        """Add a block of a search that the API runs: its input or its result."""
        if block["type"] == "server_tool_use":
            self._open_search = as_string(block.get("id"))
            given = as_object(block.get("input"))
            self._search_inputs.setdefault(self._open_search, [dump_json(given)] if given else [])
            return ()
        self._open_search = ""
        call_id = as_string(block.get("tool_use_id"))
        if call_id in self._search_inputs:
            return self._read_result(call_id, block)
        self._early_results.setdefault(call_id, block)
        return ()

    def _emit_early(self, *call_ids: str) -> Sequence[Delta]:
        """Return deltas for results of these searches that were received too early."""
        deltas: list[Delta] = []
        for call_id in call_ids:
            if call_id in self._early_results:
                deltas += self._read_result(call_id, self._early_results.pop(call_id))
        return deltas

    def _read_result(self, call_id: str, block: dict[str, Any]) -> Sequence[Delta]:
        if call_id in self._searches:
            return ()  # the query, which may be long, is not parsed again
        search_input = "".join(self._search_inputs.get(call_id, ()))
        return _read_result(self._searches, block, _query_of(search_input), self._length)


_SEARCH_RESULT = "web_search_tool_result"
_SEARCH_BLOCKS = {"server_tool_use", _SEARCH_RESULT}


def _query_of(search_input: str) -> str:
    """Return the query in a search's input, or the input itself if it is malformed."""
    try:
        return as_string(load_json(search_input.encode()).get("query")) if search_input else ""
    except (ValueError, RecursionError, AttributeError):
        return search_input


def _read_result(
    searches: SearchReader, block: dict[str, Any], query: str, at: int
) -> Sequence[Delta]:
    """Add the result of a search that the API ran, and return its delta.

    `at` is the number of characters of the reply's text before the result.
    """
    content = block.get("content")
    pages = [
        Citation(
            url=as_string(page.get("url")),
            title=as_string(page.get("title")),
            date=as_string(page.get("page_age")),
        )
        for page in map(as_object, as_array(content))
    ]
    code = as_string(as_object(content).get("error_code"))
    error = search_error_code(code) if isinstance(content, dict) else ""
    call_id = as_string(block.get("tool_use_id"))
    return searches.add_call(call_id, query, at=at, pages=pages, error=error)


def _find_queries(blocks: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return the search queries of a whole message, by the searches' ids."""
    return {
        as_string(block.get("id")): as_string(as_object(block.get("input")).get("query"))
        for block in blocks
        if block["type"] == "server_tool_use"
    }


def _citation_links(searches: SearchReader, block: dict[str, Any]) -> str:
    """Return links to the pages that a whole text block cites but does not link."""
    _read_citations(searches, block)
    return searches.end_text((block["text"] or "",))


def _read_citations(searches: SearchReader, block: dict[str, Any]) -> None:
    for citation in as_array(block.get("citations")):
        _read_citation(searches, as_object(citation))


def _read_citation(searches: SearchReader, citation: dict[str, Any]) -> None:
    if citation.get("type") == "web_search_result_location":
        url, title = as_string(citation.get("url")), as_string(citation.get("title"))
        searches.cite(url, title, as_string(citation.get("cited_text")))


def thought_of(block: dict[str, Any], model: str) -> Thought | None:
    """Return the reasoning of a block; None for a block of another kind."""
    if block["type"] == "redacted_thinking":
        return Thought(model=model, redacted=as_string(block.get("data")))
    if block["type"] != "thinking":
        return None
    text, signature = as_string(block.get("thinking")), as_string(block.get("signature"))
    return Thought(model=model, text=text, signature=signature)


def parse_message(data: Any, model: str = "") -> ProviderReply:
    """Parse a complete message.

    Args:
        data: the message.
        model: the called model; its signed thoughts are returned only to it.

    Raises:
        ErrorReply: `data` is an error object, or its stop reason states an error.
        AttributeError, KeyError, TypeError or ValueError: `data` is not a valid message, or has too
            many calls or searches.
    """
    if data.get("type") == "error" or data.get("error"):
        raise ErrorReply(data)
    blocks = data["content"] or ()
    if isinstance(blocks, str):  # the short form that requests may use
        blocks = [{"type": "text", "text": blocks}]
    text: list[str] = []
    reasoning: list[str] = []
    calls = ToolCallAccumulator()
    thoughts = [thought_of(block, model) for block in blocks]
    searches, length = SearchReader(), 0
    queries = _find_queries(blocks)
    for block in blocks:
        if block["type"] == "text":
            whole = (block["text"] or "") + _citation_links(searches, block)
            text.append(whole)
            length += len(whole)
        elif block["type"] == _SEARCH_RESULT:
            query = queries.get(as_string(block.get("tool_use_id")), "")
            _read_result(searches, block, query, length)
        elif block["type"] == "thinking":
            reasoning.append(block["thinking"] or "")
        elif block["type"] == "tool_use":
            arguments = arguments_text(dump_json(block.get("input")))
            calls.start_call(as_string(block.get("id")), block["name"], arguments)
    reply = Reply(
        text="".join(text),
        reasoning="".join(reasoning),
        tool_calls=calls.tool_calls(),
        finish=resolve_finish(read_finish(data.get("stop_reason")), calls.tool_calls()),
        model=as_string(data.get("model")),
        thoughts=tuple(one for one in thoughts if one and (one.signature or one.redacted)),
        stop_sequence=as_string(data.get("stop_sequence")) or None,
        server_calls=searches.calls(),
    )
    usage = data.get("usage")
    return ProviderReply(
        reply=reply, usage=parse_usage(usage), hour_cache_write=_hour_cache_write(usage)
    )


def parse_usage(usage: Any) -> Usage | None:
    """Return the usage of one call; None if it is not stated, implausible or zero.

    The input includes cache reads and writes.
    """
    counts = _with_iterations(with_own_names(as_object(usage), _COUNTS))
    if any(is_wrong_count(counts.get(name)) for name in _COUNTS):
        return None
    plain, output = as_count(counts.get("input_tokens")), as_count(counts.get("output_tokens"))
    cached = as_count(counts.get("cache_read_input_tokens"))
    written = _cache_written(counts)
    total = plain + cached + written
    if not total and not output:
        return None
    return Usage(calls=1, input=total, cached=cached, cache_write=written, output=output)


def _with_iterations(counts: dict[str, Any]) -> dict[str, Any]:
    """Return the counts, the billed ones raised to their sums over all `iterations`.

    The top-level counts cover the answer alone, but every iteration, such as a compaction, is
    billed.
    """
    parts = [as_object(one) for one in as_array(counts.get("iterations"))]
    sums = {name: sum(as_count(one.get(name)) for one in parts) for name in _BILLED}
    return counts | {
        name: max(total, as_count(counts.get(name))) for name, total in sums.items() if total
    }


def _hour_cache_write(usage: Any) -> int:
    """Return the tokens written to the cache with a lifetime of an hour."""
    counts = as_object(usage)
    hour = as_count(as_object(counts.get("cache_creation")).get("ephemeral_1h_input_tokens"))
    return min(hour, _cache_written(counts))


def _cache_written(counts: dict[str, Any]) -> int:
    """Return the tokens written to a cache: the stated total, else the sum over lifetimes."""
    kinds = as_object(counts.get("cache_creation")).values()
    return as_count(counts.get("cache_creation_input_tokens")) or sum(map(as_count, kinds))
