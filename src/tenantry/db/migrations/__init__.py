"""The schema, as Alembic migrations."""
