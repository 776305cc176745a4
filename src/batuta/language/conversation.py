"""A conversation of several turns: what a conductor is shown of it, and which turns a step sees.

Within a workflow a tool's result goes to the step that asked for it and to no other: the id of
the call says which step that was.
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
"""Characters of a conversation that a conductor is shown: its window is small and it must decide,
not answer. Workers get the whole."""
MAX_TURN_CHARACTERS = 2_000
"""Characters of a turn other than the one that asks, where the whole is too long."""
EXTRACT_CHARACTERS = 160
"""Characters of an extract of what is left out, its place included."""
MAX_EXTRACTS = 16
"""Extracts of one text, or of the turns that are left out."""
_PLACE_CHARACTERS = 24
"""Characters of an extract that say where it stands."""


def question_text(question: Question) -> str:
    """Return the conversation as one text for a conductor; a single user message is just its text.

    Of what is longer than `MAX_CHARACTERS` the middle of its turns, then of its history, is told in
    extracts, each with its position.
    """
    return crop_conversation(question)[0]


def crop_conversation(question: Question) -> tuple[str, Cropping | None]:
    """Return the conversation as a conductor is shown it, and how much of it if not all."""
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
    shown, left = _fit_turns(turns, max(asking, 0))
    text = "\n\n".join(shown)
    return text, Cropping(len(text), size, left) if size > MAX_CHARACTERS else None


@dataclass(frozen=True, slots=True)
class _Turn:
    """One turn of a conversation: a role's text."""

    label: str
    text: str
    """Empty: it is passed over."""
    is_material: bool
    """True if a model or a tool wrote it."""

    @property
    def line(self) -> str:
        """The turn as it stands where no others do."""
        return f"{self.label}: {self.text}" if self.text else ""

    @property
    def shown(self) -> str:
        """The turn as a conductor is shown it: it can begin no other turn."""
        if is_one_line(self.text):
            return self.line
        if self.is_material or has_heading(self.text) or has_label(self.text):
            return f"{self.label}:\n{wrap_in_tag(TURN, self.text)}"
        return self.line

    def outlined(self, most: int) -> _Turn:
        """Return the turn with so many characters."""
        return replace(self, text=outline_text(self.text, most))


def _turns_of(message: Message) -> list[_Turn]:
    """Split a message into its own turn and those of the tool results that it carries."""
    name = {Role.DEVELOPER: "System", Role.TOOL: "Tool result"}.get(message.role)
    label = name or message.role.value.capitalize()
    material = message.role in {Role.ASSISTANT, Role.TOOL}
    results = [_Turn("Tool result", text, is_material=True) for text in _tool_results(message)]
    own = _Turn(label, _own_text(message), is_material=material)
    return [*results, own] if own.text or not results else results


def _fit_turns(turns: list[_Turn], asking: int) -> tuple[list[str], int]:
    """Return the first turn, the one that asks, and as many of the newest as there is room for.

    Args:
        turns: empty ones are passed over.
        asking: which of them asks.

    Returns:
        What is shown, with extracts of the turns that are left out, and how many these are.
    """
    with_text = [index for index, turn in enumerate(turns) if turn.text]
    first = with_text[0] if with_text else asking
    if sum(len(turns[index].line) for index in with_text) <= MAX_CHARACTERS:
        return [turns[index].shown for index in with_text], 0
    room = MAX_CHARACTERS - MAX_EXTRACTS * EXTRACT_CHARACTERS
    room -= len(turns[first].line) + (len(turns[asking].line) if asking != first else 0)
    chosen: list[str] = []
    left: list[int] = []
    for index in reversed(with_text[1:]):
        if index != asking:
            room -= len(turns[index].line)
        if index == asking or room >= 0:
            chosen.append(turns[index].shown)
        else:
            left.append(index)
    gap = [_describe_left_turns([turn.line for turn in turns], sorted(left))] if left else []
    return [turns[first].shown, *gap, *reversed(chosen)], len(left)


def _describe_left_turns(turns: list[str], left: list[int]) -> str:
    """Say how many turns are left out, and how some of them begin, evenly spaced."""
    lines = (
        f"[turn {index + 1} of {len(turns)}] {_extract_at(turns[index], 0)}"
        for index in _evenly_spaced(left, MAX_EXTRACTS - 1)
    )
    return "\n".join([f"[{len(left)} earlier turns are left out; so they begin:]", *lines])


def outline_text(text: str, most: int) -> str:
    """Return the text, or its two ends with extracts, and their places, of what is left out.

    Args:
        text: what may be too long.
        most: characters that are shown of it, about a tenth of them extracts.
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
    """Return a line of what stands there, from the beginning of a word."""
    piece = text[at : at + EXTRACT_CHARACTERS - _PLACE_CHARACTERS]
    if at and not text[at - 1].isspace():
        piece = piece.partition(" ")[2] or piece
    return f"{' '.join(piece.split())}…"


def _evenly_spaced(values: list[int], most: int) -> list[int]:
    """Return at most `most` of the values, evenly spaced, the first among them."""
    count = min(len(values), most)
    return [values[len(values) * number // count] for number in range(count)]


def clip_text(text: str, most: int) -> str:
    """Return the text, or its two ends with a note of what stands between them."""
    if len(text) <= most:
        return text
    head, tail = most * 2 // 3, most // 3
    return f"{text[:head]}\n[{len(text) - head - tail} characters are left out]\n{text[-tail:]}"


def clip_to_tokens(text: str, most: int) -> str:
    """Return the text, or its two ends if it has more than about `most` tokens."""
    tokens = estimate_tokens(text)
    return text if tokens <= most else clip_text(text, len(text) * most // tokens)


def _own_text(message: Message) -> str:
    """Return the message's text, with pictures and calls in words."""
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
    """Return the index of the user's last message before the runs of `chain` called a tool.

    If no user spoke it is the last message.
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
    """Return the earlier turns, marked at their end to be cached if the one that asks was marked.

    What asks is written anew for each step and each turn; what stands before it repeats.
    """
    mark = next((part.cache for part in reversed(asking.parts) if part.cache), None)
    if mark is None or not earlier or not earlier[-1].parts or earlier[-1].parts[-1].cache:
        return earlier
    *before, last = earlier
    *parts, end = last.parts
    return (*before, replace(last, parts=(*parts, replace(end, cache=mark))))


def without_prefill(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return the turns without the beginning of an answer that an assistant's last turn is."""
    if messages and messages[-1].role is Role.ASSISTANT:
        return messages[:-1]
    return messages


def turns_for_step(
    messages: tuple[Message, ...], round_number: int, step: int, chain: Collection[RunId]
) -> tuple[Message, ...]:
    """Return the turns without the calls and results of other steps of the runs of `chain`."""
    if not chain:
        return messages
    return tuple(_step_turns(messages, round_number, step, chain))


def _step_turns(
    messages: tuple[Message, ...], round_number: int, step: int, chain: Collection[RunId]
) -> Iterator[Message]:
    for message in messages:
        places = [_call_origin(part, chain) for part in message.parts]
        if not any(places):
            yield message
            continue
        mine = tuple(
            part
            for part, place in zip(message.parts, places, strict=True)
            if place is None or (place.round, place.step) == (round_number, step)
        )
        if any(not isinstance(part, Text) for part in mine) or message.role is Role.USER:
            yield replace(message, parts=mine)


def turns_by_round(
    messages: tuple[Message, ...], rounds: int, step: int, chain: Collection[RunId]
) -> list[list[Message]]:
    """Return the turns of each round, without the calls and results of other steps than that one.

    Args:
        messages: what came after the question.
        rounds: how many there are, the present one among them.
        step: the step whose calls and results are kept.
        chain: the runs that have executed them.
    """
    turns: list[list[Message]] = [[] for _ in range(rounds)]
    number = 0
    for message in messages:
        places = [place for part in message.parts if (place := _call_origin(part, chain))]
        number = min(max((place.round for place in places), default=number), rounds - 1)
        turns[number] += _step_turns((message,), number, step, chain)
    return turns


def without_calls(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return the turns with calls of tools and their results as text, for a model without tools.

    Some providers refuse calls in a request without tools.
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
    """Return where a call or a result belongs; None if it is neither, or of no run of the chain."""
    if isinstance(part, ToolCall):
        place = decode_call_id(part.id)
    elif isinstance(part, ToolResult):
        place = decode_call_id(part.call_id)
    else:
        return None
    return place if place is not None and place.run in chain else None
