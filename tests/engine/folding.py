"""Puts a run together from its events, as their receivers do."""

from collections.abc import Iterable

from batuta.core import Event, Run
from batuta.engine import Recorder


def fold_events(events: Iterable[Event]) -> Run:
    """Return the run that these events describe.

    Raises:
        ValueError: the RunHeader or the RunFinished event is missing.
    """
    recorder = Recorder()
    for event in events:
        recorder.add(event)
    return recorder.run()
