"""Questions, the messages sent to a model, and the model's replies."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
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


SYSTEM_ROLES = frozenset({Role.SYSTEM, Role.DEVELOPER})
"""The roles of messages that instruct the model."""

ATTACHMENT_TAGS = {"image": VISION, "file": FILES, "audio": AUDIO}
"""The tag of the workers that can be shown an attachment, by the kind of attachment."""
_REMINDERS = re.compile(r"(?:\s*+<system-reminder>.*?</system-reminder>)++\s*+", re.DOTALL)
HOUR_MARK = "1h"
"""The cache mark for an hour (instead of five minutes)."""


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of text."""

    text: str
    _: KW_ONLY
    kind: Literal["text"] = "text"
    cache: str | None = None
    """Cache mark: cache the prompt up to here, for `5m` or `1h`."""
    tokens: tuple[int, ...] = ()
    """Token ids in place of the text, for an embedding model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A picture by its `https:` or `data:` URL, which Batuta does not fetch itself."""

    url: str
    detail: str | None = None
    """The resolution at which the model sees it, such as `low`; None: the provider's default."""
    kind: Literal["image"] = "image"
    cache: str | None = None
    """Cache mark: cache the prompt up to here, for `5m` or `1h`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A document in the request, such as a PDF."""

    media_type: str
    data: str
    """Base64."""
    name: str = ""
    kind: Literal["file"] = "file"
    cache: str | None = None
    """Cache mark: cache the prompt up to here, for `5m` or `1h`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audio:
    """A recording in the request."""

    data: str
    """Base64."""
    format: str
    """`wav` or `mp3`."""
    kind: Literal["audio"] = "audio"
    cache: str | None = None
    """Cache mark: cache the prompt up to here, for `5m` or `1h`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A model's call of a tool."""

    id: str
    name: str
    arguments: str
    """JSON, as the model wrote it."""
    kind: Literal["tool_call"] = "tool_call"
    cache: str | None = None
    """Cache mark: cache the prompt up to here, for `5m` or `1h`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The result of a tool call."""

    call_id: str
    content: str
    kind: Literal["tool_result"] = "tool_result"
    cache: str | None = None
    """Cache mark: cache the prompt up to here, for `5m` or `1h`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeSearch:
    """A web search that a model's provider runs itself."""

    max_uses: int
    """Maximum number of searches in one call of the model."""
    allow: tuple[str, ...] = ()
    """Domains that may be searched; empty: all."""
    deny: tuple[str, ...] = ()
    """Domains that must not be searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Citation:
    """A page or file that an answer or a tool's output is taken from."""

    url: str
    title: str = ""
    date: str = ""
    """The page's date, such as 2026-05-01; empty: not known."""
    excerpt: str = ""
    """The cited passage."""
    file: str = ""
    """The cited file's id, or its path in the searched folder; `url` is then empty."""
    place: str = ""
    """The position in the file: `page 3`, or `lines 10-24`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file that a program wrote and that is stored for the caller."""

    id: str
    name: str
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCall:
    """A tool call that the server, or the model's provider, ran for a reply."""

    id: str
    name: str
    query: str
    """The search query, the URL that was read, or the program that ran."""
    citations: tuple[Citation, ...] = ()
    """The pages or files that were found."""
    error: str = ""
    """Why the tool returned nothing: `max_uses_exceeded` or `unavailable`; else empty."""
    at: int = 0
    """Number of characters of the reply's text before the call."""
    output: str = ""
    """The page's text, or the program's output."""
    failure: str = ""
    """Why the program failed, if it did."""
    pictures: tuple[str, ...] = ()
    """The pictures that the program drew, as `data:` URLs."""
    files: tuple[WrittenFile, ...] = ()
    """The files that the program wrote."""
    cost: Cost = ZERO_COST
    """Dollars of the call; included in the reply's cost."""
    began: float = field(default=0.0, compare=False)
    """Seconds from the start of the reply to the start of the call."""
    seconds: float = field(default=0.0, compare=False)
    """Duration of the call; 0 if it was not measured."""


Attachment = Image | File | Audio
# A tuple, because building the union for every isinstance check takes longer than the check.
_ATTACHMENTS = (Image, File, Audio)
Part = Text | Image | File | Audio | ToolCall | ToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Thought:
    """Signed reasoning, which its provider requires back together with a tool's result."""

    model: str
    """The model that wrote the reasoning; no other model can use it."""
    text: str = ""
    signature: str = ""
    redacted: str = ""
    """The encrypted reasoning, readable only by the provider; text and signature are then empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCache:
    """The client's settings for the providers' prompt caches."""

    key: str | None = None
    """Requests with the same key share a prefix."""
    retention: str | None = None
    """The provider's name of a retention time."""
    mark: str | None = None
    """Cache mark at the end of the whole prompt: `5m` or `1h`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation."""

    role: Role
    parts: tuple[Part, ...]
    name: str | None = None
    """The speaker's name, if the client gives one."""
    reasoning: str = ""
    """Reasoning text of an assistant's message, as the client sends it back."""
    thoughts: tuple[Thought, ...] = ()
    """The same reasoning as signed by its provider."""

    @property
    def text(self) -> str:
        """The text parts, concatenated."""
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
    """Return a system message with one text part."""
    return Message(role=Role.SYSTEM, parts=(Text(text),))


def user_message(text: str) -> Message:
    """Return a user message with one text part."""
    return Message(role=Role.USER, parts=(Text(text),))


def assistant_message(text: str) -> Message:
    """Return an assistant message with one text part."""
    return Message(role=Role.ASSISTANT, parts=(Text(text),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """JSON Schema of the arguments."""
    strict: bool | None = None
    """Whether the arguments must keep to the schema exactly; None: the provider's default."""
    cache: str | None = None
    """A cache mark, as on a part of a message."""
    native: NativeSearch | None = None
    """Set if the provider runs the tool itself; None if the caller runs its calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseFormat:
    """The format that the answer must have."""

    kind: Literal["json_object", "json_schema"]
    name: str = "answer"
    schema: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """JSON Schema of the answer; empty for `json_object`."""
    strict: bool | None = None
    """Whether the answer must keep to the schema exactly; None: the provider's default."""
    words_suffice: bool = True
    """Whether a provider without constrained decoding gets the format described in the prompt.
    False: its client refuses the request, and the caller writes another prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A conversation to be answered, and the client's requirements for the answer."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: str | None = None
    """`auto`, `none`, `required`, or the name of a tool; None: the provider's default."""
    parallel_tool_calls: bool | None = None
    """Whether a reply may call several tools; None: the provider's default."""
    response_format: ResponseFormat | None = None
    sampling: Sampling = NO_SAMPLING
    """The client's sampling settings for the answer; steps that do not answer ignore them."""
    cache: PromptCache | None = None
    """The client's prompt cache settings; they apply to every worker."""
    tags: tuple[str, ...] = ()
    """Tags such as `patient`, to which plan and approval rules may apply; no model sees them."""

    def __post_init__(self) -> None:
        if not self.messages:
            raise ValueError("a question needs at least one message")

    @property
    def needed_tags(self) -> tuple[str, ...]:
        """The tags that a worker needs to be shown all attachments."""
        kinds = {part.kind for message in self.messages for part in message.parts}
        return tuple([tag for kind, tag in ATTACHMENT_TAGS.items() if kind in kinds])

    @property
    def has_tool_results(self) -> bool:
        """True if the conversation contains tool results."""
        return any(
            isinstance(part, ToolResult) for message in self.messages for part in message.parts
        )

    @staticmethod
    def of(text: str) -> Question:
        """Return a question with one user message."""
        return Question(messages=(user_message(text),))

    @property
    def text(self) -> str:
        """The text of the last user message, or of the last message if no user spoke."""
        spoken = [message for message in self.messages if message.role is Role.USER]
        return (spoken or self.messages)[-1].text

    @property
    def title(self) -> str:
        """The text for lists of runs, without the reminders that coding agents put before it.

        A text of reminders alone is returned whole.
        """
        text = self.text
        before = _REMINDERS.match(text)
        return (text[before.end() :] if before else text) or text


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt for one call: everything except the model."""

    messages: tuple[Message, ...]
    sampling: Sampling = NO_SAMPLING
    tools: tuple[Tool, ...] = ()
    tool_choice: str | None = None
    """`auto`, `none`, `required`, or the name of a tool; None: the provider's default."""
    parallel_tool_calls: bool | None = None
    """Whether a reply may call several tools; None: the provider's default."""
    response_format: ResponseFormat | None = None
    prefill: str = ""
    """The start of the assistant's reply, if the API can continue one."""
    names: tuple[str, ...] = ()
    """The only names allowed in the reply's `model_id` list; enforced for models that are decoded
    in this process. Empty: any name."""
    max_output: int | None = None
    """Output cap in tokens, including reasoning, that follows from a limit in dollars or a budget;
    a client whose model costs money must send it. None: neither applies."""
    cache: PromptCache | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """A token and its log probability."""

    token: str
    logprob: float
    """The natural logarithm of the token's probability."""
    utf8: tuple[int, ...] | None = None
    """The token's bytes, if the provider reports them; a token may be part of a character."""
    others: tuple[TokenLogprob, ...] = ()
    """The most probable tokens at this position, which may include this token."""


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
    """The reasoning as signed by the provider."""
    stop_sequence: str | None = None
    """The stop sequence that ended the reply, if the provider reports it."""
    is_refusal: bool = False
    """Whether the provider marked the text as a refusal to answer."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Log probabilities of the text's tokens, if requested."""
    vectors: tuple[tuple[float, ...], ...] = ()
    """The vectors of an embedding model: one for each message."""
    server_calls: tuple[ServerCall, ...] = ()
    """The tool calls that the server or the provider ran for this reply."""
    images: tuple[Image, ...] = ()
    """The pictures that the model made."""
    alternatives: tuple[Reply, ...] = ()
    """The other replies, if several were requested; this reply's `usage` and `cost` include
    theirs."""

    @property
    def choices(self) -> tuple[Reply, ...]:
        """This reply and its alternatives, in the provider's order."""
        return (self, *self.alternatives)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """A fragment of a reply as it arrives."""

    text: str = ""
    reasoning: str = ""
    tool_index: int | None = None
    """Index of the tool call that the fragment belongs to, from 0; None: it belongs to none."""
    tool_id: str = ""
    tool_name: str = ""
    tool_arguments: str = ""
    thought: Thought | None = None
    """Set when a piece of reasoning has ended; its text was in the fragments before."""
    is_refusal: bool = False
    """Whether the text belongs to a refusal."""
    choice: int = 0
    """Index of the reply that the fragment belongs to, from 0, if several were requested."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Log probabilities of the text's tokens."""
    server_call: ServerCall | None = None
    """Set when a server call has ended."""
    image: Image | None = None
    """A picture that the model made."""


_RUN_PREFIX = "run_"
_CALL_ID_PATTERN = re.compile(r"call_([A-Za-z0-9-]{1,24})_(\d{1,4})_(\d{1,3})")
"""Matches at most 40 characters, since OpenAI accepts no longer ids."""
_ROUND_FACTOR = 100
"""An id contains round * 100 + step: one number for both."""


class ToolCallOrigin(NamedTuple):
    """The step of a run that made a tool call."""

    run: str
    """The run's id."""
    round: int
    """The round's number, from 0, counted over all runs that continue the same workflow."""
    step: int
    """The step's index, from 0."""
    number: int
    """Index of the call among the calls of the step, from 0."""


def encode_call_id(origin: ToolCallOrigin) -> str:
    """Return a tool call id that encodes its origin."""
    step = origin.round * _ROUND_FACTOR + origin.step
    return f"call_{origin.run.removeprefix(_RUN_PREFIX)}_{step}_{origin.number}"


def unused_call_id(given: str, earlier_ids: Sequence[str]) -> str:
    """Return the id; if the conversation has it already, an id that no earlier call has.

    A retry gets the same id, since it depends only on `given` and the number of earlier calls.
    """
    if given not in earlier_ids:
        return given
    seed = f"{len(earlier_ids)} {given}".encode("utf-8", "replace")
    return f"call_{hashlib.sha256(seed).hexdigest()[:24]}"


def decode_call_id(tool_call_id: str) -> ToolCallOrigin | None:
    """Return the origin that the id encodes; None for an id of any other form."""
    found = _CALL_ID_PATTERN.fullmatch(tool_call_id)
    if found is None:
        return None
    round_number, step = divmod(int(found[2]), _ROUND_FACTOR)
    return ToolCallOrigin(_RUN_PREFIX + found[1], round_number, step, int(found[3]))
