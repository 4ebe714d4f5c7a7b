"""Alembic's entry point; `tenantry.db.migrate` hands it the connection.

Each migration is a transaction, so that one may build an index outside of any (`autocommit_block`).
"""

from alembic import context

connection = context.config.attributes["connection"]
context.configure(connection=connection, transaction_per_migration=True)
with context.begin_transaction():
    context.run_migrations()
