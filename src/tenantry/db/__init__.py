"""PostgreSQL: connections, transactions, batches, the embedded server, migrations."""
