"""Stores the judgement of a run; the first score also counts for drift and exploration."""

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
    """A judgement of a run."""

    score: float | None
    """None: withdraws an earlier score."""
    comment: str | None
    """None: no comment."""


def judge_run(
    connection: Connection, judgement: Judgement, *conditions: ColumnElement[bool]
) -> bool:
    """Store the judgement, in the caller's transaction; return whether the run exists.

    Only the first score counts for drift and exploration, since a changed score is not new
    evidence. `conditions` are those that exactly this run meets.
    """
    values = {"score": judgement.score, "score_comment": judgement.comment}
    changed = update(RUNS).where(*conditions).values(values).returning(RUNS.c.id)
    run_id = connection.execute(changed).scalar()
    if run_id is None:
        return False
    if judgement.score is not None:
        new = insert_statement(connection.dialect.name, COUNTED_JUDGEMENTS)
        first = new.values(run_id=run_id).on_conflict_do_nothing()
        if connection.execute(first.returning(COUNTED_JUDGEMENTS.c.run_id)).first() is not None:
            _count_judgement(connection, judgement.score, *conditions)
    return True


def _count_judgement(
    connection: Connection, score: float, *conditions: ColumnElement[bool]
) -> None:
    """Count the score for drift and exploration, if the run's content is kept."""
    query = select(CONTENTS.c.body, CONTENTS.c.format).join(RUNS, SAME_RUN).where(*conditions)
    row = connection.execute(query).first()
    if row is None:
        return
    try:
        run = decode_run(row[0], row[1])
    except StoreError:
        return  # the judgement itself is stored anyway
    if run.header.exploration is not None:
        count_arm(connection, run.header.exploration, score)
    count_values(connection, run_score(run, score))
