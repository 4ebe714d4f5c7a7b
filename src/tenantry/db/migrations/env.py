"""Alembic's entry point. Each migration is a transaction, so that one may use
`autocommit_block`.
"""

from alembic import context

from tenantry.db.foreign_tables import VERSION_TABLE

connection = context.config.attributes["connection"]
context.configure(
    connection=connection, version_table=VERSION_TABLE, transaction_per_migration=True
)
with context.begin_transaction():
    context.run_migrations()
