"""Reads replies of OpenAI's Responses API, whole or as a stream of events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

from batuta.clients.data_url import read_picture
from batuta.clients.decoding import (
    MAX_TOOL_CALLS,
    ErrorReply,
    ProviderReply,
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
    need_string,
    raise_counts,
    read_cache_counts,
    read_finish,
    resolve_finish,
    take_foreign,
    with_own_names,
)
from batuta.clients.error_mapping import find_stated_error
from batuta.clients.native_search import UNAVAILABLE, SearchReader, page_address
from batuta.clients.tool_turns import ToolCallAccumulator, arguments_text
from batuta.core import Citation, Delta, Finish, Image, Reply, Thought, ToolCall, Usage
from batuta.core.server_tools import WEB_FETCH

_COUNTS = ("input_tokens", "output_tokens")
_FINAL_EVENTS = {"response.completed", "response.incomplete", "response.done"}
_MAX_ITEMS = 2 * MAX_TOOL_CALLS
"""The most items that one response may have."""
_MOST_COMPARED = 5_000_000
"""Characters of pieces, at most, that were already said when a shorter whole of them came."""
_CALL_TYPES = {"function_call": "arguments", "custom_tool_call": "input"}
"""The item types that call a tool, and the field of each that has the arguments."""


@final
@dataclass(slots=True, kw_only=True)
class _Item:
    """An item of the output while it comes, with what has come of it so far."""

    kind: str = ""
    is_aside: bool = False
    """True if it is a message that counts as reasoning."""
    texts: dict[tuple[str, int], list[str]] = field(
        default_factory=dict[tuple[str, int], list[str]]
    )
    """The pieces of its texts, by the kind of text and its number."""
    call_id: str = ""
    name: str = ""
    number: int | None = None
    """The number of its call in the reply; None: it has not begun, as its name has not come."""
    arguments: list[str] = field(default_factory=list[str])
    has_thought: bool = False
    has_ended: bool = False
    """True if its pages were named, or it was told as a search or a picture."""


@final
class ResponsesStreamAccumulator:
    """A stream of events from `response.created` to `response.completed`.

    Some events carry the same text in pieces and as a whole, and servers may leave out either. So
    every event is read, and adds what none before it has brought.
    """

    def __init__(self, model: str) -> None:
        """Begin an empty reply.

        Args:
            model: the model that was asked; its reasoning is its own.
        """
        self.is_closed = False
        self._asked = model
        self._model = ""
        self._text: list[str] = []
        self._length = 0
        """Characters of the text so far."""
        self._more_comparisons = _MOST_COMPARED
        self._reasoning: list[str] = []
        self._calls = ToolCallAccumulator()
        self._items: list[_Item] = []
        self._by_place: dict[int | str, _Item] = {}
        self._thoughts: list[Thought] = []
        self._images: list[Image] = []
        self._refused = False
        self._searches = SearchReader()
        self._ended: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}

    @property
    def is_finished(self) -> bool:
        """The end of the reply was announced."""
        return bool(self._ended)

    def add_event(self, event: str, data: bytes) -> Sequence[Delta]:
        """Return the fragments of one event.

        Raises:
            ErrorReply: the event is an error.
        """
        if is_end_mark(data):
            return ()
        content = load_json(data)
        kind = as_string(content.get("type")) or event
        if kind in {"error", "response.failed"} or content.get("error"):
            raise ErrorReply(_error_of(content))
        if "usage" in content:  # an event of any kind may state what the reply cost
            raise_counts(self._usage, content["usage"])
        if kind in _FINAL_EVENTS:
            return self.end_response(content["response"])
        if not kind.startswith("response."):
            take_foreign(self._usage, content, _COUNTS)
        if "response" in content:
            self._read_head(as_object(content["response"]))
            return ()
        return self._add_output(kind, content)

    def _add_output(self, kind: str, event: dict[str, Any]) -> Sequence[Delta]:
        """Take in an event of an item, of a part of one, or of a text."""
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
        """Take in a whole response, and return what was not said before.

        Raises:
            ErrorReply: it is an error object, or says that it failed.
        """
        if response.get("error") or response.get("status") in {"failed", "cancelled"}:
            raise ErrorReply(_error_of(response))
        self._read_head(response)
        self.is_closed = True
        deltas: list[Delta] = []
        output = as_array(response.get("output"))
        if len(output) > _MAX_ITEMS:
            raise ValueError(f"more than {_MAX_ITEMS:,} items in one response")
        for place, item in enumerate(map(as_object, output)):
            known = self._place_of(place, item)
            deltas += self._read_item(known, item, is_whole=True)
        if not output and not self._text:  # a field for people, and all that some gateways fill
            whole = as_string(response.get("output_text"))
            deltas += self._say_rest(self._new_item(), ("text", 0), whole)
        self._ended = response
        return deltas

    def result(self) -> ProviderReply:
        """Return the reply as far as it has come."""
        for item in self._items:
            if item.number is None and (item.call_id or item.arguments):
                self._begin_call(item)  # without a name it calls no known tool
        calls = self._calls.tool_calls()
        reply = Reply(
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            tool_calls=calls,
            finish=_finish_of(self._ended, calls, is_refusal=self._refused),
            model=self._model,
            thoughts=tuple(self._thoughts),
            is_refusal=self._refused,
            server_calls=self._searches.calls(),
            images=tuple(self._images),
        )
        return ProviderReply(reply=reply, usage=parse_usage(self._usage))

    def _read_head(self, response: dict[str, Any]) -> None:
        self._model = as_string(response.get("model")) or self._model
        raise_counts(self._usage, response.get("usage"))

    def _item_at(self, event: dict[str, Any], item_id: str = "", kind: str = "") -> _Item:
        """Find the item of an event by its place, or by its id where no place is told.

        An item of another kind than the one at its place is another one.
        """
        place = event.get("output_index")
        if not isinstance(place, int):
            place = as_string(event.get("item_id")) or item_id
        known = self._by_place.get(place)
        if known is None or (kind and known.kind not in {"", kind}):
            known = self._by_place[place] = self._new_item()
        return known

    def _place_of(self, place: int, item: dict[str, Any]) -> _Item:
        """Find the item of the finished response: that of its call, else the one at its place."""
        call_id, item_id = as_string(item.get("call_id")), as_string(item.get("id"))
        same = (one for one in self._items if call_id and one.call_id == call_id)
        known = next(same, None) or self._by_place.get(place) or self._by_place.get(item_id)
        if known is None or known.kind not in {"", item.get("type")}:
            known = self._new_item()
        return known

    def _new_item(self) -> _Item:
        if len(self._items) >= _MAX_ITEMS:
            raise ValueError(f"more than {_MAX_ITEMS:,} items in one response")
        self._items.append(_Item())
        return self._items[-1]

    def _read_item(self, known: _Item, item: dict[str, Any], *, is_whole: bool) -> list[Delta]:
        """Take in an item, and return what was not said before."""
        kind = known.kind = as_string(item.get("type")) or known.kind
        known.is_aside = known.is_aside or item.get("phase") == "commentary"
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
            if isinstance(parts, str):  # as requests may say it
                parts = [{"text": parts}]
            for number, part in enumerate(as_array(parts)):
                where = {f"{name}_index": number, "in": name}
                deltas += self._read_part(known, where, as_object(part))
        if is_whole and not known.has_thought and (thought := _thought_of(item, self._asked)):
            known.has_thought = True
            self._thoughts.append(thought)
            deltas.append(Delta(thought=thought))
        if is_whole and kind == "message":
            deltas += self._name_pages(known, item)
        return deltas

    def _read_search(self, known: _Item, item: dict[str, Any]) -> list[Delta]:
        """Take in a search, or a page that was opened."""
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
        """Take in a picture, which some gateways' models draw unasked."""
        encoded = as_string(item.get("result"))
        if known.has_ended or not encoded:
            return []
        known.has_ended = True
        image = read_picture(encoded, f"image/{as_string(item.get('output_format')) or 'png'}")
        self._images.append(image)
        return [Delta(image=image)]

    def _name_pages(self, known: _Item, item: dict[str, Any]) -> list[Delta]:
        """Return what names the pages that a message cites and does not name itself."""
        parts = [as_object(part) for part in as_array(item.get("content"))]
        cited = [as_object(each) for part in parts for each in as_array(part.get("annotations"))]
        if known.has_ended or not cited:
            return []
        known.has_ended = True
        for each in cited:
            if each.get("type") == "url_citation":
                self._searches.cite(as_string(each.get("url")), as_string(each.get("title")))
        rest = self._searches.end_text([*map(_part_text, parts)])
        return self._say(known, "text", rest) if rest else []

    def _read_arguments(
        self, known: _Item, kind: str, given: Any, *, is_whole: bool
    ) -> list[Delta]:
        """Take in more of a call: its beginning, or more of its arguments."""
        if given is not None and not isinstance(given, str):
            given = dump_json(given)
        if kind == "custom_tool_call":
            given = dump_json({"input": given or ""}) if is_whole else None
        elif is_whole and given:
            begun = next(filter(None, known.arguments), "")
            given = given if begun and given.startswith(begun) else arguments_text(given)
        rest = self._unsaid_rest(known.arguments, given or "")
        if rest:
            known.arguments.append(rest)
        return self._tell_arguments(known, rest)

    def _tell_arguments(self, known: _Item, rest: str) -> list[Delta]:
        if known.number is not None:
            return [self._calls.add_arguments(known.number, rest)] if rest else []
        return [self._begin_call(known)] if known.name else []

    def _begin_call(self, known: _Item) -> Delta:
        known.number = len(self._calls)
        return self._calls.start_call(known.call_id, known.name, "".join(known.arguments))

    def _read_part(self, known: _Item, where: dict[str, Any], part: dict[str, Any]) -> list[Delta]:
        """Take in a part of an item, and return what was not said before."""
        kind = "refusal" if part.get("type") == "refusal" else "text"
        if where.get("in") == "summary":
            kind = "summary"
        elif known.kind == "reasoning" or part.get("type") == "reasoning_text":
            kind = "reasoning"
        return self._say_rest(known, (kind, _number_of(where)), _part_text(part))

    def _add_delta(self, kind: str, event: dict[str, Any]) -> Sequence[Delta]:
        text = _TEXT_EVENTS.get(kind.removesuffix(".delta"))
        is_call = kind == "response.function_call_arguments.delta"
        if text is None and not is_call:
            return ()
        known, fragment = self._item_at(event), need_string(event["delta"] or "")
        if text is None:
            known.arguments.append(fragment)
            return self._tell_arguments(known, fragment)
        known.texts.setdefault((text, _number_of(event)), []).append(fragment)
        return self._say(known, text, fragment)

    def _add_whole(self, kind: str, event: dict[str, Any]) -> Sequence[Delta]:
        """Take in the event that ends a text, or arguments, and return what is new."""
        text = _TEXT_EVENTS.get(kind.removesuffix(".done"))
        if kind == "response.function_call_arguments.done":
            known = self._item_at(event)
            known.name = known.name or as_string(event.get("name"))
            given = event.get("arguments")
            return self._read_arguments(known, "function_call", given, is_whole=True)
        if text is None:
            return ()
        whole = as_string(event.get("text")) or as_string(event.get("refusal"))
        return self._say_rest(self._item_at(event), (text, _number_of(event)), whole)

    def _say_rest(self, known: _Item, place: tuple[str, int], whole: str) -> list[Delta]:
        if not whole:
            return []
        before = known.texts.setdefault(place, [])
        rest = self._unsaid_rest(before, whole)
        if not rest:
            return []
        before.append(rest)
        return self._say(known, place[0], rest)

    def _unsaid_rest(self, pieces: list[str], whole: str) -> str:
        """Return the end of the whole that was not said in pieces.

        Raises:
            ValueError: the pieces are not the beginning of the whole, or were compared with
                shorter wholes too often.
        """
        if not whole:
            return ""
        before = join_halves("".join(pieces), alone="surrogatepass")
        pieces[:] = [before]
        if whole.startswith(before):
            return whole[len(before) :]
        self._more_comparisons -= len(before) - len(whole)
        if self._more_comparisons < 0:
            raise ValueError("a text ends again and again before its pieces do")
        # Some servers strip the whole of a text that they have sent in pieces.
        if before.startswith(whole) or before.strip() == whole.strip():
            return ""
        raise ValueError("the pieces of an item are not those of the whole")

    def _say(self, known: _Item, kind: str, fragment: str) -> list[Delta]:
        if known.is_aside or kind in {"summary", "reasoning"}:
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
"""Events that carry a text, in fragment or as a whole, and the kind of text."""


def _number_of(event: dict[str, Any]) -> int:
    """Return the number of the text, among its item's, that an event is of."""
    return as_count(event.get("content_index") or event.get("summary_index"))


def parse_response(data: Any, model: str) -> ProviderReply:
    """Return a response read.

    Args:
        data: the response.
        model: the model that was asked.

    Raises:
        ErrorReply: it is an error object, or says that it failed.
    """
    fold = ResponsesStreamAccumulator(model)
    if not data.get("error") and not isinstance(data["output"], list):
        raise TypeError("the output is no list")
    if data.get("status") in {"queued", "in_progress"} and not data["output"]:
        raise ValueError("the response has not ended")
    fold.end_response(data)
    return fold.result()


def _part_text(part: dict[str, Any]) -> str:
    return as_string(part.get("text")) or as_string(part.get("refusal"))


def parse_usage(usage: Any) -> Usage | None:
    """Return the usage of one call; None if the provider told none."""
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
    """Return reasoning that only OpenAI can read; None: the item holds none."""
    item_id, encrypted = as_string(item.get("id")), as_string(item.get("encrypted_content"))
    if item.get("type") != "reasoning" or not encrypted:
        return None
    return Thought(model=model, redacted=f"{item_id}.{encrypted}")


def _finish_of(ended: dict[str, Any], calls: Sequence[ToolCall], *, is_refusal: bool) -> Finish:
    if is_refusal:
        return Finish.CONTENT_FILTER
    reason = as_object(ended.get("incomplete_details")).get("reason")
    return resolve_finish(read_finish(reason or ended.get("status")), calls)


def _error_of(error: dict[str, Any]) -> dict[str, Any]:
    """Return an error in the form of the API's other errors."""
    nested = as_object(error.get("response")).get("error") or error.get("error")
    return {"error": nested or {key: error.get(key) for key in ("code", "message")}}
