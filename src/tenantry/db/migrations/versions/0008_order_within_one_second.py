"""What the order of the events of one second depends on: a tenant's other subscriptions, and
attempts to pay.

Revision ID: 0008
"""

from alembic import op

revision = "0008"
down_revision = "0007"

STATEMENTS = """
ALTER TABLE tenants ADD COLUMN other_subscriptions json;
ALTER TABLE billing_events ADD COLUMN attempt_count bigint;
"""


def upgrade() -> None:
    op.execute(STATEMENTS)
