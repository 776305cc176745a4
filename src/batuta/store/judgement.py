"""A run is judged; what its first judgement says of its worker is counted once."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, select, update

from batuta.errors import StoreError
from batuta.store.codec import decode_run
from batuta.store.database import insert_statement
from batuta.store.drift import count_values, run_score
from batuta.store.exploration import count_arm
from batuta.store.models import CONTENTS, COUNTED_JUDGEMENTS, RUNS, SAME_RUN


@dataclass(frozen=True, slots=True)
class Judgement:
    """Somebody's judgement of a run."""

    score: float | None
    """None: an earlier judgement is taken back."""
    comment: str | None


def judge_run(connection: Connection, judgement: Judgement, *chosen: ColumnElement[bool]) -> bool:
    """Write the judgement down, in the caller's transaction; return whether there is such a run.

    Only the first score counts for the worker: a changed mind is no new evidence.
    """
    values = {"score": judgement.score, "score_comment": judgement.comment}
    changed = update(RUNS).where(*chosen).values(values).returning(RUNS.c.id)
    found = connection.execute(changed).scalar()
    if found is None:
        return False
    if judgement.score is not None:
        new = insert_statement(connection.dialect.name, COUNTED_JUDGEMENTS)
        first = new.values(run_id=found).on_conflict_do_nothing()
        if connection.execute(first.returning(COUNTED_JUDGEMENTS.c.run_id)).first() is not None:
            _count_judgement(connection, judgement.score, *chosen)
    return True


def _count_judgement(connection: Connection, score: float, *chosen: ColumnElement[bool]) -> None:
    """Count the judgement of a run, unless the run's content is not kept."""
    query = select(CONTENTS.c.body, CONTENTS.c.format).join(RUNS, SAME_RUN).where(*chosen)
    row = connection.execute(query).first()
    if row is None:
        return
    try:
        run = decode_run(row[0], row[1])
    except StoreError:
        return  # it can be judged even so
    if run.header.exploration is not None:
        count_arm(connection, run.header.exploration, score)
    count_values(connection, run_score(run, score))
