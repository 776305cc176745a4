"""Tells a reader the progress of a run and its answer, in the same order in every dialect."""

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
    """Something that a reader is told beside the answer."""

    text: str
    is_line: bool = True
    """Whether it is a line of its own; else it goes on where the last piece ended."""
    step: dict[str, Any] | None = None
    """The place and the worker of a step's own words; None: the words are ours."""


_MAX_SUBTASK = 80
"""Characters of a subtask that a line of progress shows."""


@dataclass(frozen=True, slots=True)
class StepPlace:
    """Which step of a run a text belongs to; both numbers count from 0."""

    round: int
    step: int

    def as_field(self, worker: str) -> dict[str, Any]:
        """Return the field `orchestration` of an event that carries the text."""
        return {"round": self.round, "step": self.step, "worker": worker}


@final
class RunProgress:
    """Follows a run's events and says what of them is shown."""

    def __init__(self, prepared: PreparedCall) -> None:
        self.direct = prepared.served_model.direct
        """One worker is passed through: its own reasoning is shown, and no progress."""
        self.has_streamed = False
        """Whether any of the answer was shown as it came."""
        self._workflow: Workflow | None = None
        self._texts = _StepTexts(prepared) if prepared.call.options.stream_steps else None

    @property
    def shows_steps(self) -> bool:
        """Return True if the words of the steps before the answer are shown."""
        return self._texts is not None

    def visible_delta(self, event: StepDelta) -> Delta | None:
        """Return the part of a fragment that the reader may see as it comes; None if none."""
        if not event.is_answer:
            return None
        self.has_streamed = True
        return event.delta

    def pieces(self, event: Event) -> list[ProgressPiece]:
        """Return the progress told because of the event, beside the answer."""
        line = self._progress_line(event)
        pieces = [ProgressPiece(line)] if line else []
        if self._texts is not None and not self.has_streamed:
            self._texts.interrupted = self._texts.interrupted or bool(line)
            pieces += self._texts.pieces(event, self._workflow)
        return pieces

    def _progress_line(self, event: Event) -> str:
        """Return a line of progress without its end; empty if there is nothing to tell."""
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
        shown = (
            f" — {subtask[:_MAX_SUBTASK]}{'…' if len(subtask) > _MAX_SUBTASK else ''}"
            if subtask
            else ""
        )
        return f"Step {event.index + 1}/{len(self._workflow)}: {event.worker}{shown}"


@final
class _StepTexts:
    """The words of the steps before the answer, one step after another.

    Of steps that speak at the same time one has the floor; the others' words wait for its end.
    """

    def __init__(self, prepared: PreparedCall) -> None:
        self.interrupted = False
        """Whether a line of ours stands after the speaker's last words."""
        self._waits_for_check = GuardrailStage.BETWEEN in prepared.guardrails.stages
        """A policy may redact what a step says, so it is shown when the step has ended."""
        self._workers: dict[StepPlace, str] = {}
        self._speaker: StepPlace | None = None
        self._unsaid: dict[StepPlace, list[str]] = {}
        self._ended: set[StepPlace] = set()
        self._told: set[StepPlace] = set()

    def pieces(self, event: Event, workflow: Workflow | None) -> list[ProgressPiece]:
        """Return the steps' words told because of the event."""
        size = len(workflow) if workflow else 0
        match event:
            case RunHeader():
                self._forget_steps()
            case StepDelta(is_answer=False) if event.delta.text and not self._waits_for_check:
                place = StepPlace(event.round, event.index)
                self._workers[place] = event.worker
                self._unsaid.setdefault(place, []).append(event.delta.text)
                return list(self._say(size))
            case StepRetried():
                self._drop_attempt(StepPlace(event.round, event.index))
            case StepFinished():
                return list(self._finish(event, size))
            case _:
                pass
        return []

    def _forget_steps(self) -> None:
        """Forget the steps, as another workflow begins: a method may run several."""
        self._workers.clear()
        self._unsaid.clear()
        self._ended.clear()
        self._told.clear()
        self._speaker = None

    def _drop_attempt(self, place: StepPlace) -> None:
        """Drop the untold words of a call that failed; its words begin anew."""
        self._unsaid.pop(place, None)
        self._told.discard(place)
        self.interrupted = self.interrupted or place == self._speaker

    def _finish(self, event: StepFinished, size: int) -> Iterator[ProgressPiece]:
        place, result = StepPlace(event.round, event.step.index), event.step.result
        self._workers[place] = event.step.worker
        # A last step that was shown as the answer, or will be, has no words of its own here.
        last = place.step == size - 1 and place not in self._told | self._unsaid.keys()
        if isinstance(result, Reply) and place not in self._told and not last:
            self._unsaid[place] = [result.text] if result.text else []
        self._ended.add(place)
        yield from self._say(size)

    def _say(self, size: int) -> Iterator[ProgressPiece]:
        """Yield the speaker's words, then those of whoever waited, until one is still speaking."""
        while True:
            if self._speaker is None:
                self._speaker = next(iter(self._unsaid), None)
                self.interrupted = True
            place = self._speaker
            if place is None:
                return
            text = "".join(self._unsaid.pop(place, ()))
            if text:
                worker = self._workers.get(place, "")
                if self.interrupted or place not in self._told:
                    yield ProgressPiece(f"Step {place.step + 1}/{size}, {worker}:")
                self.interrupted = False
                self._told.add(place)
                yield ProgressPiece(text, is_line=False, step=place.as_field(worker))
            if place not in self._ended:
                return
            self._speaker = None


Events = list[dict[str, Any]]


class AnswerEvents(ABC):
    """Tells an answer in the events of a dialect: as it comes, and at the end what is left of it.

    Each dialect says how it tells a text, a thought, a call or a picture.
    """

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._thoughts: list[Thought] = []
        self._server_calls: list[ServerCall] = []
        self._images: int = 0
        """Pictures told so far."""

    @property
    def text_so_far(self) -> str:
        """The text that was told so far."""
        return "".join(self._texts)

    @abstractmethod
    def own_reasoning(self, text: str, *, new: bool = False) -> Events:
        """Tell more of the worker's own reasoning; a `new` piece of it, or the last one's next."""

    @abstractmethod
    def sign(self, thought: Thought) -> Events:
        """End a piece of reasoning, which its provider signed or keeps to itself."""

    @abstractmethod
    def text(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> Events:
        """Tell more of the answer."""

    @abstractmethod
    def server_call(self, call: ServerCall) -> Events:
        """Tell a call that the server ran, with what came out."""

    @abstractmethod
    def image(self, image: Image) -> Events:
        """Tell a picture that the model made."""

    @abstractmethod
    def call(self, index: int, call: ToolCall) -> Events:
        """Tell more of the tool call of that number; `call` holds what is new of its arguments."""

    def fragment(self, delta: Delta, *, thinks: bool) -> Events:
        """Tell a fragment of the answer; its reasoning only where `thinks`."""
        events: Events = []
        if delta.reasoning and thinks:
            events += self.own_reasoning(delta.reasoning)
        if delta.thought is not None and thinks:
            events += self.sign(delta.thought)
        if delta.text or delta.logprobs:
            events += self.text(delta.text, delta.logprobs)
        if delta.server_call is not None:
            events += self.server_call(delta.server_call)
        if delta.image is not None:
            events += self.image(delta.image)
        if delta.tool_index is not None:
            call = ToolCall(id=delta.tool_id, name=delta.tool_name, arguments=delta.tool_arguments)
            events += self.call(delta.tool_index, call)
        return events

    def untold_reasoning(self, reply: Reply, *, reasoning: bool, thoughts: bool) -> Events:
        """Tell the reasoning that was not told as it came.

        Args:
            reply: the whole reply.
            reasoning: whether its reasoning was not told and is to be.
            thoughts: whether what its provider keeps to itself is to be told.
        """
        events: Events = []
        if not reasoning:
            unsaid = [t for t in reply.thoughts if t.redacted and t not in self._thoughts]
            return [event for t in unsaid for event in self.sign(t)] if thoughts else events
        if reply.reasoning and not any(thought.text for thought in reply.thoughts):
            events += self.own_reasoning(reply.reasoning, new=True)
        for thought in reply.thoughts:
            events += self.own_reasoning(thought.text, new=True) if thought.text else []
            events += self.sign(thought)
        return events

    def untold_calls(self, reply: Reply) -> Events:
        """Tell the server's calls that were not told as they came, and the text before each."""
        events: Events = []
        for call in reply.server_calls[len(self._server_calls) :]:
            if before := reply.text[len(self.text_so_far) : call.at]:
                events += self.text(before)
            events += self.server_call(call)
        return events
