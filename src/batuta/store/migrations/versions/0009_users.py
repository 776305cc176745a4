"""Users who sign in with an identity provider, and the owners of keys."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

_COLUMNS = ("identity", "role", "user")


def upgrade() -> None:
    for name in _COLUMNS:
        op.add_column("keys", sa.Column(name, sa.Text()))
    op.create_index("ix_keys_identity", "keys", ["identity"], unique=True)
    op.create_index("ix_keys_user", "keys", ["user"])
