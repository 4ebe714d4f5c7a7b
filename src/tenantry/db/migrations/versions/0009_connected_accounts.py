"""Which connected account (Stripe Connect) an event is about.

Revision ID: 0009
"""

from alembic import op

revision = "0009"
down_revision = "0008"

# A column without a default: no row is written anew. The release before does not name it, and
# leaves it NULL.
STATEMENTS = """
ALTER TABLE billing_events ADD COLUMN account text;
"""


def upgrade() -> None:
    op.execute(STATEMENTS)
