"""An index for the job that mails owners whose access ended by time.

Revision ID: 0014
"""

from alembic import op

revision = "0014"
down_revision = "0013"

INDEX_NAME = "tenants_by_access_end"
# The last phase of the access is the only one that may give none, so the one before it has the end.
INDEX = f"{INDEX_NAME} ON tenants (((access->-2->>'until')::bigint)) WHERE access->-1->>'state' = 'none'"


def upgrade() -> None:
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = 0")  # no transaction waits behind it
        op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {INDEX_NAME}")  # of an interrupted attempt
        op.execute(f"CREATE INDEX CONCURRENTLY {INDEX}")
