"""Alembic runs this for every command; `engine/migrate.py` passes the connection, or none to print.

Each revision is one transaction. The version table is outside of schema helix, whose guards would
refuse Alembic's writes.
"""

from __future__ import annotations

from alembic import context

context.configure(
    **context.config.attributes["options"],
    transaction_per_migration=True,
    version_table="revision",
    version_table_schema="helix_migration",
)
with context.begin_transaction():
    context.run_migrations()
