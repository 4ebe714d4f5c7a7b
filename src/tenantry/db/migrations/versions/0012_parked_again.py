"""When an event was parked again, because the operator removed the link of its customer.

Revision ID: 0012
"""

from alembic import op

revision = "0012"
down_revision = "0011"

# A column without a default: no row is written anew. NULL: the event is parked since it was
# received.
STATEMENTS = """
ALTER TABLE billing_events ADD COLUMN parked_at timestamptz;
"""


def upgrade() -> None:
    op.execute(STATEMENTS)
