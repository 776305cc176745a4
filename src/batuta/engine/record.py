"""Events become a Run. The engine, the stream and the tests fold the same way."""

from __future__ import annotations

from collections.abc import Iterable

from batuta.core import Ended, Event, Guarded, Header, Planned, Round, Run, Stepped


class Recorder:
    """Collects a run's events; `run()` is their fold."""

    def __init__(self) -> None:
        self.header: Header | None = None
        self.rounds: list[Round] = []
        self.ended: Ended | None = None
        self.guards: list[Guarded] = []

    def add(self, event: Event) -> None:
        """Take in the next event; fragments and retries leave no trace of their own."""
        match event:
            case Header():
                self.header = event
            case Planned():
                self.rounds.append(event.played)
            case Stepped():
                old = self.rounds[event.round]
                steps = (*old.steps, event.step)
                self.rounds[event.round] = Round(
                    old.decision, old.drafts, old.workflow, steps, old.planning
                )
            case Guarded():
                self.guards.append(event)
            case Ended():
                self.ended = event
            case _:
                pass

    def run(self) -> Run:
        """The run.

        Raises:
            ValueError: the events lack a Header or an Ended.
        """
        if self.header is None or self.ended is None:
            raise ValueError("a run needs a Header first and an Ended last")
        end = self.ended
        return Run(
            self.header,
            tuple(self.rounds),
            end.outcome,
            end.answer,
            end.reply,
            end.error,
            end.error_code,
            end.limit,
            end.seconds,
            tuple(self.guards),
            end.expected,
        )


def fold(events: Iterable[Event]) -> Run:
    """The run that these events are.

    Raises:
        ValueError: the events lack a Header or an Ended.
    """
    recorder = Recorder()
    for event in events:
        recorder.add(event)
    return recorder.run()
