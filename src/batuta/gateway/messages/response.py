"""Rendering of a run as a message of Anthropic's Messages API, whole or as events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast, final

import orjson

from batuta.core import (
    Citation,
    Finish,
    Image,
    Reply,
    Run,
    RunId,
    ServerCall,
    Thought,
    TokenLogprob,
    ToolCall,
)
from batuta.gateway.messages.conversation import PROGRESS_SIGNATURE
from batuta.gateway.messages.server_calls import (
    call_block,
    call_input,
    image_block,
    result_block,
    unkept_pictures,
    usage_of_calls,
)
from batuta.gateway.serving.deliver import orchestration_field
from batuta.gateway.serving.progress import AnswerEvents, Events, ProgressPiece
from batuta.gateway.serving.server_tools import find_citations, found_pages
from batuta.gateway.serving.tenant_memory import REASONING_SIGNATURE, thought_signature

Json = dict[str, Any]
_MAX_CITED = 150
"""Maximum length of a citation's quote, in characters."""


def message_id(run_id: RunId) -> str:
    """Return the message's id, which contains the run's id."""
    return f"msg_{run_id}"


def message_object(run: Run, reply: Reply, model: str, *, reasoning: bool, trace: bool) -> Json:
    """Return the answer of a run as a message object.

    Args:
        run: the run that gave the answer.
        reply: the worker's reply that is the answer.
        model: the model name in the request.
        reasoning: whether to include the worker's own reasoning.
        trace: whether to include the whole run.
    """
    content: list[Json] = _thinking_blocks(reply) if reasoning else []
    content += _text_blocks(reply)
    content += map(image_block, reply.images)
    content += [
        _tool_use_block(call, _arguments_object(call.arguments)) for call in reply.tool_calls
    ]
    return {
        "id": message_id(run.id),
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        **_stop_fields(run, reply),
        "usage": message_usage(run),
        **orchestration_field(run, trace=trace),
    }


def _text_blocks(reply: Reply) -> list[Json]:
    """Return the text as blocks, split where the server's tool calls were made."""
    if not reply.server_calls:
        return [{"type": "text", "text": reply.text}] if reply.text else []
    blocks: list[Json] = []
    position = 0
    for number, call in enumerate(reply.server_calls):
        before = reply.text[position : call.at]
        if before:
            blocks.append(_cited_text(before, found_pages(reply, number)))
        position += len(before)
        blocks += [call_block(call, call_input(call)), result_block(call)]
        blocks += map(image_block, unkept_pictures(call))
    rest = reply.text[position:]
    return [*blocks, _cited_text(rest, found_pages(reply))] if rest else blocks


def _cited_text(text: str, pages: Sequence[Citation]) -> Json:
    cited = _citation_objects(text, pages)
    return {"type": "text", "text": text} | ({"citations": cited} if cited else {})


def _citation_objects(text: str, pages: Sequence[Citation]) -> list[Json]:
    cited = dict.fromkeys(place.page for place in find_citations(text, pages))
    return [_citation_object(page, pages) for page in cited]


def _citation_object(page: Citation, pages: Sequence[Citation]) -> Json:
    quoted = page.excerpt[:_MAX_CITED]
    if page.file:
        files = [each for each in pages if each.file]
        return {
            "type": "search_result_location",
            "source": page.file,
            "title": page.title or None,
            "search_result_index": files.index(page),
            "start_block_index": 0,
            "end_block_index": 1,
            "cited_text": quoted,
        }
    return {
        "type": "web_search_result_location",
        "url": page.url,
        "title": page.title or None,
        "encrypted_index": "",
        "cited_text": quoted,
    }


def _thinking_blocks(reply: Reply) -> list[Json]:
    """Return the reasoning as blocks, with the provider's signatures if there are any."""
    blocks = [_thinking_block(thought) for thought in reply.thoughts]
    if not reply.reasoning or any(thought.text for thought in reply.thoughts):
        return blocks
    own = {"type": "thinking", "thinking": reply.reasoning, "signature": REASONING_SIGNATURE}
    return [own, *blocks]


def _thinking_block(thought: Thought) -> Json:
    if thought.redacted:
        return {"type": "redacted_thinking", "data": thought_signature(thought)}
    return {"type": "thinking", "thinking": thought.text, "signature": thought_signature(thought)}


def _stop_fields(run: Run, reply: Reply) -> Json:
    """Return the stop reason, and the client's stop sequence that ended the answer, if any."""
    reason = _stop_reason(reply)
    if reason == "end_turn" and reply.stop_sequence in run.header.question.sampling.stop:
        return {"stop_reason": "stop_sequence", "stop_sequence": reply.stop_sequence}
    return {"stop_reason": reason, "stop_sequence": None}


def _stop_reason(reply: Reply) -> str:
    """Return the stop reason, without regard to stop sequences."""
    if reply.finish is Finish.LENGTH:
        return "max_tokens"
    if reply.tool_calls:
        return "tool_use"
    return "refusal" if reply.finish is Finish.CONTENT_FILTER else "end_turn"


def message_usage(run: Run) -> Json:
    """Return the tokens of the answering call, and those of other calls as `orchestration_…`.

    A run without an answer has only other calls. In this API `input_tokens` excludes tokens read
    from or written to a cache. If the server ran tool calls for the answer, the numbers of searches
    and page fetches are included.
    """
    every = run.usage
    own = run.reply.usage if run.reply else None
    prompt, cached, written = (own.input, own.cached, own.cache_write) if own else (0, 0, 0)
    completion = own.output if own else 0
    uses = usage_of_calls(run.reply.server_calls if run.reply else ())
    return {
        "input_tokens": prompt - cached - written,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": cached,
        "output_tokens": completion,
        **uses,
        "orchestration_input_tokens": every.input - prompt,
        "orchestration_input_cached_tokens": every.cached - cached,
        "orchestration_output_tokens": every.output - completion,
    }


@final
class MessageEventWriter(AnswerEvents):
    """Makes the events of a streamed message; a block is closed when the next block begins.

    Tool calls are closed at the end, because fragments of several calls may alternate.
    """

    def __init__(self, run_id: RunId, model: str, estimate: int) -> None:
        """Prepare the first event.

        Args:
            run_id: the id of the run, which begins after the first event.
            model: the model name in the request.
            estimate: estimated tokens of the prompt, for the first event; `message_delta` has the
                tokens of the answering call.
        """
        super().__init__()
        usage = {"input_tokens": estimate, "output_tokens": 0}
        self._base: Json = {
            "id": message_id(run_id),
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        self._count = 0
        self._open: str | None = None
        """The open block: `text`, the signature of a thinking block, or None."""
        self._tools: dict[int, int] = {}
        """The number of each tool call's block, by the tool call's index."""
        self._sent_characters: dict[int, int] = {}
        """Number of argument characters sent so far, by the tool call's index."""
        self._block_text: list[str] = []
        """Text sent in the open text block."""
        self._mid_line = False
        """Whether the last progress text did not end with a newline."""

    def begin(self) -> Events:
        """Return the first events."""
        return [{"type": "message_start", "message": self._base}, {"type": "ping"}]

    def thinking(self, text: str, signature: str) -> Events:
        """Return the events of a fragment of a thinking block with this signature."""
        events = self._open_block(signature, {"type": "thinking", "thinking": "", "signature": ""})
        return [*events, self._block_delta(self._count - 1, "thinking_delta", thinking=text)]

    def own_reasoning(self, text: str, *, new: bool = False) -> Events:
        """Return the events of a fragment of the worker's own reasoning."""
        return self.thinking(text, REASONING_SIGNATURE)

    def sign(self, thought: Thought) -> Events:
        """Return the events that end a thinking block with its provider's signature.

        A redacted thought is sent as a block of its own.
        """
        self._thoughts.append(thought)
        if thought.redacted:
            events = [*self._close_block(), self._block_start(_thinking_block(thought))]
            return [*events, _block_stop_event(self._count - 1)]
        events = self._open_block(
            REASONING_SIGNATURE, {"type": "thinking", "thinking": "", "signature": ""}
        )
        self._open = thought_signature(thought)
        return [*events, *self._close_block()]

    def progress(self, piece: ProgressPiece) -> Events:
        """Return the events of a progress line or of a step's text."""
        text = piece.text
        if piece.is_line:
            text = f"\n{text}\n" if self._mid_line else f"{text}\n"
        self._mid_line = not text.endswith("\n")
        events = self.thinking(text, PROGRESS_SIGNATURE)
        if piece.step is not None:
            events[-1]["orchestration"] = piece.step
        return events

    def text(
        self, text: str, logprobs: Sequence[TokenLogprob] = (), *, is_refusal: bool = False
    ) -> Events:
        """Return the events of a text fragment.

        This API has no log probabilities, so they are not sent. A refusal is sent like any other
        text, and the message has a separate stop reason for it.
        """
        events = self._open_block("text", {"type": "text", "text": ""})
        self._texts.append(text)
        if self._server_calls:
            self._block_text.append(text)
        return [*events, self._block_delta(self._count - 1, "text_delta", text=text)]

    def server_call(self, call: ServerCall) -> Events:
        """Return the events of a tool call that the server ran, and of its result."""
        events = self._close_block()
        self._server_calls.append(call)
        events.append(self._block_start(call_block(call, {})))
        given = orjson.dumps(call_input(call)).decode()
        events.append(self._block_delta(self._count - 1, "input_json_delta", partial_json=given))
        events.append(_block_stop_event(self._count - 1))
        for block in (result_block(call), *map(image_block, unkept_pictures(call))):
            events.append(self._block_start(block))
            events.append(_block_stop_event(self._count - 1))
        return events

    def image(self, image: Image) -> Events:
        """Return the events of an image that the model generated."""
        self._images += 1
        events = [*self._close_block(), self._block_start(image_block(image))]
        return [*events, _block_stop_event(self._count - 1)]

    def call(self, index: int, call: ToolCall) -> Events:
        """Return the events of a fragment of a tool call.

        Args:
            index: the number of the tool call in the reply.
            call: the call with only the new part of its arguments.
        """
        events: Events = []
        if index not in self._tools:
            events += self._close_block()
            self._tools[index] = self._count
            events.append(self._block_start(_tool_use_block(call, {})))
        if call.arguments:
            block = self._tools[index]
            sent = self._sent_characters.get(index, 0)
            self._sent_characters[index] = sent + len(call.arguments)
            events.append(self._block_delta(block, "input_json_delta", partial_json=call.arguments))
        return events

    def remaining(self, reply: Reply, *, reasoning: bool, thoughts: bool = False) -> Events:
        """Return the events of the parts of the reply not sent yet, and close every block.

        Args:
            reply: the whole reply.
            reasoning: whether to send all reasoning, because none was streamed.
            thoughts: without `reasoning`, whether to send the redacted thoughts not sent yet.
        """
        events = self.untold_reasoning(reply, reasoning=reasoning, thoughts=thoughts)
        events += self.untold_calls(reply)
        if text := reply.text[len(self.text_so_far) :]:
            events += self.text(text)
        for image in reply.images[self._images :]:
            events += self.image(image)
        for index, call in enumerate(reply.tool_calls):
            rest = call.arguments[self._sent_characters.get(index, 0) :]
            if index not in self._tools or rest:
                events += self.call(index, replace(call, arguments=rest))
        events += self._close_block()
        return [*events, *(_block_stop_event(block) for block in self._tools.values())]

    def end(self, run: Run, reply: Reply, *, trace: bool) -> Events:
        """Return the last events."""
        last: Json = {
            "type": "message_delta",
            "delta": _stop_fields(run, reply),
            "usage": message_usage(run),
            **orchestration_field(run, trace=trace),
        }
        return [last, {"type": "message_stop"}]

    def _open_block(self, kind: str, block: Json) -> Events:
        """Return the events that open a block of that kind, unless such a block is open."""
        if self._open == kind:
            return []
        events = self._close_block()
        self._open = kind
        return [*events, self._block_start(block)]

    def _close_block(self) -> Events:
        """Return the events that end the open text or thinking block."""
        if self._open is None:
            return []
        index, signature = self._count - 1, self._open
        self._open = None
        if signature == "text":
            return [*self._cite(index), _block_stop_event(index)]
        return [
            self._block_delta(index, "signature_delta", signature=signature),
            _block_stop_event(index),
        ]

    def _cite(self, index: int) -> Events:
        if not self._server_calls:
            return []
        text, self._block_text = "".join(self._block_text), []
        pages = [page for call in self._server_calls for page in call.citations]
        return [
            self._block_delta(index, "citations_delta", citation=cited)
            for cited in _citation_objects(text, pages)
        ]

    def _block_start(self, block: Json) -> Json:
        self._count += 1
        return {"type": "content_block_start", "index": self._count - 1, "content_block": block}

    def _block_delta(self, index: int, kind: str, **fields: Any) -> Json:
        return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def _block_stop_event(index: int) -> Json:
    return {"type": "content_block_stop", "index": index}


def _tool_use_block(call: ToolCall, given: Json) -> Json:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": given}


def _arguments_object(arguments: str) -> Json:
    """Return the arguments as the JSON object that this API requires.

    If they are not an object, the returned object has them as `arguments`.
    """
    try:
        value: Any = orjson.loads(arguments or "{}")
    except orjson.JSONDecodeError:
        return {"arguments": arguments}
    return cast("Json", value) if isinstance(value, dict) else {"arguments": value}
