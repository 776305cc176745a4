"""Conversations of several turns: how they are shown to a conductor, and the turns a step sees.

In this module a turn is one message, or one tool result in a message. Within a workflow only the
step that called a tool sees the result; the call's id encodes the step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from batuta.core import (
    Audio,
    Cropping,
    File,
    Message,
    Part,
    Question,
    Role,
    RunId,
    Text,
    ToolCall,
    ToolCallOrigin,
    ToolResult,
    decode_call_id,
)
from batuta.core.token_estimate import estimate_tokens
from batuta.language.material import (
    TURN,
    has_heading,
    has_label,
    is_one_line,
    join_lines,
    wrap_in_tag,
)

MAX_CHARACTERS = 32_000
"""Maximum number of characters of a conversation that a conductor is shown, without tags and notes.
The conductor does not answer, and its context window may be small; workers get all turns."""
MAX_TURN_CHARACTERS = 2_000
"""Maximum number of characters of a turn in a conversation that is too long; the turn that asks the
question may have half of `MAX_CHARACTERS`."""
EXTRACT_CHARACTERS = 160
"""Maximum number of characters of an extract of omitted text, including its position label."""
MAX_EXTRACTS = 16
"""Maximum number of extracts of one text, or of the omitted turns."""
_LABEL_CHARACTERS = 24
"""Maximum number of characters of an extract's position label."""


def question_text(question: Question) -> str:
    """Return the conversation as one text for a conductor.

    A single message is shown without a label. If the conversation is longer than `MAX_CHARACTERS`,
    first the middles of its turns and then its older turns are replaced by extracts with their
    positions.
    """
    return crop_conversation(question)[0]


def crop_conversation(question: Question) -> tuple[str, Cropping | None]:
    """Return the text of `question_text`, and how much was left out; None if it is complete."""
    messages = question.messages
    if len(messages) == 1 and not _tool_results(messages[0]):
        whole = _own_text(messages[0])
        text = outline_text(whole, MAX_CHARACTERS)
        cropping = None if text == whole else Cropping(len(text), len(whole))
        return wrap_in_tag(TURN, text) if has_heading(text) else text, cropping
    at = question_index(question)
    turns: list[_Turn] = []
    asking = 0
    for index, message in enumerate(messages):
        turns += _turns_of(message)
        asking = len(turns) - 1 if index == at else asking
    size = sum(len(turn.line) for turn in turns)
    if size > MAX_CHARACTERS:
        half = MAX_CHARACTERS // 2
        turns = [
            turn.outlined(half if index == asking else MAX_TURN_CHARACTERS)
            for index, turn in enumerate(turns)
        ]
    shown, omitted = _fit_turns(turns, max(asking, 0))
    text = "\n\n".join(shown)
    return text, Cropping(len(text), size, omitted) if size > MAX_CHARACTERS else None


@dataclass(frozen=True, slots=True)
class _Turn:
    """A turn of a conversation."""

    label: str
    text: str
    """Turns with an empty text are skipped."""
    is_material: bool
    """True if a model or a tool wrote it."""

    @property
    def line(self) -> str:
        """The turn without tags."""
        return f"{self.label}: {self.text}" if self.text else ""

    @property
    def shown(self) -> str:
        """The turn as shown to a conductor, with tags if its text could imitate another turn."""
        if is_one_line(self.text):
            return self.line
        if self.is_material or has_heading(self.text) or has_label(self.text):
            return f"{self.label}:\n{wrap_in_tag(TURN, self.text)}"
        return self.line

    def outlined(self, most: int) -> _Turn:
        """Return the turn with its text outlined to about `most` characters."""
        return replace(self, text=outline_text(self.text, most))


def _turns_of(message: Message) -> list[_Turn]:
    """Return the turns of the tool results in a message, then the message's own turn."""
    name = {Role.DEVELOPER: "System", Role.TOOL: "Tool result"}.get(message.role)
    label = name or message.role.value.capitalize()
    material = message.role in {Role.ASSISTANT, Role.TOOL}
    results = [_Turn("Tool result", text, is_material=True) for text in _tool_results(message)]
    own = _Turn(label, _own_text(message), is_material=material)
    return [*results, own] if own.text or not results else results


def _fit_turns(turns: list[_Turn], asking: int) -> tuple[list[str], int]:
    """Return the first turn, the asking turn, and as many of the newest turns as fit.

    Args:
        turns: the turns; empty ones are skipped.
        asking: the index of the turn that asks the question.

    Returns:
        The shown texts, with extracts of the omitted turns, and the number of omitted turns.
    """
    with_text = [index for index, turn in enumerate(turns) if turn.text]
    first = with_text[0] if with_text else asking
    if sum(len(turns[index].line) for index in with_text) <= MAX_CHARACTERS:
        return [turns[index].shown for index in with_text], 0
    room = MAX_CHARACTERS - MAX_EXTRACTS * EXTRACT_CHARACTERS
    room -= len(turns[first].line) + (len(turns[asking].line) if asking != first else 0)
    chosen: list[str] = []
    omitted: list[int] = []
    for index in reversed(with_text[1:]):
        if index != asking:
            room -= len(turns[index].line)
        if index == asking or room >= 0:
            chosen.append(turns[index].shown)
        else:
            omitted.append(index)
    lines = [turn.line for turn in turns]
    gap = [_describe_omitted_turns(lines, sorted(omitted))] if omitted else []
    return [turns[first].shown, *gap, *reversed(chosen)], len(omitted)


def _describe_omitted_turns(turns: list[str], omitted: list[int]) -> str:
    """Return the number of omitted turns and the beginnings of some of them, evenly spaced."""
    lines = (
        f"[turn {index + 1} of {len(turns)}] {_extract_at(turns[index], 0)}"
        for index in _evenly_spaced(omitted, MAX_EXTRACTS - 1)
    )
    return "\n".join([f"[{len(omitted)} earlier turns are left out; so they begin:]", *lines])


def outline_text(text: str, most: int) -> str:
    """Return the text, or its two ends with extracts of the omitted middle and their positions.

    Args:
        text: the text, which may be too long.
        most: about how many characters to return, at most a tenth of them for extracts.
    """
    if len(text) <= most:
        return text
    extracts = min(most // 10 // EXTRACT_CHARACTERS, MAX_EXTRACTS)
    ends = most - extracts * EXTRACT_CHARACTERS
    head, tail = ends * 2 // 3, ends // 3
    gap = len(text) - head - tail
    lines = [f"[{gap} characters are left out{'; of them:' if extracts else ''}]"]
    for number in range(extracts):
        at = head + gap * (2 * number + 1) // (2 * extracts)
        lines.append(f"[at {100 * at // len(text)} %] {_extract_at(text, at)}")
    return "\n".join([text[:head], *lines, text[-tail:]])


def _extract_at(text: str, at: int) -> str:
    """Return the text at that position as one line, from the beginning of a word."""
    piece = text[at : at + EXTRACT_CHARACTERS - _LABEL_CHARACTERS]
    if at and not text[at - 1].isspace():
        piece = piece.partition(" ")[2] or piece
    return f"{' '.join(piece.split())}…"


def _evenly_spaced(values: list[int], most: int) -> list[int]:
    count = min(len(values), most)
    return [values[len(values) * number // count] for number in range(count)]


def clip_text(text: str, most: int) -> str:
    """Return the text, or at most `most` characters of its two ends with a note between them."""
    if len(text) <= most:
        return text
    head, tail = most * 2 // 3, most // 3
    return f"{text[:head]}\n[{len(text) - head - tail} characters are left out]\n{text[-tail:]}"


def clip_to_tokens(text: str, most: int) -> str:
    """Return the text, or its two ends if it has more than `most` estimated tokens."""
    tokens = estimate_tokens(text)
    return text if tokens <= most else clip_text(text, len(text) * most // tokens)


def _own_text(message: Message) -> str:
    """Return the message's text, with attachments and tool calls described in words."""
    parts = [message.text] if message.text else []
    if message.images:
        several = "s" if len(message.images) > 1 else ""
        parts.append(f"[{len(message.images)} picture{several}]")
    for part in message.parts:
        if isinstance(part, File):
            parts.append(f"[a file{': ' + join_lines(part.name) if part.name else ''}]")
        elif isinstance(part, Audio):
            parts.append("[a recording]")
        elif isinstance(part, ToolCall):
            parts.append(f"[calls {part.name} with {part.arguments}]")
    return "\n".join(parts)


def _tool_results(message: Message) -> list[str]:
    return [part.content for part in message.parts if isinstance(part, ToolResult)]


def question_index(question: Question, chain: Collection[RunId] = ()) -> int:
    """Return the index of the message that asks the question.

    It is the last user message with text before the runs of `chain` first called a tool; else the
    last user message, or the last message of any role, before that.
    """
    messages = question.messages
    if len(messages) == 1:
        return 0
    if chain:
        end = next((i for i, m in enumerate(messages) if _belongs_to_chain(m, chain)), None)
        messages = messages[:end]
    users = [i for i, message in enumerate(messages) if message.role is Role.USER and message.text]
    users = users or [i for i, message in enumerate(messages) if message.role is Role.USER]
    return users[-1] if users else max(len(messages) - 1, 0)


def with_mark(earlier: tuple[Message, ...], asking: Message) -> tuple[Message, ...]:
    """Return the earlier messages, with a cache mark at their end if the asking message has one.

    The asking message is rewritten for each step, but the messages before it are the same for all
    steps and for the next questions, so that a provider can cache them.
    """
    mark = next((part.cache for part in reversed(asking.parts) if part.cache), None)
    if mark is None or not earlier or not earlier[-1].parts or earlier[-1].parts[-1].cache:
        return earlier
    *before, last = earlier
    *parts, end = last.parts
    return (*before, replace(last, parts=(*parts, replace(end, cache=mark))))


def without_prefill(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return the messages without an assistant's at the end, which is the prefill of an answer."""
    if messages and messages[-1].role is Role.ASSISTANT:
        return messages[:-1]
    return messages


def turns_for_step(
    messages: tuple[Message, ...], round_number: int, step: int, chain: Collection[RunId]
) -> tuple[Message, ...]:
    """Return the messages without the tool calls and results of other steps of the runs in `chain`.

    Calls that these runs did not make are kept. If only text of a message would remain, the message
    is left out, unless it is the user's.
    """
    if not chain:
        return messages
    return tuple(_step_turns(messages, round_number, step, chain))


def _step_turns(
    messages: tuple[Message, ...], round_number: int, step: int, chain: Collection[RunId]
) -> Iterator[Message]:
    for message in messages:
        origins = [_call_origin(part, chain) for part in message.parts]
        if not any(origins):
            yield message
            continue
        own = tuple(
            part
            for part, origin in zip(message.parts, origins, strict=True)
            if origin is None or (origin.round, origin.step) == (round_number, step)
        )
        if any(not isinstance(part, Text) for part in own) or message.role is Role.USER:
            yield replace(message, parts=own)


def turns_by_round(
    messages: tuple[Message, ...], rounds: int, step: int, chain: Collection[RunId]
) -> list[list[Message]]:
    """Return the messages of each round, without the tool calls and results of other steps.

    Args:
        messages: the messages after the question.
        rounds: number of rounds, including the current one.
        step: the step whose calls and results are kept.
        chain: the runs that have executed the rounds.
    """
    turns: list[list[Message]] = [[] for _ in range(rounds)]
    number = 0
    for message in messages:
        origins = [origin for part in message.parts if (origin := _call_origin(part, chain))]
        number = min(max((origin.round for origin in origins), default=number), rounds - 1)
        turns[number] += _step_turns((message,), number, step, chain)
    return turns


def without_calls(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return the messages with tool calls and results as text, for a request without tools.

    Some providers refuse tool calls in a request without tools. The reasoning in such messages is
    removed.
    """
    return tuple(map(_without_calls, messages))


def _without_calls(message: Message) -> Message:
    if not any(isinstance(part, ToolCall | ToolResult) for part in message.parts):
        return message
    parts = tuple(_as_text(part) for part in message.parts)
    role = Role.USER if message.role is Role.TOOL else message.role
    return replace(message, role=role, parts=parts, thoughts=(), reasoning="")


def _as_text(part: Part) -> Part:
    if isinstance(part, ToolCall):
        return Text(f"[called {part.name} with {part.arguments}]\n", cache=part.cache)
    if isinstance(part, ToolResult):
        return Text(f"[it returned: {part.content}]\n", cache=part.cache)
    return part


def _belongs_to_chain(message: Message, chain: Collection[RunId]) -> bool:
    return any(_call_origin(part, chain) for part in message.parts)


def _call_origin(part: Part, chain: Collection[RunId]) -> ToolCallOrigin | None:
    """Return the origin of a tool call or result; None if the part has none within the chain."""
    if isinstance(part, ToolCall):
        origin = decode_call_id(part.id)
    elif isinstance(part, ToolResult):
        origin = decode_call_id(part.call_id)
    else:
        return None
    return origin if origin is not None and origin.run in chain else None
