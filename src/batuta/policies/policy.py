"""A policy looks at a text and redacts, flags or blocks what it finds; the run says that it did.

What it found is never told: the record has the policy's name, the place, the action and the
count.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

import anyio.to_thread

from batuta.core import Guarded, Message, Part, Question, Reply, Text, ToolCall, ToolResult

logger = logging.getLogger(__name__)

Span = tuple[int, int]
"""Where something stands in a text: from, to."""
Finder = Callable[[str], Iterable[Span]]
"""What a policy looks for. Pure."""
LONG = 4_000
"""Characters beyond which a text is looked at in a thread, so that nobody else waits."""


class Place(StrEnum):
    """Where a policy looks."""

    INPUT = "input"
    """The caller's conversation, before anybody sees it."""
    BETWEEN = "between"
    """A step's reply, before it is recorded and read by other agents."""
    OUTPUT = "output"
    """The answer, before the caller sees it."""


class Action(StrEnum):
    """What is done about a finding."""

    REDACT = "redact"
    """It is replaced by a note in brackets."""
    BLOCK = "block"
    """The question is refused; a step's reply counts as failed."""
    FLAG = "flag"
    """It stays; the record says that it was there."""


_DONE = {Action.REDACT: "redacted", Action.BLOCK: "blocked", Action.FLAG: "flagged"}


@dataclass(frozen=True, slots=True)
class Policy:
    """One rule."""

    name: str
    find: Finder
    on: frozenset[Place]
    action: Action = Action.REDACT
    closed: bool = True
    """Whether what could not be looked at is blocked; False: it passes, and the record says so."""
    waits: bool = False
    """Whether looking may wait for another process, so that it needs a thread."""


@dataclass(frozen=True, slots=True)
class Screened:
    """A text that policies have looked at."""

    text: str
    acts: tuple[Guarded, ...] = ()
    blocked: str | None = None
    """The policy that forbids it."""


def screen(policies: Iterable[Policy], text: str, where: str) -> Screened:
    """The text after every policy, in their order; also of a blocked one the findings are gone."""
    acts: list[Guarded] = []
    blocked: str | None = None
    for policy in policies:
        try:
            spans = _merged(policy.find(text))
        except Exception as error:  # noqa: BLE001 - a policy that breaks decides by its setting
            logger.warning("policy %s failed with %s", policy.name, type(error).__name__)
            acts.append(Guarded(policy.name, where, "failed"))
            if policy.closed:
                return Screened(_note(policy), tuple(acts), blocked or policy.name)
            continue
        if not spans:
            continue
        acts.append(Guarded(policy.name, where, _DONE[policy.action], len(spans)))
        if policy.action is Action.BLOCK:
            blocked = blocked or policy.name
        if policy.action is not Action.FLAG:
            text = _without(text, spans, _note(policy))
    return Screened(text, tuple(acts), blocked)


def _note(policy: Policy) -> str:
    return f"[removed by {policy.name}]"


def _merged(spans: Iterable[Span]) -> list[Span]:
    """The spans in order, those that overlap as one."""
    merged: list[Span] = []
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _without(text: str, spans: list[Span], note: str) -> str:
    parts: list[str] = []
    at = 0
    for start, end in spans:
        parts += (text[at:start], note)
        at = end
    return "".join((*parts, text[at:]))


class Policies:
    """The policies of a served model, by place."""

    def __init__(self, policies: Iterable[Policy] = ()) -> None:
        chosen = tuple(policies)
        self.names = tuple(policy.name for policy in chosen)
        if len(set(self.names)) != len(self.names):
            raise ValueError("two policies have the same name")
        self._on = {place: tuple(p for p in chosen if place in p.on) for place in Place}

    def on(self, place: Place) -> bool:
        """Whether any policy looks there."""
        return bool(self._on[place])

    async def question(self, question: Question) -> tuple[Question, tuple[Guarded, ...], str]:
        """The question as it may be asked, what was done, and who forbids it (or nothing)."""
        policies = self._on[Place.INPUT]
        if not policies:
            return question, (), ""
        acts: list[Guarded] = []
        blocked = ""
        messages: list[Message] = []
        for number, message in enumerate(question.messages):
            parts: list[Part] = []
            for part in message.parts:
                place = f"{Place.INPUT}:message {number}"
                clean, found = await _part(policies, part, place)
                parts.append(clean)
                acts += found.acts
                blocked = blocked or found.blocked or ""
            messages.append(replace(message, parts=tuple(parts)))
        return replace(question, messages=tuple(messages)), tuple(acts), blocked

    async def reply(
        self, reply: Reply, place: Place, step: int
    ) -> tuple[Reply, tuple[Guarded, ...], str]:
        """The reply as it may be read, what was done, and who forbids it (or nothing)."""
        policies = self._on[place]
        if not policies:
            return reply, (), ""
        where = f"{place}:step {step}"
        text = await _screened(policies, reply.text, where)
        thought = await _screened(policies, reply.reasoning, where)
        found = [text, thought]
        calls: list[ToolCall] = []
        for call in reply.tool_calls:
            arguments = await _screened(policies, call.arguments, where)
            found.append(arguments)
            calls.append(replace(call, arguments=arguments.text))
        clean = replace(reply, text=text.text, reasoning=thought.text, tool_calls=tuple(calls))
        acts = tuple(act for each in found for act in each.acts)
        return clean, acts, next((each.blocked for each in found if each.blocked), "")


async def _part(policies: tuple[Policy, ...], part: Part, where: str) -> tuple[Part, Screened]:
    """A part of a message with its text screened; a picture is not looked at."""
    if isinstance(part, Text):
        found = await _screened(policies, part.text, where)
        return replace(part, text=found.text), found
    if isinstance(part, ToolResult):
        found = await _screened(policies, part.content, where)
        return replace(part, content=found.text), found
    if isinstance(part, ToolCall):
        found = await _screened(policies, part.arguments, where)
        return replace(part, arguments=found.text), found
    return part, Screened("")


async def _screened(policies: tuple[Policy, ...], text: str, where: str) -> Screened:
    if not text:
        return Screened(text)
    if len(text) <= LONG and not any(policy.waits for policy in policies):
        return screen(policies, text, where)
    return await anyio.to_thread.run_sync(screen, policies, text, where)
