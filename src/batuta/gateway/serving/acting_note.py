"""Who acted at a request of a session, and why, as it is stored with its run. Pure."""

from __future__ import annotations

from batuta.core import Run
from batuta.gateway.serving.session_call import SessionCall
from batuta.store.rows import ActingNote

_LONGEST_REASON = 600
"""Characters of a reason that are kept."""


def note_acting(call: SessionCall | None, run: Run) -> ActingNote:
    """Say who acted at the run, where it is a request of a session."""
    step = run.answering_step
    acting = None if step is None else str(step.worker)
    before = call.before.acting if call is not None and call.acts else None
    has_switched = acting is not None and before is not None and before != acting
    return ActingNote(
        acting=acting,
        took_over_from=str(before) if has_switched else None,
        turn=(call.before.turn or None) if call is not None and call.thread else None,
        reason=_join_reasons(run),
    )


def _join_reasons(run: Run) -> str | None:
    """Return the reasons of all rounds' decisions, each once."""
    found = dict.fromkeys(round_.decision.reason for round_ in run.rounds)
    return "; ".join(filter(None, found))[:_LONGEST_REASON] or None
