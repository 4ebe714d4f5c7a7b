"""Indexes for the operator's lists: all tenants by age, by owner's address, and keys by their shown
characters.

Revision ID: 0015
"""

from alembic import op

revision = "0015"
down_revision = "0014"

# None has a column that a billing event or the use of a key changes, so these updates stay as cheap
# as they are.
INDEXES = {
    "tenants_by_age": "tenants (created_at DESC, id DESC) WHERE deleted_at IS NULL",
    "tenants_by_owner_email": "tenants (lower(owner_email))",
    "api_keys_by_start": "api_keys (lower(start))",
    "api_keys_by_last4": "api_keys (lower(last4))",
}


def upgrade() -> None:
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = 0")  # no transaction waits behind it
        for name, index in INDEXES.items():
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")  # of an interrupted attempt
            op.execute(f"CREATE INDEX CONCURRENTLY {name} ON {index}")
