"""Invitations, who created a tenant, and who wrote a membership.

Revision ID: 0011
"""

from alembic import op

revision = "0011"
down_revision = "0010"

# The migration is repeatable: the columns are committed before the first index is built.
COLUMNS = """
ALTER TABLE memberships
    -- The user has not accepted yet. What the release before writes counts at once, as it did.
    ADD COLUMN IF NOT EXISTS invited boolean NOT NULL DEFAULT false,
    -- The user created the tenant: this counts against TENANTS_PER_USER.
    ADD COLUMN IF NOT EXISTS founded boolean NOT NULL DEFAULT false,
    -- Who wrote the row, with which access: OPERATOR, OWNER or SCOPED; NULL for rows of earlier releases. The last
    -- OWNER or operator stays here when somebody else writes the row later. SCOPED counts only while written_at is
    -- updated_at: the release before changes a row without these columns.
    ADD COLUMN IF NOT EXISTS written_by text,
    ADD COLUMN IF NOT EXISTS written_as text,
    ADD COLUMN IF NOT EXISTS written_at timestamptz
"""
INDEXES = {
    # For a token that names no organization: neither removed rows nor invitations are read.
    "memberships_active": "(issuer, subject, tenant_id) WHERE removed_at IS NULL AND NOT invited",
    # For a user's own list, newest first.
    "memberships_of_user": "(issuer, subject, created_at DESC, id DESC) WHERE removed_at IS NULL",
    "memberships_founded": "(issuer, subject) WHERE founded",
    # For the number of a tenant's members: the rows of those who were removed stay, however many
    # they become.
    "memberships_current": "(tenant_id, issuer) WHERE removed_at IS NULL",
}


def upgrade() -> None:
    op.execute(COLUMNS)
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = 0")  # nobody waits behind it
        for name, of in INDEXES.items():
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")  # of a try that was broken off
            op.execute(f"CREATE INDEX CONCURRENTLY {name} ON memberships {of}")
