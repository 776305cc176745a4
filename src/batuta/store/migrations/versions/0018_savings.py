"""Columns for the estimated cost of the best single worker, and the comparison with it."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"

_MONEY = sa.Text().with_variant(sa.Numeric(), "postgresql")
_COLUMNS = (("alone_usd", _MONEY), ("shadow", sa.Text()), ("shadow_usd", _MONEY))


def upgrade() -> None:
    for name, kind in _COLUMNS:
        op.add_column("runs", sa.Column(name, kind))
