"""An index for the job that records access that ended by time: of the first end of each tenant's
access.

Revision ID: 0016
"""

from alembic import op

revision = "0016"
down_revision = "0015"

INDEX_NAME = "tenants_by_first_access_end"
INDEX = f"{INDEX_NAME} ON tenants (((access->0->>'until')::bigint)) WHERE (access->0->>'until')::bigint IS NOT NULL"


def upgrade() -> None:
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = 0")  # no transaction waits behind it
        op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {INDEX_NAME}")  # of an interrupted attempt
        op.execute(f"CREATE INDEX CONCURRENTLY {INDEX}")
