"""Policies that check texts and redact, flag or block what they find.

The run records the policy's name, the stage, the action and the number of findings, never the
findings themselves.
"""

from __future__ import annotations

import atexit
import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby
from time import monotonic
from typing import Any, Protocol, final, runtime_checkable

import anyio
import anyio.to_thread
from anyio.lowlevel import checkpoint

from batuta.core import (
    File,
    GuardrailTriggered,
    Message,
    Part,
    Question,
    Reply,
    ServerCall,
    Step,
    Text,
    ToolCall,
    ToolResult,
    Workflow,
)
from batuta.core.server_tools import CODE_INTERPRETER
from batuta.guardrails.grounded import GroundedPolicy
from batuta.guardrails.side_texts import find_side_texts, replace_prose
from batuta.offload import ProcessPool, ProcessTimeoutError
from batuta.schemas import SchemaTimeoutError

logger = logging.getLogger(__name__)

TextSpan = tuple[int, int]
"""A span of a text: start and end (exclusive), in characters."""
Detector = Callable[[str], Iterable[TextSpan]]
"""A pure function from a text to the spans that a guardrail looks for."""
MAX_INLINE_CHARACTERS = 4_000
"""Maximum number of characters of a text that is checked on the event loop."""
MAX_SECONDS = 10.0
"""Seconds for all policies together that check one question or reply in other processes."""
TIMED_OUT = "timed out"
"""The recorded action of a policy that ran out of time."""
FAILED = "failed"
"""The recorded action of a policy whose check raised another error."""
_TIMEOUTS = (ProcessTimeoutError, SchemaTimeoutError)
_PROCESSES = ProcessPool()
atexit.register(_PROCESSES.close)


@runtime_checkable
class ProcessDetector(Protocol):
    """A detector that checks some texts in a process that can be killed."""

    def __call__(self, text: str, /) -> Iterable[TextSpan]:
        """Detect in this process, however long that takes."""
        ...

    def process_call(self, text: str) -> tuple[Any, ...] | None:
        """Return the function and arguments for another process; None if none is needed."""
        ...


class GuardrailStage(StrEnum):
    """The stage at which a guardrail checks texts."""

    INPUT = "input"
    """The caller's request, before any model reads it."""
    BETWEEN = "between"
    """A step's reply, before it is recorded and read by other workers."""
    OUTPUT = "output"
    """The answer, before the caller sees it."""


class GuardrailAction(StrEnum):
    """The action on a finding."""

    REDACT = "redact"
    """The finding is replaced by a note in brackets; where that is impossible, as in the name of a
    tool, the request is refused."""
    BLOCK = "block"
    """The question is refused; a step's reply counts as failed."""
    FLAG = "flag"
    """The finding stays; the run records that it was there."""


_ACTION_RECORD = {
    GuardrailAction.REDACT: "redacted",
    GuardrailAction.BLOCK: "blocked",
    GuardrailAction.FLAG: "flagged",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Guardrail:
    """One policy."""

    name: str
    detect: Detector
    stages: frozenset[GuardrailStage]
    action: GuardrailAction = GuardrailAction.REDACT
    fail_closed: bool = True
    """Whether a text that could not be checked is blocked; if not, it passes unchecked. Both are
    recorded."""
    only_conversation: bool = False
    """Whether only messages and answers are checked, and not texts such as descriptions of tools,
    reasoning and the calls of a reply."""
    needs_thread: bool = False
    """Whether the check may wait for another process, so that it needs a thread."""


@dataclass(frozen=True, slots=True)
class GuardrailResult:
    """A text after the policies' check."""

    text: str
    actions: tuple[GuardrailTriggered, ...] = ()
    blocked_by: str | None = None
    """The name of the first policy that blocks the text; None if no policy does."""


@final
class GuardrailCheck:
    """The policies that check the texts of one question or reply.

    Their checks in other processes must all end within `seconds` of this object's creation.
    """

    def __init__(self, policies: Iterable[Guardrail], seconds: float = MAX_SECONDS) -> None:
        self.policies = tuple(policies)
        self._end = monotonic() + seconds

    def beside(self) -> GuardrailCheck:
        """Return a check of texts beside the conversation, with the same deadline."""
        return self._with(policy for policy in self.policies if not policy.only_conversation)

    def strict(self) -> GuardrailCheck:
        """Return a check that blocks what this check would redact, with the same deadline."""
        redact, block = GuardrailAction.REDACT, GuardrailAction.BLOCK
        return self._with(
            replace(policy, action=block) if policy.action is redact else policy
            for policy in self.policies
        )

    def _with(self, policies: Iterable[Guardrail]) -> GuardrailCheck:
        return GuardrailCheck(policies, self._end - monotonic())

    async def apply(self, text: str, where: str) -> GuardrailResult:
        """Apply each policy in turn, even after one blocks; return the text and the actions.

        If a policy that fails closed cannot check the text, the note of its removal replaces all of
        the text, and no further policy is applied.

        Args:
            text: the text to check.
            where: the place of the text in the run, for the record.
        """
        acts: list[GuardrailTriggered] = []
        blocked: str | None = None
        for policy in self.policies if text else ():
            try:
                spans = _merge_spans(await self._find(policy, text))
            except Exception as error:  # noqa: BLE001 - the policy's setting decides
                logger.warning("policy %s failed with %s", policy.name, type(error).__name__)
                action = TIMED_OUT if isinstance(error, _TIMEOUTS) else FAILED
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
        """Return what the policy finds; a check in another process is cancelled with the caller.

        Raises:
            ProcessTimeoutError: no time is left, or the check took too long.
            Exception: any error of the policy.
        """
        detect = policy.detect
        call = detect.process_call(text) if isinstance(detect, ProcessDetector) else None
        if call is not None:
            left = self._end - monotonic()
            if left <= 0:
                raise ProcessTimeoutError("no time was left for the check")
            with anyio.move_on_after(left):
                spans = await _PROCESSES.call(*call, wall_seconds=left)
                return [(start, end) for start, end in spans]
            raise ProcessTimeoutError("the check took too long")
        if len(text) > MAX_INLINE_CHARACTERS or policy.needs_thread:
            return await anyio.to_thread.run_sync(lambda: list(detect(text)))
        await checkpoint()  # each text takes milliseconds, and there may be thousands
        return list(detect(text))


def describe_block(policy: str, acts: Iterable[GuardrailTriggered], what: str) -> str:
    """Return why a text is blocked: the policy forbids it, or could not check it."""
    actions = {act.action for act in acts if act.policy == policy}
    if TIMED_OUT in actions:
        return f"the policy {policy} could not check {what} in time"
    if FAILED in actions:
        return f"the policy {policy} could not check {what}: the check failed"
    return f"the policy {policy} forbids {what}"


def _removal_note(policy: Guardrail) -> str:
    return f"[removed by {policy.name}]"


def _merge_spans(spans: Iterable[TextSpan]) -> list[TextSpan]:
    """Return the spans in order, with overlapping and adjacent ones merged."""
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
    """The policies of a server, by stage."""

    def __init__(
        self, policies: Iterable[Guardrail] = (), grounded: GroundedPolicy | None = None
    ) -> None:
        """Sort the policies by stage.

        Raises:
            ValueError: two policies have the same name.
        """
        chosen = tuple(policies)
        self.grounded = grounded
        """The policy that the engine carries out after all others have checked the answer."""
        self.names = tuple(each.name for each in (*chosen, grounded) if each is not None)
        if len(set(self.names)) != len(self.names):
            raise ValueError("two policies have the same name")
        self._on = {
            stage: tuple(p for p in chosen if stage in p.stages) for stage in GuardrailStage
        }
        checked = {stage for stage, policies in self._on.items() if policies}
        self.stages = frozenset(checked | ({GuardrailStage.OUTPUT} if grounded else set()))
        """The stages at which any policy checks."""

    async def check_question(
        self, question: Question
    ) -> tuple[Question, tuple[GuardrailTriggered, ...], str]:
        """Return the redacted question, the actions, and the policy that blocks it, else ""."""
        if not self._on[GuardrailStage.INPUT]:
            return question, (), ""
        check = self._check(GuardrailStage.INPUT)
        acts: list[GuardrailTriggered] = []
        blocked = ""
        messages: list[Message] = []
        for number, message in enumerate(question.messages):
            parts: list[Part] = []
            stage = f"{GuardrailStage.INPUT}:message {number}"
            for part in await _join_texts_if_needed(check, message.parts, stage):
                clean, checked = await _apply_to_part(check, part, stage)
                parts.append(clean)
                acts += checked.actions
                blocked = blocked or checked.blocked_by or ""
            thought = await check.beside().apply(message.reasoning, stage)
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

    async def check_workflow(
        self, workflow: Workflow
    ) -> tuple[Workflow, tuple[GuardrailTriggered, ...], str]:
        """Return the redacted workflow, the actions, and the policy that blocks it, else ""."""
        check, acts, blocked = self._check(GuardrailStage.INPUT), list[GuardrailTriggered](), ""
        steps: list[Step] = []
        for number, step in enumerate(workflow.steps):
            checked = await check.apply(step.subtask, f"{GuardrailStage.INPUT}:subtask {number}")
            acts += checked.actions
            blocked = blocked or checked.blocked_by or ""
            steps.append(replace(step, subtask=checked.text))
        return Workflow(tuple(steps)), tuple(acts), blocked

    def _check(self, stage: GuardrailStage) -> GuardrailCheck:
        return GuardrailCheck(self._on[stage])

    async def _beside(
        self, question: Question, check: GuardrailCheck
    ) -> tuple[Question, tuple[GuardrailTriggered, ...], str]:
        """Check the texts beside the conversation; a finding that cannot be redacted blocks."""
        check = check.beside()
        if not check.policies:
            return question, (), ""
        side, where = find_side_texts(question), f"{GuardrailStage.INPUT}:options"
        prose = [await check.apply(text, where) for text in side.prose]
        strict = check.strict()
        names = [await strict.apply(text, where) for text in side.fixed]
        clean = {old: new.text for old, new in zip(side.prose, prose, strict=True)}
        checked = (*prose, *names)
        if any(old != new for old, new in clean.items()):
            question = replace_prose(question, clean)
        acts = tuple(act for each in checked for act in each.actions)
        return question, acts, next((each.blocked_by for each in checked if each.blocked_by), "")

    async def check_reply(
        self, reply: Reply, stage: GuardrailStage, step: int
    ) -> tuple[Reply, tuple[GuardrailTriggered, ...], str]:
        """Return the redacted reply, the actions, and the policy that blocks it, else ""."""
        if not self._on[stage]:
            return reply, (), ""
        where = f"{stage}:step {step}"
        if reply.alternatives:
            return await self._check_choices(reply, stage, step)
        check = self._check(stage)
        text = await check.apply(reply.text, where)
        check = check.beside()
        thought = await check.apply(reply.reasoning, where)
        checked = [text, thought]
        calls: list[ToolCall] = []
        for call in reply.tool_calls:
            arguments = await check.apply(_plain_arguments(call.arguments), where)
            checked.append(arguments)
            calls.append(replace(call, arguments=arguments.text))
        run_calls: list[ServerCall] = []
        for call in reply.server_calls:
            shown, found = await _apply_to_server_call(check, call, where)
            checked += found
            run_calls.append(shown)
        clean = replace(
            reply,
            text=text.text,
            reasoning=thought.text,
            tool_calls=tuple(calls),
            server_calls=tuple(run_calls),
        )
        if thought.text != reply.reasoning:
            clean = replace(clean, thoughts=())  # signed thoughts cannot be redacted
        if text.text != reply.text:
            clean = replace(clean, logprobs=())  # they contain the text before redaction
        acts = tuple(act for each in checked for act in each.actions)
        return clean, acts, next((each.blocked_by for each in checked if each.blocked_by), "")

    async def _check_choices(
        self, reply: Reply, stage: GuardrailStage, step: int
    ) -> tuple[Reply, tuple[GuardrailTriggered, ...], str]:
        """Do what `check_reply` does for a reply with several choices."""
        first, *others = [
            await self.check_reply(replace(choice, alternatives=()), stage, step)
            for choice in reply.choices
        ]
        acts = tuple(act for _, found, _ in (first, *others) for act in found)
        blocked = next((policy for _, _, policy in (first, *others) if policy), "")
        clean = replace(first[0], alternatives=tuple(other for other, _, _ in others))
        return clean, acts, blocked


NO_GUARDRAILS = Guardrails()
"""The guardrails of settings without policies."""


async def _apply_to_part(
    check: GuardrailCheck, part: Part, where: str
) -> tuple[Part, GuardrailResult]:
    """Return a part of a message with its text, or its file's name, checked.

    The contents of attachments are not read.
    """
    if isinstance(part, Text):
        checked = await check.apply(part.text, where)
        return replace(part, text=checked.text), checked
    if isinstance(part, ToolResult):
        checked = await check.apply(part.content, where)
        return replace(part, content=checked.text), checked
    if isinstance(part, ToolCall):
        checked = await check.beside().apply(_plain_arguments(part.arguments), where)
        return replace(part, arguments=checked.text), checked
    if isinstance(part, File):
        checked = await check.apply(part.name, where)
        return replace(part, name=checked.text), checked
    return part, GuardrailResult("")


async def _apply_to_server_call(
    check: GuardrailCheck, call: ServerCall, where: str
) -> tuple[ServerCall, list[GuardrailResult]]:
    """Return a call that the server ran, with its input and a program's output checked.

    The texts of pages and files are not checked.
    """
    fields = {"query": call.query}
    if call.name == CODE_INTERPRETER:
        fields |= {"output": call.output, "failure": call.failure}
    checked = {name: await check.apply(text, where) for name, text in fields.items()}
    clean = {name: result.text for name, result in checked.items()}
    return replace(call, **clean), list(checked.values())


def _plain_arguments(arguments: str) -> str:
    """Return the JSON without unnecessary escapes; other text is returned unchanged."""
    if "\\" not in arguments:
        return arguments
    try:
        plain = json.dumps(
            json.loads(arguments), ensure_ascii=False, allow_nan=False, separators=(",", ":")
        )
        plain.encode()
    except (ValueError, RecursionError):  # not JSON, or with lone surrogates
        return arguments
    return plain


async def _join_texts_if_needed(
    check: GuardrailCheck, parts: tuple[Part, ...], where: str
) -> tuple[Part, ...]:
    """Return the parts, with adjacent texts joined if the policies find more in the joined text.

    Models read adjacent texts as one.
    """
    joined: list[Part] = []
    for _, group in groupby(parts, key=lambda part: isinstance(part, Text)):
        run = list(group)
        texts = [part for part in run if isinstance(part, Text)]
        if len(texts) < 2:  # noqa: PLR2004 - nothing to join
            joined += run
            continue
        whole = "".join(part.text for part in texts)
        apart = [await check.apply(part.text, where) for part in texts]
        checked = await check.apply(whole, where)
        if checked.text == "".join(each.text for each in apart) and bool(checked.blocked_by) == any(
            each.blocked_by for each in apart
        ):
            joined += run
        else:
            joined.append(replace(texts[-1], text=whole))
    return tuple(joined)
