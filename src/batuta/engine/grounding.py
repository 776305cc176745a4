"""Checks an answer against its sources: a worker does the check, in an extra round at the end."""

from __future__ import annotations

from dataclasses import dataclass, replace

from batuta.core import (
    GuardrailTriggered,
    Outcome,
    Plan,
    Pool,
    Question,
    Reply,
    RunFinished,
    Step,
    Workflow,
    assistant_message,
    user_message,
)
from batuta.engine.confidence import find_step
from batuta.engine.context import RunContext
from batuta.engine.finalize import final_reply, reply_text
from batuta.engine.side_calls import context_aside, run_extra_round, run_single_step
from batuta.engine.step_prompt import TRUNCATED_FINISHES
from batuta.guardrails import NO_GUARDRAILS, GroundedAction, GroundedPolicy, GuardrailStage
from batuta.language.grounding import (
    checking_messages,
    find_sources,
    find_unsupported,
    mark_statements,
    repair_prompt,
    split_statements,
    verdict_format,
)

NOT_GROUNDED = "not_grounded"
"""The error code of an answer that is refused: its sources do not support it, or it could not be
checked."""


@dataclass(frozen=True, slots=True)
class _Checked:
    """The statements of a reply, and which of them the sources do not support."""

    statements: tuple[list[str], ...]
    """The statements of the reply and of each alternative."""
    unsupported: tuple[int, ...]
    """Indices of the unsupported statements, counted over the reply and all alternatives."""

    def marked(self, reply: Reply) -> Reply:
        """Return the reply with its unsupported statements marked.

        A reply with marks has no log probabilities, since they belong to the text without marks.
        """
        if not self.unsupported:
            return reply
        choices: list[Reply] = []
        offset = 0
        for choice, statements in zip(reply.choices, self.statements, strict=True):
            text = mark_statements(statements, (index - offset for index in self.unsupported))
            offset += len(statements)
            choices.append(replace(choice, text=text, logprobs=()))
        return replace(choices[0], alternatives=tuple(choices[1:]))


class GroundingCheck:
    """The check of one run's answer by the policy of its settings."""

    def __init__(self, context: RunContext, policy: GroundedPolicy) -> None:
        self.context = context
        self.policy = policy
        self._ended: RunFinished | None = None
        """The run's end by the check so far; None before a check."""
        self._acts: tuple[GuardrailTriggered, ...] = ()
        """The policy's actions, published at the end of the run."""

    async def check(self, ended: RunFinished) -> None:
        """Check the answer, and let the worker that wrote it repair it if the policy says so.

        An end without an answer or with tool calls is not checked. One of several choices is not
        repaired.

        Args:
            ended: how the run ends without the check.
        """
        self._ended = ended
        if ended.reply is None or ended.reply.tool_calls:
            return
        self._note_unchecked(ended)
        checked = await self._ask(ended.reply)
        repairs = self.policy.action is GroundedAction.REPAIR and not ended.reply.alternatives
        repaired = await self._repair(ended.reply, checked) if checked and repairs else None
        if repaired is not None:
            ended = self._with_repaired(ended, repaired)
            self._note_unchecked(ended)
            checked = await self._ask(repaired)
        if checked is None:
            return
        self._acts = ()
        if repaired is not None:
            self._note("repaired")
        self._settle(ended, checked)

    async def finalize(self, ended: RunFinished) -> RunFinished:
        """Publish the policy's actions; return the run's end according to the policy.

        Args:
            ended: the run's end without the policy, with its final confidence.
        """
        if self._ended is None:
            self._ended = ended
            if ended.reply is not None and not ended.reply.tool_calls:
                self._note_unchecked(ended)
        for act in self._acts:
            await self.context.publish(act)
        confidence = None if self._ended.confidence is None else ended.confidence
        return replace(self._ended, confidence=confidence, seconds=self.context.elapsed())

    def keeps(self, ended: RunFinished) -> bool:
        """Return False if the check refused the answer, or a repair changed its confidence."""
        kept = self._ended
        return kept is None or (kept.reply is not None and kept.confidence == ended.confidence)

    def _note_unchecked(self, ended: RunFinished) -> None:
        """Set the end that applies if the check cannot be made or the deadline interrupts it."""
        self._acts = ()
        self._note("failed")
        message = f"the policy {self.policy.name} could not check this answer against its sources"
        self._ended = self._refused(message) if self.policy.fail_closed else ended

    def _settle(self, ended: RunFinished, checked: _Checked) -> None:
        self._ended = ended
        action, count = self.policy.action, len(checked.unsupported)
        if not count or ended.reply is None:
            return
        marks = action in {GroundedAction.MARK, GroundedAction.REPAIR}
        in_form = self.context.question.response_format is not None  # a mark would break it
        if action is GroundedAction.REFUSE or (marks and in_form):
            self._note("refused", count)
            whole = sum(map(len, checked.statements))
            summary = (
                f"{count} of {whole} statements are not supported by what was given or fetched"
            )
            self._ended = self._refused(
                f"the policy {self.policy.name} refuses the answer: {summary}"
            )
            return
        self._note("marked" if marks else "flagged", count)
        if marks:
            reply = checked.marked(ended.reply)
            self._ended = replace(ended, reply=reply, answer=reply_text(reply))

    def _note(self, action: str, count: int = 1) -> None:
        where = GuardrailStage.OUTPUT.value
        act = GuardrailTriggered(policy=self.policy.name, where=where, action=action, count=count)
        self._acts = (*self._acts, act)

    def _refused(self, message: str) -> RunFinished:
        return RunFinished(outcome=Outcome.REFUSED, error=message, error_code=NOT_GROUNDED)

    def _with_repaired(self, ended: RunFinished, reply: Reply) -> RunFinished:
        """Return the end with the repaired answer, which has no fitted probability."""
        unsure = self.context.settings.min_confidence is not None
        outcome = Outcome.UNSURE if unsure else ended.outcome
        text = reply_text(reply)
        return replace(ended, reply=reply, answer=text, confidence=None, outcome=outcome)

    async def _ask(self, reply: Reply) -> _Checked | None:
        """Return the reply's statements with the verdict of the checking worker.

        Return None if a plan rule hides the question from the worker, or if the worker gives no
        usable verdict. A reply without text is not checked.
        """
        context, worker = self.context, self.policy.worker
        statements = tuple(split_statements(choice.text) for choice in reply.choices)
        flat = [text for each in statements for text in each]
        if not any(text.strip() for text in flat):
            return _Checked(statements, ())
        if worker.id not in context.clients:
            return None  # a plan rule forbids that this worker sees the question
        answering = (each for each in context.rounds if not each.is_aside)
        steps = (step for each in answering for step in each.steps)
        sources = find_sources(context.question, steps, context.pool, reply)
        messages = context.question.messages
        attached = tuple(part for message in messages for part in message.attachments)
        form = verdict_format(len(flat), self.policy.bounds)
        question = Question(
            messages=checking_messages(flat, sources, attached), response_format=form
        )
        inner = context_aside(context, question, Pool((worker,)))
        plan = Plan(
            Workflow((Step(subtask="", worker=worker.id),)),
            reason=f"the policy {self.policy.name} checks the answer against its sources",
            purpose="check",
        )
        unchecked = replace(inner, settings=replace(inner.settings, guardrails=NO_GUARDRAILS))
        round_ = await run_extra_round(context, plan, inner=unchecked, gated=False)
        verdict = None if round_ is None else final_reply(round_)
        if verdict is None or verdict.finish in TRUNCATED_FINISHES:
            return None  # a truncated verdict is useless, and its format was not checked
        return _Checked(
            statements,
            tuple(find_unsupported(verdict.text, flat, sources, has_attached=bool(attached))),
        )

    async def _repair(self, reply: Reply, checked: _Checked) -> Reply | None:
        """Ask the worker that wrote the answer to repair it; return the repaired answer.

        Return None if no repair is needed, if that worker is not in the pool, if a required
        approval is not given, or if the worker gives no text.
        """
        context = self.context
        answering = find_step(context.rounds, reply)
        if not checked.unsupported or answering is None or answering.worker not in context.pool:
            return None
        given = context.question
        added = (
            assistant_message(reply.text),
            user_message(repair_prompt(checked.statements[0], checked.unsupported)),
        )
        question = replace(
            given,
            messages=(*given.messages, *added),
            tool_choice="none" if given.tools else given.tool_choice,
        )
        again = await run_single_step(
            context,
            answering.worker,
            f"the policy {self.policy.name} sends the answer back",
            inner=replace(
                context,
                question=question,
                resumed=None,
                settings=replace(context.settings, fallback=False),
            ),
        )
        return again if again is not None and again.text.strip() else None
