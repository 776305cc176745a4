"""A policy looks at a text and redacts, flags or blocks what it finds; the run says that it did.

What it found is never recorded: the record has the policy's name, the place, the action and the
count.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby
from time import monotonic
from typing import Any, Protocol, final, runtime_checkable

import anyio
import anyio.to_thread
import orjson
from anyio.lowlevel import checkpoint

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
from batuta.guardrails.grounded import GroundedPolicy
from batuta.guardrails.side_texts import find_side_texts, replace_prose
from batuta.offload import ProcessPool, ProcessTimeoutError
from batuta.schemas import SchemaTimeoutError

logger = logging.getLogger(__name__)

TextSpan = tuple[int, int]
"""A span of a text: start and end."""
Detector = Callable[[str], Iterable[TextSpan]]
"""A pure function from a text to the spans that a guardrail looks for."""
MAX_INLINE_CHARACTERS = 4_000
"""Characters beyond which a text is looked at in a thread, so that nobody else waits."""


MAX_SECONDS = 10.0
"""Seconds that all policies of one question or reply together may spend in processes."""
TIMED_OUT = "timed out"
"""The action of a policy that ran out of time."""
_TIMEOUTS = (ProcessTimeoutError, SchemaTimeoutError)
_PROCESSES = ProcessPool()
atexit.register(_PROCESSES.close)


@runtime_checkable
class ProcessDetector(Protocol):
    """A detector whose work on some texts is done in a process that can be ended."""

    def __call__(self, text: str, /) -> Iterable[TextSpan]:
        """Find it here, however long that takes."""
        ...

    def process_call(self, text: str) -> tuple[Any, ...] | None:
        """Return the function to call there and its arguments; None if it is quick here."""
        ...


class GuardrailStage(StrEnum):
    """The stage at which a guardrail looks."""

    INPUT = "input"
    """The caller's conversation, before anybody sees it."""
    BETWEEN = "between"
    """A step's reply, before it is recorded and read by other agents."""
    OUTPUT = "output"
    """The answer, before the caller sees it."""


class GuardrailAction(StrEnum):
    """The action that follows a finding."""

    REDACT = "redact"
    """The finding is replaced by a note in brackets."""
    BLOCK = "block"
    """The question is refused; a step's reply counts as failed."""
    FLAG = "flag"
    """The finding stays; the record says that it was there."""


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


@final
class GuardrailCheck:
    """The policies that check the texts of one question or reply, within one common time limit."""

    def __init__(self, policies: Iterable[Guardrail], seconds: float = MAX_SECONDS) -> None:
        self.policies = tuple(policies)
        self._end = monotonic() + seconds

    def beside(self) -> GuardrailCheck:
        """Keep the policies that look beside the conversation too, within the same time."""
        return self._with(policy for policy in self.policies if not policy.conversation)

    def strict(self) -> GuardrailCheck:
        """Block what this check would redact, within the same time."""
        return self._with(_strict_guardrail(policy) for policy in self.policies)

    def _with(self, policies: Iterable[Guardrail]) -> GuardrailCheck:
        return GuardrailCheck(policies, self._end - monotonic())

    async def apply(self, text: str, where: str) -> GuardrailResult:
        """Return the text without what each policy in turn finds, even if one blocks it."""
        acts: list[GuardrailTriggered] = []
        blocked: str | None = None
        for policy in self.policies if text else ():
            try:
                spans = _merge_spans(await self._find(policy, text))
            except Exception as error:  # noqa: BLE001 - a policy that breaks decides by its setting
                logger.warning("policy %s failed with %s", policy.name, type(error).__name__)
                action = TIMED_OUT if isinstance(error, _TIMEOUTS) else "failed"
                acts.append(GuardrailTriggered(policy=policy.name, where=where, action=action))
                if policy.fail_closed:
                    note = _removal_note(policy)
                    return GuardrailResult(note, tuple(acts), blocked or policy.name)
                continue
            if not spans:
                continue
            action = _ACTION_RECORD[policy.action]
            acts.append(
                GuardrailTriggered(policy=policy.name, where=where, action=action, count=len(spans))
            )
            if policy.action is GuardrailAction.BLOCK:
                blocked = blocked or policy.name
            if policy.action is not GuardrailAction.FLAG:
                text = _replace_spans(text, spans, _removal_note(policy))
        return GuardrailResult(text, tuple(acts), blocked)

    async def _find(self, policy: Guardrail, text: str) -> list[TextSpan]:
        """Return what the policy finds; what may take long is cancelled with the caller.

        Raises:
            Exception: whatever else the policy raises.
        """
        detect = policy.detect
        call = detect.process_call(text) if isinstance(detect, ProcessDetector) else None
        if call is not None:
            left = self._end - monotonic()
            if left <= 0:
                raise ProcessTimeoutError("there was no time left to look")
            with anyio.move_on_after(left):
                found = await _PROCESSES.call(*call, wall_seconds=left)
                return [(start, end) for start, end in found]
            raise ProcessTimeoutError("it took too long")
        if len(text) > MAX_INLINE_CHARACTERS or policy.needs_thread:
            return await anyio.to_thread.run_sync(lambda: list(detect(text)))
        await checkpoint()  # each text takes milliseconds, and there may be thousands
        return list(detect(text))


def describe_block(policy: str, acts: Iterable[GuardrailTriggered], what: str) -> str:
    """Say why a text goes no further: the guardrail forbids it, or could not look at it in time."""
    if any(act.policy == policy and act.action == TIMED_OUT for act in acts):
        return f"the policy {policy} could not check {what} in time"
    return f"the policy {policy} forbids {what}"


def _strict_guardrail(policy: Guardrail) -> Guardrail:
    """Return the policy where nothing can be redacted."""
    return (
        policy
        if policy.action is GuardrailAction.FLAG
        else replace(policy, action=GuardrailAction.BLOCK)
    )


def _removal_note(policy: Guardrail) -> str:
    return f"[removed by {policy.name}]"


def _merge_spans(spans: Iterable[TextSpan]) -> list[TextSpan]:
    """Return the spans in order, those that overlap as one."""
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

    def __init__(
        self, policies: Iterable[Guardrail] = (), grounded: GroundedPolicy | None = None
    ) -> None:
        chosen = tuple(policies)
        self.grounded = grounded
        """It is carried out by the engine, after the others have seen the answer."""
        self.names = tuple(each.name for each in (*chosen, grounded) if each is not None)
        if len(set(self.names)) != len(self.names):
            raise ValueError("two policies have the same name")
        self._on = {
            place: tuple(p for p in chosen if place in p.stages) for place in GuardrailStage
        }
        looked_at = {place for place, policies in self._on.items() if policies}
        self.stages = frozenset(looked_at | ({GuardrailStage.OUTPUT} if grounded else set()))
        """The stages at which any guardrail looks."""

    async def check_question(
        self, question: Question
    ) -> tuple[Question, tuple[GuardrailTriggered, ...], str]:
        """Return the question as it may be asked, what was done, and who forbids it, if anybody."""
        if not self._on[GuardrailStage.INPUT]:
            return question, (), ""
        check = self._check(GuardrailStage.INPUT)
        acts: list[GuardrailTriggered] = []
        blocked = ""
        messages: list[Message] = []
        for number, message in enumerate(question.messages):
            parts: list[Part] = []
            place = f"{GuardrailStage.INPUT}:message {number}"
            for part in await _joined_where_needed(check, message.parts, place):
                clean, found = await _apply_to_part(check, part, place)
                parts.append(clean)
                acts += found.actions
                blocked = blocked or found.blocked_by or ""
            thought = await check.apply(message.reasoning, place)
            acts += thought.actions
            blocked = blocked or thought.blocked_by or ""
            kept = message.thoughts if thought.text == message.reasoning else ()
            clean_message = replace(
                message, parts=tuple(parts), reasoning=thought.text, thoughts=kept
            )
            messages.append(clean_message)
        question, beside, forbidden = await self._beside(question, check)
        question = replace(question, messages=tuple(messages))
        return question, (*acts, *beside), blocked or forbidden

    async def workflow(
        self, workflow: Workflow
    ) -> tuple[Workflow, tuple[GuardrailTriggered, ...], str]:
        """Return a caller's own workflow as it may be run, what was done, and who forbids it."""
        check, acts, blocked = self._check(GuardrailStage.INPUT), list[GuardrailTriggered](), ""
        steps: list[Step] = []
        for number, step in enumerate(workflow.steps):
            found = await check.apply(step.subtask, f"{GuardrailStage.INPUT}:subtask {number}")
            acts += found.actions
            blocked = blocked or found.blocked_by or ""
            steps.append(replace(step, subtask=found.text))
        return Workflow(tuple(steps)), tuple(acts), blocked

    def _check(self, place: GuardrailStage) -> GuardrailCheck:
        return GuardrailCheck(self._on[place])

    async def _beside(
        self, question: Question, check: GuardrailCheck
    ) -> tuple[Question, tuple[GuardrailTriggered, ...], str]:
        """Check the texts beside the conversation; one that cannot be redacted is blocked."""
        check = check.beside()
        if not check.policies:
            return question, (), ""
        side, where = find_side_texts(question), f"{GuardrailStage.INPUT}:options"
        prose = [await check.apply(text, where) for text in side.prose]
        strict = check.strict()
        names = [await strict.apply(text, where) for text in side.fixed]
        clean = {old: new.text for old, new in zip(side.prose, prose, strict=True)}
        found = (*prose, *names)
        if any(old != new for old, new in clean.items()):
            question = replace_prose(question, clean)
        acts = tuple(act for each in found for act in each.actions)
        return question, acts, next((each.blocked_by for each in found if each.blocked_by), "")

    async def check_reply(
        self, reply: Reply, place: GuardrailStage, step: int
    ) -> tuple[Reply, tuple[GuardrailTriggered, ...], str]:
        """Return the reply as it may be read, what was done, and who forbids it (or nothing)."""
        if not self._on[place]:
            return reply, (), ""
        where = f"{place}:step {step}"
        if reply.alternatives:
            return await self._check_choices(reply, place, step)
        check = self._check(place)
        text = await check.apply(reply.text, where)
        thought = await check.apply(reply.reasoning, where)
        found = [text, thought]
        calls: list[ToolCall] = []
        for call in reply.tool_calls:
            arguments = await check.apply(_plain_arguments(call.arguments), where)
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
        """Return several replies to one prompt, each as `check_reply` lets it pass."""
        first, *others = [
            await self.check_reply(replace(choice, alternatives=()), place, step)
            for choice in reply.choices
        ]
        acts = tuple(act for _, found, _ in (first, *others) for act in found)
        blocked = next((policy for _, _, policy in (first, *others) if policy), "")
        clean = replace(first[0], alternatives=tuple(other for other, _, _ in others))
        return clean, acts, blocked


NO_GUARDRAILS = Guardrails()
"""The guardrails of settings that name none."""


async def _apply_to_part(
    check: GuardrailCheck, part: Part, where: str
) -> tuple[Part, GuardrailResult]:
    """Return a part of a message with its text screened; what is attached is not looked into."""
    if isinstance(part, Text):
        found = await check.apply(part.text, where)
        return replace(part, text=found.text), found
    if isinstance(part, ToolResult):
        found = await check.apply(part.content, where)
        return replace(part, content=found.text), found
    if isinstance(part, ToolCall):
        found = await check.apply(_plain_arguments(part.arguments), where)
        return replace(part, arguments=found.text), found
    if isinstance(part, File):
        found = await check.apply(part.name, where)
        return replace(part, name=found.text), found
    return part, GuardrailResult("")


def _plain_arguments(arguments: str) -> str:
    """Return the JSON without escapes that its readers undo; as it is if it is none."""
    if "\\" not in arguments:
        return arguments
    try:
        return orjson.dumps(orjson.loads(arguments)).decode()
    except (orjson.JSONDecodeError, TypeError):
        return arguments


async def _joined_where_needed(
    check: GuardrailCheck, parts: tuple[Part, ...], where: str
) -> tuple[Part, ...]:
    """Return the parts; neighbouring texts as one if a policy finds more in them together.

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
        apart = [await check.apply(part.text, where) for part in together]
        found = await check.apply(whole, where)
        if found.text == "".join(each.text for each in apart) and bool(found.blocked_by) == any(
            each.blocked_by for each in apart
        ):
            joined += run
        else:
            joined.append(replace(together[-1], text=whole))
    return tuple(joined)
