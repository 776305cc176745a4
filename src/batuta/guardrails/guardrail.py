"""A policy looks at a text and redacts, flags or blocks what it finds; the run says that it did.

What it found is never recorded: the record has the policy's name, the place, the action and the
count.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby

import anyio.to_thread
import orjson

from batuta.core import (
    File,
    GuardrailTriggered,
    Message,
    Part,
    Question,
    Reply,
    Step,
    Text,
    ToolCall,
    ToolResult,
    Workflow,
)
from batuta.guardrails.side_texts import find_side_texts, replace_prose

logger = logging.getLogger(__name__)

TextSpan = tuple[int, int]
"""Where something stands in a text: from, to."""
Detector = Callable[[str], Iterable[TextSpan]]
"""What a policy looks for. Pure."""
MAX_INLINE_CHARACTERS = 4_000
"""Characters beyond which a text is looked at in a thread, so that nobody else waits."""


class GuardrailStage(StrEnum):
    """Where a policy looks."""

    INPUT = "input"
    """The caller's conversation, before anybody sees it."""
    BETWEEN = "between"
    """A step's reply, before it is recorded and read by other agents."""
    OUTPUT = "output"
    """The answer, before the caller sees it."""


class GuardrailAction(StrEnum):
    """What is done about a finding."""

    REDACT = "redact"
    """It is replaced by a note in brackets."""
    BLOCK = "block"
    """The question is refused; a step's reply counts as failed."""
    FLAG = "flag"
    """It stays; the record says that it was there."""


_ACTION_RECORD = {
    GuardrailAction.REDACT: "redacted",
    GuardrailAction.BLOCK: "blocked",
    GuardrailAction.FLAG: "flagged",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Guardrail:
    """One rule."""

    name: str
    detect: Detector
    stages: frozenset[GuardrailStage]
    action: GuardrailAction = GuardrailAction.REDACT
    fail_closed: bool = True
    """Whether what could not be looked at is blocked; False: it passes, and the record says so."""
    conversation: bool = False
    """Whether only the conversation itself is looked at, not what is said beside it."""
    needs_thread: bool = False
    """Whether looking may wait for another process, so that it needs a thread."""


@dataclass(frozen=True, slots=True)
class GuardrailResult:
    """A text that policies have looked at."""

    text: str
    actions: tuple[GuardrailTriggered, ...] = ()
    blocked_by: str | None = None
    """The policy that forbids it."""


def apply_guardrails(policies: Iterable[Guardrail], text: str, where: str) -> GuardrailResult:
    """The text after every policy, in their order; also of a blocked one the findings are gone."""
    acts: list[GuardrailTriggered] = []
    blocked: str | None = None
    for policy in policies:
        try:
            spans = _merge_spans(policy.detect(text))
        except Exception as error:  # noqa: BLE001 - a policy that breaks decides by its setting
            logger.warning("policy %s failed with %s", policy.name, type(error).__name__)
            acts.append(GuardrailTriggered(policy=policy.name, where=where, action="failed"))
            if policy.fail_closed:
                return GuardrailResult(_removal_note(policy), tuple(acts), blocked or policy.name)
            continue
        if not spans:
            continue
        acts.append(
            GuardrailTriggered(
                policy=policy.name,
                where=where,
                action=_ACTION_RECORD[policy.action],
                count=len(spans),
            )
        )
        if policy.action is GuardrailAction.BLOCK:
            blocked = blocked or policy.name
        if policy.action is not GuardrailAction.FLAG:
            text = _replace_spans(text, spans, _removal_note(policy))
    return GuardrailResult(text, tuple(acts), blocked)


def _strict_guardrail(policy: Guardrail) -> Guardrail:
    """The policy where nothing can be redacted."""
    return (
        policy
        if policy.action is GuardrailAction.FLAG
        else replace(policy, action=GuardrailAction.BLOCK)
    )


def _removal_note(policy: Guardrail) -> str:
    return f"[removed by {policy.name}]"


def _merge_spans(spans: Iterable[TextSpan]) -> list[TextSpan]:
    """The spans in order, those that overlap as one."""
    merged: list[TextSpan] = []
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _replace_spans(text: str, spans: list[TextSpan], note: str) -> str:
    parts: list[str] = []
    at = 0
    for start, end in spans:
        parts += (text[at:start], note)
        at = end
    return "".join((*parts, text[at:]))


class Guardrails:
    """The policies of a served model, by place; it is asked only where one of them looks."""

    def __init__(self, policies: Iterable[Guardrail] = ()) -> None:
        chosen = tuple(policies)
        self.names = tuple(policy.name for policy in chosen)
        if len(set(self.names)) != len(self.names):
            raise ValueError("two policies have the same name")
        self._on = {
            place: tuple(p for p in chosen if place in p.stages) for place in GuardrailStage
        }
        self.stages = frozenset(place for place, policies in self._on.items() if policies)
        """Where any policy looks."""

    async def check_question(
        self, question: Question
    ) -> tuple[Question, tuple[GuardrailTriggered, ...], str]:
        """The question as it may be asked, what was done, and who forbids it (or nothing)."""
        policies = self._on[GuardrailStage.INPUT]
        if not policies:
            return question, (), ""
        acts: list[GuardrailTriggered] = []
        blocked = ""
        messages: list[Message] = []
        for number, message in enumerate(question.messages):
            parts: list[Part] = []
            place = f"{GuardrailStage.INPUT}:message {number}"
            for part in await _joined_where_needed(policies, message.parts, place):
                clean, found = await _apply_to_part(policies, part, place)
                parts.append(clean)
                acts += found.actions
                blocked = blocked or found.blocked_by or ""
            thought = await _apply_to_text(
                policies, message.reasoning, f"{GuardrailStage.INPUT}:message {number}"
            )
            acts += thought.actions
            blocked = blocked or thought.blocked_by or ""
            kept = message.thoughts if thought.text == message.reasoning else ()
            clean_message = replace(
                message, parts=tuple(parts), reasoning=thought.text, thoughts=kept
            )
            messages.append(clean_message)
        question, beside, forbidden = await self._beside(question)
        question = replace(question, messages=tuple(messages))
        return question, (*acts, *beside), blocked or forbidden

    async def workflow(
        self, workflow: Workflow
    ) -> tuple[Workflow, tuple[GuardrailTriggered, ...], str]:
        """A caller's own workflow as it may be run, what was done, and who forbids it."""
        policies, acts, blocked = self._on[GuardrailStage.INPUT], list[GuardrailTriggered](), ""
        steps: list[Step] = []
        for number, step in enumerate(workflow.steps):
            found = await _apply_to_text(
                policies, step.subtask, f"{GuardrailStage.INPUT}:subtask {number}"
            )
            acts += found.actions
            blocked = blocked or found.blocked_by or ""
            steps.append(replace(step, subtask=found.text))
        return Workflow(tuple(steps)), tuple(acts), blocked

    async def _beside(
        self, question: Question
    ) -> tuple[Question, tuple[GuardrailTriggered, ...], str]:
        """What is said beside the conversation; what cannot be redacted is blocked."""
        policies = tuple(p for p in self._on[GuardrailStage.INPUT] if not p.conversation)
        if not policies:
            return question, (), ""
        side = find_side_texts(question)
        fixed = tuple(_strict_guardrail(policy) for policy in policies)
        prose = await _all_screened(policies, side.prose)
        names = await _all_screened(fixed, side.fixed)
        clean = {old: new.text for old, new in zip(side.prose, prose, strict=True)}
        found = (*prose, *names)
        if any(old != new for old, new in clean.items()):
            question = replace_prose(question, clean)
        acts = tuple(act for each in found for act in each.actions)
        return question, acts, next((each.blocked_by for each in found if each.blocked_by), "")

    async def check_reply(
        self, reply: Reply, place: GuardrailStage, step: int
    ) -> tuple[Reply, tuple[GuardrailTriggered, ...], str]:
        """The reply as it may be read, what was done, and who forbids it (or nothing)."""
        policies = self._on[place]
        if not policies:
            return reply, (), ""
        where = f"{place}:step {step}"
        if reply.alternatives:
            return await self._check_choices(reply, place, step)
        text = await _apply_to_text(policies, reply.text, where)
        thought = await _apply_to_text(policies, reply.reasoning, where)
        found = [text, thought]
        calls: list[ToolCall] = []
        for call in reply.tool_calls:
            arguments = await _apply_to_text(policies, _plain_arguments(call.arguments), where)
            found.append(arguments)
            calls.append(replace(call, arguments=arguments.text))
        clean = replace(reply, text=text.text, reasoning=thought.text, tool_calls=tuple(calls))
        if thought.text != reply.reasoning:
            clean = replace(clean, thoughts=())  # what is signed cannot be changed
        if text.text != reply.text:
            clean = replace(clean, logprobs=())  # they spell what was redacted
        acts = tuple(act for each in found for act in each.actions)
        return clean, acts, next((each.blocked_by for each in found if each.blocked_by), "")

    async def _check_choices(
        self, reply: Reply, place: GuardrailStage, step: int
    ) -> tuple[Reply, tuple[GuardrailTriggered, ...], str]:
        """Several replies to one prompt, each as `check_reply` lets it pass."""
        first, *others = [
            await self.check_reply(replace(said, alternatives=()), place, step)
            for said in reply.choices
        ]
        acts = tuple(act for _, found, _ in (first, *others) for act in found)
        blocked = next((policy for _, _, policy in (first, *others) if policy), "")
        clean = replace(first[0], alternatives=tuple(other for other, _, _ in others))
        return clean, acts, blocked


NO_GUARDRAILS = Guardrails()
"""Where the settings name no policy."""


async def _apply_to_part(
    policies: tuple[Guardrail, ...], part: Part, where: str
) -> tuple[Part, GuardrailResult]:
    """A part of a message with its text screened; what is attached is not looked into."""
    if isinstance(part, Text):
        found = await _apply_to_text(policies, part.text, where)
        return replace(part, text=found.text), found
    if isinstance(part, ToolResult):
        found = await _apply_to_text(policies, part.content, where)
        return replace(part, content=found.text), found
    if isinstance(part, ToolCall):
        found = await _apply_to_text(policies, _plain_arguments(part.arguments), where)
        return replace(part, arguments=found.text), found
    if isinstance(part, File):
        found = await _apply_to_text(policies, part.name, where)
        return replace(part, name=found.text), found
    return part, GuardrailResult("")


def _plain_arguments(arguments: str) -> str:
    """The JSON without escapes that its readers undo; as it is if it is none."""
    if "\\" not in arguments:
        return arguments
    try:
        return orjson.dumps(orjson.loads(arguments)).decode()
    except (orjson.JSONDecodeError, TypeError):
        return arguments


async def _joined_where_needed(
    policies: tuple[Guardrail, ...], parts: tuple[Part, ...], where: str
) -> tuple[Part, ...]:
    """The parts; neighbouring texts as one if a policy finds more in them together.

    Models read them without a seam.
    """
    joined: list[Part] = []
    for texts, group in groupby(parts, key=lambda part: isinstance(part, Text)):
        run = list(group)
        together = [part for part in run if isinstance(part, Text)]
        if not texts or len(together) < 2:  # noqa: PLR2004 - a seam needs two
            joined += run
            continue
        whole = "".join(part.text for part in together)
        apart = [await _apply_to_text(policies, part.text, where) for part in together]
        found = await _apply_to_text(policies, whole, where)
        if found.text == "".join(each.text for each in apart) and bool(found.blocked_by) == any(
            each.blocked_by for each in apart
        ):
            joined += run
        else:
            joined.append(replace(together[-1], text=whole))
    return tuple(joined)


async def _all_screened(
    policies: tuple[Guardrail, ...], texts: tuple[str, ...]
) -> list[GuardrailResult]:
    """Each of the texts; in a thread, if they are long together."""

    def look() -> list[GuardrailResult]:
        return [
            apply_guardrails(policies, text, f"{GuardrailStage.INPUT}:options") for text in texts
        ]

    if sum(map(len, texts)) <= MAX_INLINE_CHARACTERS and not any(
        policy.needs_thread for policy in policies
    ):
        return look()
    return await anyio.to_thread.run_sync(look)


async def _apply_to_text(policies: tuple[Guardrail, ...], text: str, where: str) -> GuardrailResult:
    if not text:
        return GuardrailResult(text)
    if len(text) <= MAX_INLINE_CHARACTERS and not any(policy.needs_thread for policy in policies):
        return apply_guardrails(policies, text, where)
    return await anyio.to_thread.run_sync(apply_guardrails, policies, text, where)
