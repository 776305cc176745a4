"""Questions, the messages that are sent to a model for them, and the model's replies."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from batuta.core.worker import AUDIO, FILES, NO_SAMPLING, VISION, Finish, Sampling
from batuta.usage import ZERO_COST, ZERO_USAGE, Cost, Usage


class Role(StrEnum):
    """The speaker of a message."""

    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


_TAGS = (("image", VISION), ("file", FILES), ("audio", AUDIO))
"""The tag of who can be shown a part of that kind."""
_REMINDERS = re.compile(r"(?:\s*+<system-reminder>.*?</system-reminder>)++\s*+", re.DOTALL)
HOUR_MARK = "1h"
"""The mark of what is to be cached for an hour and not for five minutes."""


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of text."""

    text: str
    _: KW_ONLY
    kind: Literal["text"] = "text"
    cache: str | None = None
    """A mark after which the prompt up to here is to be cached: `5m` or `1h`."""
    tokens: tuple[int, ...] = ()
    """The ids of tokens in the text's place, for a model that embeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A picture by its `https:` or `data:` URL; Batuta fetches nothing itself."""

    url: str
    detail: str | None = None
    kind: Literal["image"] = "image"
    cache: str | None = None
    """A mark after which the prompt up to here is to be cached: `5m` or `1h`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A document that came with the request, such as a PDF."""

    media_type: str
    data: str
    """Base64."""
    name: str = ""
    kind: Literal["file"] = "file"
    cache: str | None = None
    """A mark after which the prompt up to here is to be cached: `5m` or `1h`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audio:
    """A recording that came with the request."""

    data: str
    """Base64."""
    format: str
    """`wav` or `mp3`."""
    kind: Literal["audio"] = "audio"
    cache: str | None = None
    """A mark after which the prompt up to here is to be cached: `5m` or `1h`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A model's call of one of the client's tools."""

    id: str
    name: str
    arguments: str
    """JSON, as the model wrote it."""
    kind: Literal["tool_call"] = "tool_call"
    cache: str | None = None
    """A mark after which the prompt up to here is to be cached: `5m` or `1h`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The result that the client's tool returned."""

    call_id: str
    content: str
    kind: Literal["tool_result"] = "tool_result"
    cache: str | None = None
    """A mark after which the prompt up to here is to be cached: `5m` or `1h`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeSearch:
    """A web search that the provider of a model runs by itself."""

    max_uses: int
    """Searches of one call, at most."""
    allow: tuple[str, ...] = ()
    """Domains; empty: all."""
    deny: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Citation:
    """A page that an answer or a tool's output is taken from."""

    url: str
    title: str = ""
    date: str = ""
    """The day it is of, as 2026-05-01; empty: not known."""
    excerpt: str = ""
    """What it says there."""
    file: str = ""
    """The id of the file that it is, in the place of an address."""
    place: str = ""
    """Where in the file: `page 3`, or `lines 10-24`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file that a program wrote and that is kept for the caller."""

    id: str
    name: str
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCall:
    """A tool's call that the server ran while a model answered."""

    id: str
    name: str
    query: str
    """The words that were searched for, the address that was read, or the program that ran."""
    citations: tuple[Citation, ...] = ()
    """The pages that came out."""
    error: str = ""
    """`max_uses_exceeded` or `unavailable`, if nothing did."""
    at: int = 0
    """Characters of the reply's text before it."""
    output: str = ""
    """The page's text, or what the program printed."""
    failure: str = ""
    """Why the program failed, if it did."""
    pictures: tuple[str, ...] = ()
    """The pictures that the program drew, as `data:` addresses."""
    files: tuple[WrittenFile, ...] = ()
    """The files that the program wrote."""
    cost: Cost = ZERO_COST
    """Dollars of the call, which are a part of the reply's."""
    began: float = field(default=0.0, compare=False)
    """Seconds of the reply before it."""
    seconds: float = field(default=0.0, compare=False)
    """How long it took; 0 for a call that the provider ran by itself."""


Attachment = Image | File | Audio
# A tuple: to write the union anew at each look takes longer than the look.
_ATTACHMENTS = (Image, File, Audio)
Part = Text | Image | File | Audio | ToolCall | ToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Thought:
    """Reasoning that a provider signed, so that it takes it back with a tool's result."""

    model: str
    """The model that reasoned so; no other model can use it."""
    text: str = ""
    signature: str = ""
    redacted: str = ""
    """The whole of it, in a form that only the provider can read; text and signature are empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCache:
    """It says what the client asks of the providers' prompt caches."""

    key: str | None = None
    """Requests of the same key share a beginning."""
    retention: str | None = None
    """How long, in the words of the provider."""
    mark: str | None = None
    """Whether the whole prompt is to be marked, wherever it ends: `5m` or `1h`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a conversation."""

    role: Role
    parts: tuple[Part, ...]
    name: str | None = None
    reasoning: str = ""
    """Reasoning text of an assistant's turn, given back by the client."""
    thoughts: tuple[Thought, ...] = ()
    """The same as its provider signed it."""

    @property
    def text(self) -> str:
        """The text parts, one after another."""
        return "".join([part.text for part in self.parts if isinstance(part, Text)])

    @property
    def images(self) -> tuple[Image, ...]:
        """The pictures."""
        return tuple([part for part in self.parts if isinstance(part, Image)])

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        """The pictures, the files and the recordings."""
        return tuple([part for part in self.parts if isinstance(part, _ATTACHMENTS)])


def system_message(text: str) -> Message:
    """Return a system message of one text."""
    return Message(role=Role.SYSTEM, parts=(Text(text),))


def user_message(text: str) -> Message:
    """Return a user message of one text."""
    return Message(role=Role.USER, parts=(Text(text),))


def assistant_message(text: str) -> Message:
    """Return an assistant message of one text."""
    return Message(role=Role.ASSISTANT, parts=(Text(text),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the client offers."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """JSON schema of its arguments."""
    strict: bool | None = None
    cache: str | None = None
    """A mark, as of a part of a message."""
    native: NativeSearch | None = None
    """The way in which the provider runs it; None if the caller runs its calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseFormat:
    """The form the answer must have."""

    kind: Literal["json_object", "json_schema"]
    name: str = "answer"
    schema: Mapping[str, Any] = field(default_factory=dict[str, Any])
    strict: bool | None = None
    words_suffice: bool = True
    """Whether a server that cannot hold a model to the form is told of it in words; False: the
    request is refused there, and whoever asks writes another prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A conversation that wants an answer, and what the answer must be like."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: str | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    sampling: Sampling = NO_SAMPLING
    """The client asks this of the visible answer; it binds the last step only."""
    cache: PromptCache | None = None
    """The client asks this of the providers' prompt caches; it goes to every worker."""
    tags: tuple[str, ...] = ()
    """Rules for plans tell questions apart by these words, such as `patient`; no model sees them.
    """

    def __post_init__(self) -> None:
        if not self.messages:
            raise ValueError("a question needs at least one message")

    @property
    def needed_tags(self) -> tuple[str, ...]:
        """The tags of the workers that can be shown all that is attached."""
        kinds = {part.kind for message in self.messages for part in message.parts}
        return tuple([tag for kind, tag in _TAGS if kind in kinds])

    @property
    def has_tool_results(self) -> bool:
        """Return True if results of tools are a part of the conversation."""
        return any(
            isinstance(part, ToolResult) for message in self.messages for part in message.parts
        )

    @staticmethod
    def of(text: str) -> Question:
        """Return a question of one user message."""
        return Question(messages=(user_message(text),))

    @property
    def text(self) -> str:
        """The text of the last user message, or of the last message if no user spoke."""
        spoken = [message for message in self.messages if message.role is Role.USER]
        return (spoken or self.messages)[-1].text

    @property
    def title(self) -> str:
        """The same for lists of runs: without the reminders that coding agents write before it."""
        text = self.text
        before = _REMINDERS.match(text)
        return (text[before.end() :] if before else text) or text


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt for one call: everything but which model is called."""

    messages: tuple[Message, ...]
    sampling: Sampling = NO_SAMPLING
    tools: tuple[Tool, ...] = ()
    tool_choice: str | None = None
    """`auto`, `none`, `required`, or the name of a tool."""
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    prefill: str = ""
    """The start of the assistant's reply, where the dialect can continue one."""
    names: tuple[str, ...] = ()
    """The only names that a list `model_id` in the reply may hold; heeded by a model whose tokens
    are chosen in this process. Empty: any."""
    max_output: int | None = None
    """Output tokens at most, reasoning included, because of a limit in dollars; every client sends
    it as the worker's own limit. None: no limit in dollars applies."""
    cache: PromptCache | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """A token and how probable it was."""

    token: str
    logprob: float
    """The natural logarithm of its probability."""
    utf8: tuple[int, ...] | None = None
    """The token's bytes, where the provider tells them: a token may be a part of a character."""
    others: tuple[TokenLogprob, ...] = ()
    """The most probable tokens in its place, it among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A model's whole reply to one call."""

    text: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = ZERO_USAGE
    cost: Cost = ZERO_COST
    finish: Finish = Finish.STOP
    model: str = ""
    """The model as the provider names it."""
    kind: Literal["reply"] = "reply"
    thoughts: tuple[Thought, ...] = ()
    """The reasoning as the provider signed it."""
    stop_sequence: str | None = None
    """The text at which the reply was stopped, if the provider says so."""
    is_refusal: bool = False
    """Whether the text is the model's refusal to answer, told apart from an answer."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Log probabilities of the text's tokens, if they were asked for."""
    vectors: tuple[tuple[float, ...], ...] = ()
    """Vectors of a model that embeds: one for each message."""
    server_calls: tuple[ServerCall, ...] = ()
    """The calls that the server ran for it."""
    images: tuple[Image, ...] = ()
    """The pictures that the model made."""
    alternatives: tuple[Reply, ...] = ()
    """The other replies, if several were asked for; their tokens and dollars are in `usage` and
    `cost` of this one."""

    @property
    def choices(self) -> tuple[Reply, ...]:
        """This reply and its alternatives, in the order in which they are numbered."""
        return (self, *self.alternatives)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """A fragment of a reply as it arrives."""

    text: str = ""
    reasoning: str = ""
    tool_index: int | None = None
    """Which tool call of the reply this fragment belongs to, from 0."""
    tool_id: str = ""
    tool_name: str = ""
    tool_arguments: str = ""
    thought: Thought | None = None
    """A piece of reasoning has ended; its text was in the fragments before."""
    is_refusal: bool = False
    """Whether the text belongs to a refusal."""
    choice: int = 0
    """Which of several replies it belongs to."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Log probabilities of the text's tokens."""
    server_call: ServerCall | None = None
    """A call that the server ran has ended."""
    image: Image | None = None
    """A picture that the model made."""


_RUN_PREFIX = "run_"
_CALL_ID_PATTERN = re.compile(r"call_([A-Za-z0-9-]{1,24})_(\d{1,4})_(\d{1,3})")
"""Holds at most 40 characters, the most that OpenAI takes."""
_ROUND_FACTOR = 100


class ToolCallOrigin(NamedTuple):
    """The place in a run from which a tool call came."""

    run: str
    """The run's id."""
    round: int
    step: int
    number: int
    """Position of the call among those of its step, from 0."""


def encode_call_id(origin: ToolCallOrigin) -> str:
    """Return the id that says so."""
    place = origin.round * _ROUND_FACTOR + origin.step
    return f"call_{origin.run.removeprefix(_RUN_PREFIX)}_{place}_{origin.number}"


def decode_call_id(tool_call_id: str) -> ToolCallOrigin | None:
    """Return where the call came from; None for an id that is not Batuta's."""
    found = _CALL_ID_PATTERN.fullmatch(tool_call_id)
    if found is None:
        return None
    round_number, step = divmod(int(found[2]), _ROUND_FACTOR)
    return ToolCallOrigin(_RUN_PREFIX + found[1], round_number, step, int(found[3]))
