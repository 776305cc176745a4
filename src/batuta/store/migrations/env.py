"""Runs the migrations on the connection that `batuta.store.schema.upgrade_database` opened."""

from alembic import context

from batuta.store.models import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    render_as_batch=True,  # SQLite alters a table by copying it
)
with context.begin_transaction():
    context.run_migrations()
