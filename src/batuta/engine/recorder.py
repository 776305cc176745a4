"""Events become a Run. The engine, the stream and the tests fold the same way."""

from __future__ import annotations

from collections.abc import Iterable

from batuta.core import (
    Event,
    GuardrailTriggered,
    Round,
    RoundPlanned,
    Run,
    RunFinished,
    RunHeader,
    StepFinished,
)


class Recorder:
    """Collects a run's events; `run()` is their fold."""

    def __init__(self) -> None:
        self.header: RunHeader | None = None
        self.rounds: list[Round] = []
        self.ended: RunFinished | None = None
        self.guards: list[GuardrailTriggered] = []

    def add(self, event: Event) -> None:
        """Take in the next event; fragments and retries leave no trace of their own."""
        match event:
            case RunHeader():
                self.header = event
            case RoundPlanned():
                self.rounds.append(event.played)
            case StepFinished():
                old = self.rounds[event.round]
                steps = (*old.steps, event.step)
                self.rounds[event.round] = Round(
                    decision=old.decision,
                    drafts=old.drafts,
                    workflow=old.workflow,
                    steps=steps,
                    planning=old.planning,
                )
            case GuardrailTriggered():
                self.guards.append(event)
            case RunFinished():
                self.ended = event
            case _:
                pass

    def run(self) -> Run:
        """The run.

        Raises:
            ValueError: the events lack a Header or an Ended.
        """
        if self.header is None or self.ended is None:
            raise ValueError("a run needs a RunHeader first and a RunFinished last")
        end = self.ended
        return Run(
            header=self.header,
            rounds=tuple(self.rounds),
            outcome=end.outcome,
            answer=end.answer,
            reply=end.reply,
            error=end.error,
            error_code=end.error_code,
            limit=end.limit,
            seconds=end.seconds,
            guards=tuple(self.guards),
            expected=end.expected,
        )


def fold_events(events: Iterable[Event]) -> Run:
    """The run that these events are.

    Raises:
        ValueError: the events lack a Header or an Ended.
    """
    recorder = Recorder()
    for event in events:
        recorder.add(event)
    return recorder.run()
