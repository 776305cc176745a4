"""Labels of runs, and covering indexes for lists, filters and totals.

The newest existing runs are labelled with their workers, from the ledger, and their error. Older
runs get no labels.
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

_LABELLED = 100_000
_FIGURES = (
    "model", "outcome", "session", "labels", "input_tokens", "output_tokens", "usd",
    "unpriced_calls", "seconds", "score",
)  # fmt: skip
_INDEXES = {"created_figures": ("created", "id"), "tenant_figures": ("tenant", "created", "id")}
_PLAIN = {"created_id": ("created", "id"), "tenant_created_id": ("tenant", "created", "id")}


def upgrade() -> None:
    op.add_column("runs", sa.Column("labels", sa.Text()))
    is_postgres = op.get_bind().dialect.name == "postgresql"
    op.execute(_label_statement("string_agg" if is_postgres else "group_concat"))
    for name, columns in _INDEXES.items():
        op.create_index(f"ix_runs_{name}", "runs", [*columns, *_FIGURES])
    for name in _PLAIN:
        op.drop_index(f"ix_runs_{name}", "runs")
    if is_postgres:
        op.execute(
            "CREATE INDEX ix_runs_labels ON runs USING gin (string_to_array(labels, chr(10)))"
        )


def _label_statement(concat: str) -> str:
    """Return the statement that labels the newest runs."""
    end = "chr(10)" if concat == "string_agg" else "char(10)"
    return f"""
        UPDATE runs SET labels = substr({end}
          || coalesce('error:' || error_code || {end}, '')
          || coalesce((SELECT {concat}('worker:' || named.name, {end}) FROM (
                SELECT DISTINCT name FROM ledger WHERE run_id = runs.id AND kind = 'worker'
              ) AS named) || {end}, ''), 1, 400)
        WHERE id IN (SELECT id FROM runs ORDER BY created DESC LIMIT {_LABELLED})
    """  # noqa: S608 - ours
