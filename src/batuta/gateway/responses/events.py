"""The events of a streamed response, and the output items that they build.

Most methods of `ResponseEventWriter` take something that happened and return the events that report
it. The events are numbered from 0 without a gap, and the same calls in the same order give the same
numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, final

from batuta.core import (
    Citation,
    Image,
    Reply,
    ServerCall,
    Thought,
    TokenLogprob,
    ToolCall,
    WrittenFile,
)
from batuta.gateway.chat.endpoint import token_object
from batuta.gateway.http.body import encode_json
from batuta.gateway.responses.compaction import COMPACTION_ITEM, pack_summary
from batuta.gateway.responses.response import item_id
from batuta.gateway.responses.server_calls import (
    ITEM_IDS,
    call_item,
    call_phases,
    file_annotations,
    image_item,
    started_item,
)
from batuta.gateway.responses.tools import (
    CUSTOM_INPUT,
    NAMESPACE,
    TOOL_SEARCH,
    custom_input,
    custom_names,
    flat_name,
    own_names,
    search_arguments,
    searches_tools,
)
from batuta.gateway.serving.progress import AnswerEvents, Events, ProgressPiece
from batuta.gateway.serving.server_tools import CitedPlace, find_citations
from batuta.gateway.serving.tenant_memory import REASONING_SIGNATURE, thought_signature

Json = dict[str, Any]
_FUNCTION, _CUSTOM, _SEARCH = "function_call", "custom_tool_call", "tool_search_call"
_REFUSAL = "refusal"
"""The type of a content part with a refusal, and the name of the part's field for its text."""


@dataclass(slots=True, kw_only=True)
class _OpenToolCall:
    """A tool call of the answer that is being streamed."""

    index: int
    """The position of its item in the output."""
    item: Json
    parts: list[str] = field(default_factory=list[str])
    """The fragments of its arguments so far."""

    @property
    def is_streamed(self) -> bool:
        """True if its arguments are sent in fragments, False if they are sent whole."""
        return self.item["type"] == _FUNCTION


@final
class ResponseEventWriter(AnswerEvents):
    """Makes events; at most one text or reasoning item is open at a time."""

    def __init__(self, base: Json, *, compacts: bool = False) -> None:
        """Start without events.

        Args:
            base: the response object before it has an answer.
            compacts: whether the answer is a summary that replaces the conversation.
        """
        super().__init__()
        self.base = base
        self.compacts = compacts
        """Whether only the complete answer is sent, as a `compaction` item."""
        self.output: list[Json] = []
        """The items so far; a closed item does not change."""
        self._number = 0
        self._has_ended = False
        self._open: Json | None = None
        self._message_texts: list[str] = []
        """The fragments of the open message."""
        self._summary_texts: list[str] = []
        """The fragments of the open part of the reasoning summary."""
        self._tools: dict[int, _OpenToolCall] = {}
        self._own_names = own_names(base.get("tools") or ())
        self._custom_names = custom_names(base.get("tools") or ())
        self._searches = searches_tools(base.get("tools") or ())
        self._pages: list[Citation] = []
        """Pages found by searches; a citation refers to them by their number in this order."""
        self._files: list[WrittenFile] = []
        """Files written by programs that no text has cited yet."""
        self._replayed: list[Json] = []
        """Citations of a text that is replayed."""

    def begin(self) -> Events:
        """Return the first events."""
        return [self._event("response.created", response=self.base), self.in_progress()]

    def in_progress(self) -> Json:
        """Return the event that reports that the response is still in progress."""
        return self._event("response.in_progress", response=self.base)

    def keep_alive(self) -> Json | None:
        """Return an event to send on a silent stream; None once `end` was called."""
        return None if self._has_ended else self.in_progress()

    def reasoning(self, text: str, *, new: bool) -> Events:
        """Return the events of a fragment of the reasoning summary; `new` starts a new part."""
        is_open = self._open is not None and self._open["type"] == "reasoning"
        events: Events = [] if is_open else self._begin_reasoning()
        if new or not self._summary:
            events += self._close_part()
            self._summary.append({"type": "summary_text", "text": ""})
            self._summary_texts = []
            part = {"type": "summary_text", "text": ""}
            events.append(self._part_event("response.reasoning_summary_part.added", part=part))
        self._summary_texts.append(text)
        events.append(self._part_event("response.reasoning_summary_text.delta", delta=text))
        return events

    def own_reasoning(self, text: str, *, new: bool = False) -> Events:
        """Return the events of the worker's own reasoning, in an item marked as such."""
        events = self.reasoning(text, new=new)
        self._open_item.setdefault("encrypted_content", REASONING_SIGNATURE)
        return events

    def sign(self, thought: Thought) -> Events:
        """Return the events that end a reasoning item with its signature or redacted content."""
        self._thoughts.append(thought)
        is_open = self._open is not None and self._open["type"] == "reasoning"
        events: Events = self._begin_reasoning() if thought.redacted or not is_open else []
        self._open_item["encrypted_content"] = thought_signature(thought)
        return [*events, *self._close_item()]

    def end_reasoning(self, item: Json) -> Events:
        """Return the events that end a replayed reasoning item."""
        events: Events = [] if item["summary"] else self._begin_reasoning()
        if encrypted := item.get("encrypted_content"):
            self._open_item["encrypted_content"] = encrypted
        return [*events, *self._close_item()]

    def _begin_reasoning(self) -> Events:
        """Return the events that end the open item and begin a reasoning item."""
        return [*self._close_item(), self._add_item("rs", {"type": "reasoning", "summary": []})]

    def progress(self, piece: ProgressPiece) -> Events:
        """Return the events of a progress line or of a step's text."""
        events = self.reasoning(piece.text, new=piece.is_line)
        if piece.step is not None:
            events[-1]["orchestration"] = piece.step
        return events

    def text(
        self, text: str, logprobs: Sequence[TokenLogprob] = (), *, is_refusal: bool = False
    ) -> Events:
        """Return the events of a text fragment, or of a fragment of a refusal."""
        if is_refusal:
            events = self._begin_message({"type": _REFUSAL, _REFUSAL: ""})
            self._add_words(text)
            return [*events, self._content_event("response.refusal.delta", delta=text)]
        return self._add_text(text, [token_object(token) for token in logprobs])

    def _begin_message(self, part: Json) -> Events:
        """Return the events that begin a message with this part, unless one of its type is open."""
        message = self._open if self._open and self._open["type"] == "message" else None
        if message is not None and message["content"][0]["type"] == part["type"]:
            return []
        fields: Json = {"type": "message", "role": "assistant", "content": []}
        events = [*self._close_item(), self._add_item("msg", fields)]
        self._open_item["content"].append(part)
        self._message_texts = []
        return [
            *events,
            self._content_event("response.content_part.added", part=deepcopy(part)),
        ]

    def _add_words(self, text: str) -> None:
        self._texts.append(text)
        self._message_texts.append(text)

    def _add_text(self, text: str, logprobs: Sequence[Json]) -> Events:
        events = self._begin_message(_text_part())
        self._add_words(text)
        added = list(logprobs)
        self._open_item["content"][0]["logprobs"] += added
        delta = self._content_event("response.output_text.delta", delta=text, logprobs=added)
        return [*events, delta]

    def cited_text(self, part: Json) -> Events:
        """Return the events that replay a whole text part with its citations, or a refusal."""
        if part["type"] == _REFUSAL:
            return [*self.text(part[_REFUSAL], is_refusal=True), *self._close_item()]
        events = self._add_text(part["text"], part.get("logprobs") or ())
        self._replayed = part.get("annotations") or []
        events += self._close_item()
        self._replayed = []
        return events

    def server_call(self, call: ServerCall) -> Events:
        """Return the events of a tool call that the server ran, with its result."""
        self._pages += call.citations
        self._files += call.files
        self._server_calls.append(call)
        return self.whole_call(call_item(call, self.base["id"]))

    def image(self, image: Image) -> Events:
        """Return the events of an image that the model generated."""
        self._images += 1
        return self.whole_call(image_item(image))

    def whole_call(self, done: Json) -> Events:
        """Return all events of a server-side call from its finished item."""
        kind, rest = done["type"], {key: done[key] for key in done if key not in {"id", "status"}}
        events = [*self._close_item(), self._add_item(ITEM_IDS[kind], started_item(rest))]
        item, self._open = self._open_item, None
        position = {"item_id": item["id"], "output_index": len(self.output) - 1}
        for name, fields in call_phases(rest):
            events.append(self._event(f"response.{name}", **position, **fields))
        item.update(rest, status=done["status"])
        return [*events, self._item_done(len(self.output) - 1, item)]

    def call(self, index: int, call: ToolCall) -> Events:
        """Return the events of a fragment of a tool call.

        Args:
            index: the number of the tool call in the reply, from 0.
            call: the call with only the new part of its arguments.
        """
        events: Events = []
        tool = self._tools.get(index)
        if tool is None:
            events += self._close_item()
            prefix, fields = self._begun_call(call)
            events.append(self._add_item(prefix, fields))
            tool = _OpenToolCall(index=len(self.output) - 1, item=self._open_item)
            self._tools[index], self._open = tool, None
        if call.arguments:
            tool.parts.append(call.arguments)
        if call.arguments and tool.is_streamed:
            kind = "response.function_call_arguments.delta"
            events.append(self._tool_event(tool, kind, delta=call.arguments))
        return events

    def _begun_call(self, call: ToolCall) -> tuple[str, Json]:
        """Return the prefix of the item's id, and the item of a tool call without its arguments."""
        if self._searches and call.name == TOOL_SEARCH:
            return "tsc", {
                "type": _SEARCH,
                "call_id": call.id,
                "execution": "client",
                "arguments": {},
            }
        named = self._own_names.get(call.name) or {"name": call.name}
        if call.name in self._custom_names:
            return "ctc", {"type": _CUSTOM, "call_id": call.id, **named, CUSTOM_INPUT: ""}
        return "fc", {"type": _FUNCTION, "call_id": call.id, **named, "arguments": ""}

    def remaining(self, reply: Reply, *, reasoning: bool, thoughts: bool = False) -> Events:
        """Return the events of the parts of the reply not sent yet, and close every item.

        If the reply is a summary that replaces the conversation, its events are those of the
        summary alone.

        Args:
            reply: the whole reply.
            reasoning: whether to send its reasoning, none of which was streamed.
            thoughts: whether to send the redacted reasoning that was not streamed; ignored with
                `reasoning`, which sends it too.
        """
        if self.compacts:
            return self.compaction(pack_summary(reply.text))
        events = self.untold_reasoning(reply, reasoning=reasoning, thoughts=thoughts)
        return [*events, *self._remaining_answer(reply), *self.close()]

    def _remaining_answer(self, reply: Reply) -> Events:
        events = self.untold_calls(reply)
        text = reply.text[len(self.text_so_far) :]
        if text or not (self.text_so_far or reply.tool_calls or reply.images):
            logprobs = () if self.text_so_far else reply.logprobs
            events += self.text(text, logprobs, is_refusal=reply.is_refusal)
        for image in reply.images[self._images :]:
            events += self.image(image)
        for index, call in enumerate(reply.tool_calls):
            tool = self._tools.get(index)
            length = sum(map(len, tool.parts)) if tool is not None else 0
            if tool is None or length < len(call.arguments):
                rest = replace(call, arguments=call.arguments[length:])
                events += self.call(index, rest)
        return events

    def compaction(self, packed: str) -> Events:
        """Close all items, and return the events of the summary that replaces the conversation."""
        fields = {"type": COMPACTION_ITEM, "encrypted_content": packed}
        events = [*self.close(), self._add_item("cmp", fields)]
        item, self._open = self._open_item, None
        item["status"] = "completed"
        return [*events, self._item_done(len(self.output) - 1, item)]

    def close(self) -> Events:
        """Return the events that end every open item."""
        return [*self._close_item(), *self._close_tools()]

    def end(self, response: Json) -> Json:
        """Return the final event, with the finished or failed response."""
        self._has_ended = True
        return self._event(f"response.{response['status']}", response=response)

    def unfinished_items(self) -> list[Json]:
        """Return the items of a response that fails; open items are marked as incomplete."""
        for tool in self._tools.values():
            if tool.is_streamed:
                tool.item["arguments"] = "".join(tool.parts)
        if self._open is not None and self._open["type"] == "message":
            part = self._open["content"][0]
            part[_REFUSAL if part["type"] == _REFUSAL else "text"] = "".join(self._message_texts)
        elif self._open is not None and self._open.get("summary"):
            self._open["summary"][-1]["text"] = "".join(self._summary_texts)
        return [
            {**item, "status": "incomplete"} if item["status"] == "in_progress" else item
            for item in self.output
        ]

    @property
    def _open_item(self) -> Json:
        assert self._open is not None  # noqa: S101 - callers have an open item
        return self._open

    @property
    def _summary(self) -> list[Json]:
        return self._open_item["summary"]

    def _add_item(self, kind: str, fields: Json) -> Json:
        index = len(self.output)
        name = item_id(kind, self.base["id"], index)
        self._open = {"id": name, "status": "in_progress", **fields}
        self.output.append(self._open)
        # Copied: the item is filled later, perhaps before this event is sent.
        added = deepcopy(self._open)
        return self._event("response.output_item.added", output_index=index, item=added)

    def _close_item(self) -> Events:
        """Return the events that end the open text or reasoning item."""
        if self._open is None:
            return []
        events = self._close_part() if self._open["type"] == "reasoning" else self._close_text()
        self._open["status"] = "completed"
        events.append(self._item_done(len(self.output) - 1, self._open))
        self._open = None
        return events

    def _close_part(self) -> Events:
        if not self._summary:
            return []
        part = self._summary[-1]
        part["text"] = "".join(self._summary_texts)
        return [
            self._part_event("response.reasoning_summary_text.done", text=part["text"]),
            self._part_event("response.reasoning_summary_part.done", part=dict(part)),
        ]

    def _close_text(self) -> Events:
        part, text = self._open_item["content"][0], "".join(self._message_texts)
        if part["type"] == _REFUSAL:
            part[_REFUSAL] = text
            return [
                self._content_event("response.refusal.done", refusal=text),
                self._content_event("response.content_part.done", part=part),
            ]
        part["text"] = text
        events: Events = []
        cited = find_citations(text, self._pages) if self._pages else ()
        found = [_annotation_object(citation) for citation in cited]
        found += file_annotations(text, self._files, self.base["id"])
        self._files.clear()
        for annotation in self._replayed or found:
            kind = "response.output_text.annotation.added"
            number = len(part["annotations"])
            part["annotations"].append(annotation)
            event = self._content_event(kind, annotation_index=number, annotation=annotation)
            events.append(event)
        return [
            *events,
            self._content_event("response.output_text.done", text=text, logprobs=part["logprobs"]),
            self._content_event("response.content_part.done", part=part),
        ]

    def _close_tools(self) -> Events:
        events: Events = []
        for tool in self._tools.values():
            arguments = "".join(tool.parts)
            tool.item["status"] = "completed"
            if tool.item["type"] == _CUSTOM:
                events += self._whole_input(tool, custom_input(arguments))
                continue
            if tool.item["type"] == _SEARCH:
                tool.item["arguments"] = search_arguments(arguments)
                events.append(self._item_done(tool.index, tool.item))
                continue
            tool.item["arguments"] = arguments
            name = tool.item["name"]
            kind = "response.function_call_arguments.done"
            events.append(self._tool_event(tool, kind, arguments=arguments, name=name))
            events.append(self._item_done(tool.index, tool.item))
        return events

    def _whole_input(self, tool: _OpenToolCall, text: str) -> Events:
        tool.item[CUSTOM_INPUT] = text
        kind = "response.custom_tool_call_input"
        return [
            self._tool_event(tool, f"{kind}.delta", delta=text),
            self._tool_event(tool, f"{kind}.done", input=text),
            self._item_done(tool.index, tool.item),
        ]

    def _item_done(self, index: int, item: Json) -> Json:
        return self._event("response.output_item.done", output_index=index, item=item)

    def _part_event(self, kind: str, **fields: Any) -> Json:
        """Return an event of the last part of the open reasoning item."""
        position = {"output_index": len(self.output) - 1, "summary_index": len(self._summary) - 1}
        return self._event(kind, item_id=self._open_item["id"], **position, **fields)

    def _content_event(self, kind: str, **fields: Any) -> Json:
        """Return an event of the text of the open message."""
        position = {"output_index": len(self.output) - 1, "content_index": 0}
        return self._event(kind, item_id=self._open_item["id"], **position, **fields)

    def _tool_event(self, tool: _OpenToolCall, kind: str, **fields: Any) -> Json:
        return self._event(kind, item_id=tool.item["id"], output_index=tool.index, **fields)

    def _event(self, kind: str, **fields: Any) -> Json:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return event


def _annotation_object(citation: CitedPlace) -> Json:
    page = citation.page
    if page.file:
        named = {"file_id": page.file, "filename": page.title}
        return {"type": "file_citation", "index": citation.start, **named}
    where = {"start_index": citation.start, "end_index": citation.end}
    return {"type": "url_citation", **where, "url": page.url, "title": page.title}


def _text_part() -> Json:
    return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}


def replay_events(response: Json) -> Events:
    """Return events that rebuild a finished response, as if it had been streamed."""
    writer = ResponseEventWriter({**response, "status": "in_progress", "output": [], "usage": None})
    events = writer.begin()
    tools = 0
    for item in response["output"]:
        if item["type"] == "reasoning":
            for part in item["summary"]:
                events += writer.reasoning(part["text"], new=True)
            events += writer.end_reasoning(item)
        elif item["type"] == "message":
            events += writer.cited_text(item["content"][0])
        elif item["type"] in ITEM_IDS:
            events += writer.whole_call(item)
        elif item["type"] == COMPACTION_ITEM:
            events += writer.compaction(item["encrypted_content"])
        else:
            events += writer.call(tools, _call_of_item(item))
            tools += 1
    return [*events, *writer.close(), writer.end(response)]


def _call_of_item(item: Json) -> ToolCall:
    """Return the tool call of an item in the form in which the worker made it."""
    if item["type"] == _SEARCH:
        given = encode_json(item["arguments"]).decode()
        return ToolCall(id=item["call_id"], name=TOOL_SEARCH, arguments=given)
    name = flat_name(item.get(NAMESPACE), item["name"])
    custom = item["type"] == _CUSTOM
    given = encode_json(item[CUSTOM_INPUT]).decode() if custom else item["arguments"]
    return ToolCall(id=item["call_id"], name=name, arguments=given)
