"""Parses replies of OpenAI's Responses API, whole or as a stream of events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

from batuta.clients.data_url import read_picture
from batuta.clients.decoding import (
    MAX_TOOL_CALLS,
    ErrorReply,
    ProviderReply,
    add_foreign_counts,
    as_array,
    as_count,
    as_object,
    as_string,
    bound_usage,
    dump_json,
    is_end_mark,
    is_wrong_count,
    join_halves,
    load_json,
    merge_counts,
    need_string,
    read_cache_counts,
    read_finish,
    resolve_finish,
    with_own_names,
)
from batuta.clients.error_mapping import find_stated_error
from batuta.clients.native_search import UNAVAILABLE, SearchReader, page_address
from batuta.clients.tool_turns import ToolCallAccumulator, arguments_text
from batuta.core import Citation, Delta, Finish, Image, Reply, Thought, Usage
from batuta.core.server_tools import WEB_FETCH

_COUNTS = ("input_tokens", "output_tokens")
_FINAL_EVENTS = {"response.completed", "response.incomplete", "response.done"}
_MAX_ITEMS = 2 * MAX_TOOL_CALLS
"""Maximum number of output items in one response."""
_MAX_COMPARED = 5_000_000
"""Maximum number of characters by which complete texts are shorter than their deltas, over one
response; bounds the work of comparing them."""
_CALL_TYPES = {"function_call": "arguments", "custom_tool_call": "input"}
"""The item types of tool calls, and the field of each that holds the arguments."""


@final
@dataclass(slots=True, kw_only=True)
class _Item:
    """The part of an output item received so far."""

    kind: str = ""
    is_commentary: bool = False
    """True for a message marked as commentary, which counts as reasoning."""
    texts: dict[tuple[str, int], list[str]] = field(
        default_factory=dict[tuple[str, int], list[str]]
    )
    """The pieces of the item's texts, by the kind of text and its index."""
    call_id: str = ""
    name: str = ""
    number: int | None = None
    """The index of its tool call in the reply; None while the tool's name is unknown."""
    arguments: list[str] = field(default_factory=list[str])
    has_thought: bool = False
    has_ended: bool = False
    """True once the item's citations were added, or its search or image was emitted."""


@final
class ResponsesStreamAccumulator:
    """Accumulates events from `response.created` to `response.completed`.

    The same text is sent in deltas and in several complete forms, and servers may leave out any of
    them. So every event is read, and only text that was not received before is added.
    """

    def __init__(self, model: str) -> None:
        """Begin an empty reply.

        Args:
            model: the called model; its reasoning is returned only to it.
        """
        self.is_closed = False
        self._called_model = model
        self._model = ""
        self._text: list[str] = []
        self._length = 0
        """Characters of the text so far."""
        self._comparable_left = _MAX_COMPARED
        """Characters by which further complete texts may be shorter than their deltas."""
        self._reasoning: list[str] = []
        self._calls = ToolCallAccumulator()
        self._items: list[_Item] = []
        self._by_position: dict[int | str, _Item] = {}
        """Items by output index, or by item id if the server sends no index."""
        self._thoughts: list[Thought] = []
        self._images: list[Image] = []
        self._refused = False
        self._searches = SearchReader()
        self._ended: dict[str, Any] = {}
        """The complete response of the final event; empty before it."""
        self._finish = Finish.STOP
        self._usage: dict[str, Any] = {}

    @property
    def is_finished(self) -> bool:
        """Whether the final event was received."""
        return bool(self._ended)

    def add_event(self, event: str, data: bytes) -> Sequence[Delta]:
        """Add an event and return its deltas.

        Raises:
            ErrorReply: the event is an error, or its response states one.
            AttributeError, KeyError, TypeError or ValueError: the event is malformed, contradicts
                an earlier event or exceeds a limit.
        """
        if is_end_mark(data):
            return ()
        content = load_json(data)
        kind = as_string(content.get("type")) or event
        if kind in {"error", "response.failed"} or content.get("error"):
            raise ErrorReply(_error_of(content))
        if "usage" in content:  # an event of any kind may state what the reply cost
            merge_counts(self._usage, content["usage"])
        if kind in _FINAL_EVENTS:
            return self.end_response(content["response"])
        if not kind.startswith("response."):
            add_foreign_counts(self._usage, content, _COUNTS)
        if "response" in content:
            self._read_head(as_object(content["response"]))
            return ()
        return self._add_output(kind, content)

    def _add_output(self, kind: str, event: dict[str, Any]) -> Sequence[Delta]:
        """Add an event about an item, a content part or a text."""
        if not kind and (stated := find_stated_error(event)):
            raise ErrorReply(stated)
        if kind.startswith("response.output_item."):
            item = as_object(event["item"])
            known = self._item_at(event, as_string(item.get("id")), as_string(item.get("type")))
            return self._read_item(known, item, is_whole=kind.endswith(".done"))
        if kind.startswith("response.content_part."):
            return self._read_part(self._item_at(event), event, as_object(event.get("part")))
        if kind.endswith(".delta"):
            return self._add_delta(kind, event)
        return self._add_whole(kind, event) if kind.endswith(".done") else ()

    def end_response(self, response: dict[str, Any]) -> Sequence[Delta]:
        """Add the complete response; return deltas for what no earlier event had.

        Raises:
            ErrorReply: the response is an error object, its status is failed or cancelled, or the
                provider interrupted it.
            AttributeError, KeyError, TypeError or ValueError: the response is malformed,
                contradicts an earlier event or exceeds a limit.
        """
        if response.get("error") or response.get("status") in {"failed", "cancelled"}:
            raise ErrorReply(_error_of(response))
        self._read_head(response)
        self._finish = _finish_of(response)
        self.is_closed = True
        deltas: list[Delta] = []
        output = as_array(response.get("output"))
        if len(output) > _MAX_ITEMS:
            raise ValueError(f"more than {_MAX_ITEMS:,} items in one response")
        for position, item in enumerate(map(as_object, output)):
            known = self._find_item(position, item)
            deltas += self._read_item(known, item, is_whole=True)
        if not output and not self._text:  # some gateways send only the SDK's `output_text`
            whole = as_string(response.get("output_text"))
            deltas += self._emit_rest(self._new_item(), ("text", 0), whole)
        self._ended = response
        return deltas

    def result(self) -> ProviderReply:
        """Return what has been received of the reply so far."""
        for item in self._items:
            if item.number is None and (item.call_id or item.arguments):
                self._begin_call(item)  # its name is empty, which matches no tool
        calls = self._calls.tool_calls()
        reply = Reply(
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            tool_calls=calls,
            finish=Finish.CONTENT_FILTER if self._refused else resolve_finish(self._finish, calls),
            model=self._model,
            thoughts=tuple(self._thoughts),
            is_refusal=self._refused,
            server_calls=self._searches.calls(),
            images=tuple(self._images),
        )
        return ProviderReply(reply=reply, usage=parse_usage(self._usage))

    def _read_head(self, response: dict[str, Any]) -> None:
        self._model = as_string(response.get("model")) or self._model
        merge_counts(self._usage, response.get("usage"))

    def _item_at(self, event: dict[str, Any], item_id: str = "", kind: str = "") -> _Item:
        """Return the item of an event by its output index, or by its id if it has no index.

        If the known item has another type, the event belongs to a new item.
        """
        position = event.get("output_index")
        if not isinstance(position, int):
            position = as_string(event.get("item_id")) or item_id
        known = self._by_position.get(position)
        if known is None or (kind and known.kind not in {"", kind}):
            known = self._by_position[position] = self._new_item()
        return known

    def _find_item(self, position: int, item: dict[str, Any]) -> _Item:
        """Return the known item for an item of the complete response, or a new item.

        An item is found by its call id, position or item id, if its type is the same.
        """
        call_id, item_id = as_string(item.get("call_id")), as_string(item.get("id"))
        same = (one for one in self._items if call_id and one.call_id == call_id)
        by_position = self._by_position
        known = next(same, None) or by_position.get(position) or by_position.get(item_id)
        if known is None or known.kind not in {"", item.get("type")}:
            known = self._new_item()
        return known

    def _new_item(self) -> _Item:
        if len(self._items) >= _MAX_ITEMS:
            raise ValueError(f"more than {_MAX_ITEMS:,} items in one response")
        self._items.append(_Item())
        return self._items[-1]

    def _read_item(self, known: _Item, item: dict[str, Any], *, is_whole: bool) -> list[Delta]:
        """Add an item; return deltas for what no earlier event had."""
        kind = known.kind = as_string(item.get("type")) or known.kind
        known.is_commentary = known.is_commentary or item.get("phase") == "commentary"
        if kind in _CALL_TYPES:
            known.call_id = known.call_id or as_string(item.get("call_id"))
            known.name = known.name or need_string(item.get("name") or "")
            given = item.get(_CALL_TYPES[kind])
            return self._read_arguments(known, kind, given, is_whole=is_whole)
        if kind in {"web_search_call", "image_generation_call"}:
            read = self._read_search if kind == "web_search_call" else self._read_picture
            return read(known, item) if is_whole else []
        deltas: list[Delta] = []
        for name in ("summary", "content"):
            parts = item.get(name)
            if isinstance(parts, str):  # the short form that requests may use
                parts = [{"text": parts}]
            for number, part in enumerate(as_array(parts)):
                where = {f"{name}_index": number, "in": name}
                deltas += self._read_part(known, where, as_object(part))
        if (
            is_whole
            and not known.has_thought
            and (thought := _thought_of(item, self._called_model))
        ):
            known.has_thought = True
            self._thoughts.append(thought)
            deltas.append(Delta(thought=thought))
        if is_whole and kind == "message":
            deltas += self._add_citations(known, item)
        return deltas

    def _read_search(self, known: _Item, item: dict[str, Any]) -> list[Delta]:
        """Add a web search, or a page that the model opened."""
        action, at = as_object(item.get("action")), self._length
        if known.has_ended or not action:
            return []
        known.has_ended = True
        error = UNAVAILABLE if item.get("status") == "failed" else ""
        call_id, url = as_string(item.get("id")), as_string(action.get("url"))
        if action.get("type") != "search":
            opened = (Citation(url=page_address(url)),)
            page: dict[str, Any] = {"name": WEB_FETCH, "pages": opened, "error": error}
            return list(self._searches.add_call(call_id, url, at=at, **page)) if url else []
        queries = filter(None, map(as_string, as_array(action.get("queries"))))
        query = as_string(action.get("query")) or ", ".join(queries)
        sources = map(as_object, as_array(action.get("sources")))
        pages = [Citation(url=page_address(as_string(each.get("url")))) for each in sources]
        return list(self._searches.add_call(call_id, query, at=at, pages=pages, error=error))

    def _read_picture(self, known: _Item, item: dict[str, Any]) -> list[Delta]:
        """Add a generated image, which models of some gateways produce unrequested."""
        encoded = as_string(item.get("result"))
        if known.has_ended or not encoded:
            return []
        known.has_ended = True
        image = read_picture(encoded, f"image/{as_string(item.get('output_format')) or 'png'}")
        self._images.append(image)
        return [Delta(image=image)]

    def _add_citations(self, known: _Item, item: dict[str, Any]) -> list[Delta]:
        """Return deltas with links to the pages that a message cites but does not link."""
        parts = [as_object(part) for part in as_array(item.get("content"))]
        cited = [as_object(each) for part in parts for each in as_array(part.get("annotations"))]
        if known.has_ended or not cited:
            return []
        known.has_ended = True
        for each in cited:
            if each.get("type") == "url_citation":
                self._searches.cite(as_string(each.get("url")), as_string(each.get("title")))
        rest = self._searches.end_text([*map(_part_text, parts)])
        return self._emit(known, "text", rest) if rest else []

    def _read_arguments(
        self, known: _Item, kind: str, given: Any, *, is_whole: bool
    ) -> list[Delta]:
        """Add the beginning of a tool call, or more of its arguments."""
        if given is not None and not isinstance(given, str):
            given = dump_json(given)
        if kind == "custom_tool_call":
            given = dump_json({"input": given or ""}) if is_whole else None
        elif is_whole and given:
            begun = next(filter(None, known.arguments), "")
            given = given if begun and given.startswith(begun) else arguments_text(given)
        rest = self._missing_rest(known.arguments, given or "")
        if rest:
            known.arguments.append(rest)
        return self._emit_arguments(known, rest)

    def _emit_arguments(self, known: _Item, rest: str) -> list[Delta]:
        """Return a delta with more arguments, or that begins the call once its name is known."""
        if known.number is not None:
            return [self._calls.add_arguments(known.number, rest)] if rest else []
        return [self._begin_call(known)] if known.name else []

    def _begin_call(self, known: _Item) -> Delta:
        known.number = len(self._calls)
        return self._calls.start_call(known.call_id, known.name, "".join(known.arguments))

    def _read_part(self, known: _Item, where: dict[str, Any], part: dict[str, Any]) -> list[Delta]:
        """Add a part of an item; return deltas for what no earlier event had."""
        kind = "refusal" if part.get("type") == "refusal" else "text"
        if where.get("in") == "summary":
            kind = "summary"
        elif known.kind == "reasoning" or part.get("type") == "reasoning_text":
            kind = "reasoning"
        return self._emit_rest(known, (kind, _part_index(where)), _part_text(part))

    def _add_delta(self, kind: str, event: dict[str, Any]) -> Sequence[Delta]:
        text = _TEXT_EVENTS.get(kind.removesuffix(".delta"))
        is_call = kind == "response.function_call_arguments.delta"
        if text is None and not is_call:
            return ()
        known, fragment = self._item_at(event), need_string(event["delta"] or "")
        if text is None:
            known.arguments.append(fragment)
            return self._emit_arguments(known, fragment)
        known.texts.setdefault((text, _part_index(event)), []).append(fragment)
        return self._emit(known, text, fragment)

    def _add_whole(self, kind: str, event: dict[str, Any]) -> Sequence[Delta]:
        """Add the event that completes a text or arguments; return deltas for what is new."""
        text = _TEXT_EVENTS.get(kind.removesuffix(".done"))
        if kind == "response.function_call_arguments.done":
            known = self._item_at(event)
            known.name = known.name or as_string(event.get("name"))
            given = event.get("arguments")
            return self._read_arguments(known, "function_call", given, is_whole=True)
        if text is None:
            return ()
        whole = as_string(event.get("text")) or as_string(event.get("refusal"))
        return self._emit_rest(self._item_at(event), (text, _part_index(event)), whole)

    def _emit_rest(self, known: _Item, key: tuple[str, int], whole: str) -> list[Delta]:
        if not whole:
            return []
        before = known.texts.setdefault(key, [])
        rest = self._missing_rest(before, whole)
        if not rest:
            return []
        before.append(rest)
        return self._emit(known, key[0], rest)

    def _missing_rest(self, pieces: list[str], whole: str) -> str:
        """Return the end of the complete text that the pieces lack; join the pieces in place.

        Raises:
            ValueError: the pieces are not the beginning of the complete text, or were compared
                with shorter complete texts too often.
        """
        if not whole:
            return ""
        before = join_halves("".join(pieces), alone="surrogatepass")
        pieces[:] = [before]
        if whole.startswith(before):
            return whole[len(before) :]
        self._comparable_left -= len(before) - len(whole)
        if self._comparable_left < 0:
            raise ValueError("complete texts are too often shorter than their pieces")
        # Some servers strip white space from the complete text but not from its deltas.
        if before.startswith(whole) or before.strip() == whole.strip():
            return ""
        raise ValueError("the deltas of an item contradict its complete text")

    def _emit(self, known: _Item, kind: str, fragment: str) -> list[Delta]:
        if known.is_commentary or kind in {"summary", "reasoning"}:
            self._reasoning.append(fragment)
            return [Delta(reasoning=fragment)]
        self._text.append(fragment)
        self._length += len(fragment)
        self._refused = self._refused or kind == "refusal"
        return [Delta(text=fragment, is_refusal=kind == "refusal")]


_TEXT_EVENTS = {
    "response.output_text": "text",
    "response.refusal": "refusal",
    "response.reasoning_summary_text": "summary",
    "response.reasoning_summary": "summary",
    "response.reasoning_text": "reasoning",
    "response.reasoning": "reasoning",
}
"""Events with text, as a delta or complete, and the kind of text."""


def _part_index(event: dict[str, Any]) -> int:
    """Return the index of the part, within its item, that an event is about."""
    return as_count(event.get("content_index") or event.get("summary_index"))


def parse_response(data: Any, model: str) -> ProviderReply:
    """Parse a complete response.

    Args:
        data: the response.
        model: the called model; its reasoning is returned only to it.

    Raises:
        ErrorReply: the response is an error object, its status is failed or cancelled, or the
            provider interrupted it.
        AttributeError, KeyError or TypeError: the response has no list `output`, or is malformed.
        ValueError: the response is not finished, or is malformed.
    """
    accumulator = ResponsesStreamAccumulator(model)
    if not data.get("error") and not isinstance(data["output"], list):
        raise TypeError("`output` is not a list")
    if data.get("status") in {"queued", "in_progress"} and not data["output"]:
        raise ValueError("the response is not finished")
    accumulator.end_response(data)
    return accumulator.result()


def _part_text(part: dict[str, Any]) -> str:
    return as_string(part.get("text")) or as_string(part.get("refusal"))


def parse_usage(usage: Any) -> Usage | None:
    """Return the usage of one call; None if it is not stated, implausible or zero."""
    counts = with_own_names(as_object(usage), _COUNTS)
    if any(is_wrong_count(counts.get(name)) for name in _COUNTS):
        return None
    prompt, output = as_count(counts.get("input_tokens")), as_count(counts.get("output_tokens"))
    if not prompt and not output:
        return None
    cached, written = read_cache_counts(counts)
    return bound_usage(
        prompt,
        output,
        cached=cached,
        written=written,
        reasoning=as_count(as_object(counts.get("output_tokens_details")).get("reasoning_tokens")),
    )


def _thought_of(item: dict[str, Any], model: str) -> Thought | None:
    """Return the item's encrypted reasoning; None if it has none."""
    item_id, encrypted = as_string(item.get("id")), as_string(item.get("encrypted_content"))
    if item.get("type") != "reasoning" or not encrypted:
        return None
    return Thought(model=model, redacted=f"{item_id}.{encrypted}")


def _finish_of(response: dict[str, Any]) -> Finish:
    reason = as_object(response.get("incomplete_details")).get("reason")
    return read_finish(reason or response.get("status"))


def _error_of(error: dict[str, Any]) -> dict[str, Any]:
    """Return an error in the form of the API's other errors."""
    nested = as_object(error.get("response")).get("error") or error.get("error")
    return {"error": nested or {key: error.get(key) for key in ("code", "message")}}
