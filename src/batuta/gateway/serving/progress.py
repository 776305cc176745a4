"""Turns a run's events into its visible progress and into the events of an answer, for streams."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

from batuta.core import (
    Delta,
    Event,
    GuardrailTriggered,
    Image,
    MalformedPlan,
    Reply,
    RoundPlanned,
    RunHeader,
    ServerCall,
    StepDelta,
    StepFinished,
    StepRetried,
    StepStarted,
    Thought,
    TokenLogprob,
    ToolCall,
    Workflow,
)
from batuta.engine.approval import WAITS
from batuta.gateway.serving.admission import PreparedCall
from batuta.guardrails import GuardrailStage


@dataclass(frozen=True, slots=True)
class ProgressPiece:
    """A piece of progress text, streamed besides the answer."""

    text: str
    is_line: bool = True
    """Whether the text is a separate line; else the text continues the last piece."""
    step: dict[str, Any] | None = None
    """The position and worker of the step that wrote the text; None: the server wrote it."""


_MAX_SUBTASK = 80
"""Maximum number of characters of a subtask in a line of progress."""


@dataclass(frozen=True, slots=True)
class StepPosition:
    """The position of a step in a run; both numbers count from 0."""

    round: int
    step: int

    def as_field(self, worker: str) -> dict[str, Any]:
        """Return the field `orchestration` of an event with the step's text."""
        return {"round": self.round, "step": self.step, "worker": worker}


@final
class RunProgress:
    """Derives the visible progress from a run's events."""

    def __init__(self, prepared: PreparedCall) -> None:
        self.direct = prepared.served_model.direct
        """True if one worker is passed through: its reasoning is shown, but no progress."""
        self.has_streamed = False
        """Whether any part of the answer was streamed."""
        self._workflow: Workflow | None = None
        self._texts = _StepTexts(prepared) if prepared.call.options.stream_steps else None

    @property
    def shows_steps(self) -> bool:
        """True if the text of the steps before the answer is streamed."""
        return self._texts is not None

    def visible_delta(self, event: StepDelta) -> Delta | None:
        """Return a delta of the answer, and note that the answer is streamed; else None."""
        if not event.is_answer:
            return None
        self.has_streamed = True
        return event.delta

    def pieces(self, event: Event) -> list[ProgressPiece]:
        """Return the progress to stream for an event; the answer's own text is not included."""
        line = self._progress_line(event)
        pieces = [ProgressPiece(line)] if line else []
        if self._texts is not None and not self.has_streamed:
            self._texts.interrupted = self._texts.interrupted or bool(line)
            pieces += self._texts.pieces(event, self._workflow)
        return pieces

    def _progress_line(self, event: Event) -> str:
        """Return a line of progress without its newline; empty if there is none."""
        match event:
            case RoundPlanned():
                return self._plan_line(event)
            case GuardrailTriggered() if event.action == WAITS and not self.direct:
                return f"The plan waits for somebody's approval ({event.policy})"
            case StepStarted() if not self.direct:
                return self._step_line(event)
            case _:
                return ""

    def _plan_line(self, event: RoundPlanned) -> str:
        planned = event.planned
        self._workflow = planned.workflow
        if self.direct or planned.workflow is None:
            return ""
        if isinstance(planned.decision, MalformedPlan):
            return "No plan could be made; the best worker answers."
        steps = len(planned.workflow)
        again = f" (round {event.round + 1})" if event.round else ""
        return f"Plan: {steps} step{'s' if steps > 1 else ''}{again}"

    def _step_line(self, event: StepStarted) -> str:
        if self._workflow is None:
            return ""
        subtask = " ".join(self._workflow.steps[event.index].subtask.split())
        if len(subtask) > _MAX_SUBTASK:
            subtask = f"{subtask[:_MAX_SUBTASK]}…"
        shown = f" — {subtask}" if subtask else ""
        return f"Step {event.index + 1}/{len(self._workflow)}: {event.worker}{shown}"


@final
class _StepTexts:
    """The text of the steps before the answer, shown one step after another.

    Of concurrent steps one is streamed; the others' text is buffered until that step ends.
    """

    def __init__(self, prepared: PreparedCall) -> None:
        self.interrupted = False
        """Whether the next text needs a line that names its step."""
        self._waits_for_check = GuardrailStage.BETWEEN in prepared.guardrails.stages
        """Whether a step's text is shown only at its end, since a guardrail may redact it."""
        self._workers: dict[StepPosition, str] = {}
        self._current: StepPosition | None = None
        self._buffered: dict[StepPosition, list[str]] = {}
        self._ended: set[StepPosition] = set()
        self._shown: set[StepPosition] = set()

    def pieces(self, event: Event, workflow: Workflow | None) -> list[ProgressPiece]:
        """Return the text of steps to stream for an event."""
        size = len(workflow) if workflow else 0
        match event:
            case RunHeader():
                self._forget_steps()
            case StepDelta(is_answer=False) if event.delta.text and not self._waits_for_check:
                position = StepPosition(event.round, event.index)
                self._workers[position] = event.worker
                self._buffered.setdefault(position, []).append(event.delta.text)
                return list(self._flush(size))
            case StepRetried():
                self._drop_attempt(StepPosition(event.round, event.index))
            case StepFinished():
                return list(self._finish(event, size))
            case _:
                pass
        return []

    def _forget_steps(self) -> None:
        """Forget all steps when a run begins: a method may run several workflows, one by one."""
        self._workers.clear()
        self._buffered.clear()
        self._ended.clear()
        self._shown.clear()
        self._current = None

    def _drop_attempt(self, position: StepPosition) -> None:
        """Drop the buffered text of a failed call; the retry's text is shown from its beginning."""
        self._buffered.pop(position, None)
        self._shown.discard(position)
        self.interrupted = self.interrupted or position == self._current

    def _finish(self, event: StepFinished, size: int) -> Iterator[ProgressPiece]:
        position, result = StepPosition(event.round, event.step.index), event.step.result
        self._workers[position] = event.step.worker
        # The last step's text is the answer, which is streamed separately.
        last = position.step == size - 1 and position not in self._shown | self._buffered.keys()
        if isinstance(result, Reply) and position not in self._shown and not last:
            self._buffered[position] = [result.text] if result.text else []
        self._ended.add(position)
        yield from self._flush(size)

    def _flush(self, size: int) -> Iterator[ProgressPiece]:
        """Yield the current step's text, then the buffered steps', up to one that is running."""
        while True:
            if self._current is None:
                self._current = next(iter(self._buffered), None)
                self.interrupted = True
            position = self._current
            if position is None:
                return
            text = "".join(self._buffered.pop(position, ()))
            if text:
                worker = self._workers.get(position, "")
                if self.interrupted or position not in self._shown:
                    yield ProgressPiece(f"Step {position.step + 1}/{size}, {worker}:")
                self.interrupted = False
                self._shown.add(position)
                yield ProgressPiece(text, is_line=False, step=position.as_field(worker))
            if position not in self._ended:
                return
            self._current = None


Events = list[dict[str, Any]]


class AnswerEvents(ABC):
    """Makes a dialect's events of an answer: of its fragments, and of what was not streamed.

    Each dialect implements the events of a text, a thought, a call and a picture, and records what
    it sends in the fields of this class. The methods return the events to send, which may be none.
    """

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._thoughts: list[Thought] = []
        self._server_calls: list[ServerCall] = []
        self._images: int = 0
        """The number of pictures sent so far."""

    @property
    def text_so_far(self) -> str:
        """The text sent so far."""
        return "".join(self._texts)

    @abstractmethod
    def own_reasoning(self, text: str, *, new: bool = False) -> Events:
        """Continue the worker's own reasoning, or begin a new piece of reasoning if `new`."""

    @abstractmethod
    def sign(self, thought: Thought) -> Events:
        """End a piece of reasoning, with the provider's signature or the redacted content."""

    @abstractmethod
    def text(
        self, text: str, logprobs: Sequence[TokenLogprob] = (), *, is_refusal: bool = False
    ) -> Events:
        """Continue the answer's text, or its refusal."""

    @abstractmethod
    def server_call(self, call: ServerCall) -> Events:
        """Show a tool call that the server ran, with its result."""

    @abstractmethod
    def image(self, image: Image) -> Events:
        """Show a picture made by the model."""

    @abstractmethod
    def call(self, index: int, call: ToolCall) -> Events:
        """Continue the tool call at `index`; `call` has the new part of its arguments."""

    def fragment(self, delta: Delta, *, thinks: bool) -> Events:
        """Show a fragment of the answer; reasoning is shown only if `thinks`."""
        events: Events = []
        if delta.reasoning and thinks:
            events += self.own_reasoning(delta.reasoning)
        if delta.thought is not None and thinks:
            events += self.sign(delta.thought)
        if delta.text or delta.logprobs:
            events += self.text(delta.text, delta.logprobs, is_refusal=delta.is_refusal)
        if delta.server_call is not None:
            events += self.server_call(delta.server_call)
        if delta.image is not None:
            events += self.image(delta.image)
        if delta.tool_index is not None:
            call = ToolCall(id=delta.tool_id, name=delta.tool_name, arguments=delta.tool_arguments)
            events += self.call(delta.tool_index, call)
        return events

    def untold_reasoning(self, reply: Reply, *, reasoning: bool, thoughts: bool) -> Events:
        """Show the reasoning that was not streamed.

        Args:
            reply: the whole reply.
            reasoning: whether all reasoning must be shown, since none was streamed.
            thoughts: whether redacted thoughts that were not streamed are shown if `reasoning` is
                False.
        """
        events: Events = []
        if not reasoning:
            missing = [t for t in reply.thoughts if t.redacted and t not in self._thoughts]
            return [event for t in missing for event in self.sign(t)] if thoughts else events
        if reply.reasoning and not any(thought.text for thought in reply.thoughts):
            events += self.own_reasoning(reply.reasoning, new=True)
        for thought in reply.thoughts:
            events += self.own_reasoning(thought.text, new=True) if thought.text else []
            events += self.sign(thought)
        return events

    def untold_calls(self, reply: Reply) -> Events:
        """Show the server's calls that were not streamed, with the text before each."""
        events: Events = []
        for call in reply.server_calls[len(self._server_calls) :]:
            if before := reply.text[len(self.text_so_far) : call.at]:
                events += self.text(before)
            events += self.server_call(call)
        return events
