"""PostgreSQL: connections, transactions, batches, roles and privileges, migrations."""
