"""A conversation of several turns: what a conductor is shown of it, and which turns a step sees.

Within a workflow a tool's result goes to the step that asked for it and to no other: the id of
the call says which step that was.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from batuta.core import (
    Message,
    Part,
    Place,
    Question,
    Role,
    RunId,
    Text,
    ToolCall,
    ToolResult,
    place_of,
)

LONGEST = 32_000
"""Characters of a conversation that a conductor is shown: its window is small and it must decide,
not answer. Workers get the whole."""
LONGEST_TURN = 2_000
"""Characters of a turn other than the one that asks, where the whole is too long."""


def question_text(question: Question) -> str:
    """The conversation as one text for a conductor; a single user message is just its text.

    What is longer than `LONGEST` is cut in the middle of its turns, then of its history, and
    says so.
    """
    messages = question.messages
    if len(messages) == 1:
        return clipped(_said(messages[0]), LONGEST)
    at = asked(question)
    turns = [_turn(message) for message in messages]
    if sum(map(len, turns)) > LONGEST:
        turns = [
            clipped(turn, LONGEST // 2 if index == at else LONGEST_TURN)
            for index, turn in enumerate(turns)
        ]
    return "\n\n".join(_fitting([turn for turn in turns if turn], turns[at]))


def _fitting(turns: list[str], kept: str) -> list[str]:
    """The first turn, the one that asks, and as many of the newest as there is room for."""
    room = LONGEST - len(turns[0]) - len(kept)
    chosen: list[str] = []
    left = 0
    for turn in reversed(turns[1:]):
        if turn is not kept:
            room -= len(turn)
        if turn is kept or room >= 0:
            chosen.append(turn)
        else:
            left += 1
    gap = [f"[{left} earlier turns are left out]"] if left else []
    return [turns[0], *gap, *reversed(chosen)]


def clipped(text: str, most: int) -> str:
    """The text, or its two ends with a note of what stands between them."""
    if len(text) <= most:
        return text
    head, tail = most * 2 // 3, most // 3
    return f"{text[:head]}\n[{len(text) - head - tail} characters are left out]\n{text[-tail:]}"


def _turn(message: Message) -> str:
    said = _said(message)
    if not said:
        return ""
    name = {Role.DEVELOPER: "System", Role.TOOL: "Tool result"}.get(message.role)
    return f"{name or message.role.value.capitalize()}: {said}"


def _said(message: Message) -> str:
    """Its text; pictures, calls and results in words."""
    parts = [message.text] if message.text else []
    if message.images:
        several = "s" if len(message.images) > 1 else ""
        parts.append(f"[{len(message.images)} picture{several}]")
    for part in message.parts:
        if isinstance(part, ToolCall):
            parts.append(f"[calls {part.name} with {part.arguments}]")
        elif isinstance(part, ToolResult):
            parts.append(part.content)
    return "\n".join(parts)


def asked(question: Question, chain: Collection[RunId] = ()) -> int:
    """Which message asks: the last one of the user before the runs of `chain` called a tool.

    If no user spoke it is the last message.
    """
    said = question.messages
    if len(said) == 1:
        return 0
    if chain:
        end = next((i for i, m in enumerate(said) if _of_chain(m, chain)), None)
        said = said[:end]
    users = [i for i, message in enumerate(said) if message.role is Role.USER and message.text]
    users = users or [i for i, message in enumerate(said) if message.role is Role.USER]
    return users[-1] if users else max(len(said) - 1, 0)


def turns_of_step(
    messages: tuple[Message, ...], played: int, step: int, chain: Collection[RunId]
) -> tuple[Message, ...]:
    """The turns, without the calls and results of other steps that the runs of `chain` played."""
    if not chain:
        return messages
    return tuple(_own(messages, played, step, chain))


def _own(
    messages: tuple[Message, ...], played: int, step: int, chain: Collection[RunId]
) -> Iterator[Message]:
    for message in messages:
        places = [_place(part, chain) for part in message.parts]
        if not any(places):
            yield message
            continue
        mine = tuple(
            part
            for part, place in zip(message.parts, places, strict=True)
            if place is None or (place.round, place.step) == (played, step)
        )
        if any(not isinstance(part, Text) for part in mine) or message.role is Role.USER:
            yield Message(message.role, mine, message.name, message.reasoning)


def _of_chain(message: Message, chain: Collection[RunId]) -> bool:
    return any(_place(part, chain) for part in message.parts)


def _place(part: Part, chain: Collection[RunId]) -> Place | None:
    """Where a call or a result belongs; None if it is neither, or of no run of the chain."""
    if isinstance(part, ToolCall):
        place = place_of(part.id)
    elif isinstance(part, ToolResult):
        place = place_of(part.call_id)
    else:
        return None
    return place if place is not None and place.run in chain else None
