"""What the hot paths read and write, in the form that costs least.

Revision ID: 0004
"""

from alembic import op

revision = "0004"
down_revision = "0003"

STATEMENTS = """
-- Kept to be read whole, and never searched: as text it need not be taken apart.
ALTER TABLE tenants ALTER COLUMN tip_state TYPE json;
ALTER TABLE billing_events
    ALTER COLUMN previous TYPE json, ALTER COLUMN before TYPE json, ALTER COLUMN after TYPE json;

-- A body of a few KiB stays in its row as it is: to compress it, or to move it elsewhere, costs more than all else
-- that is written with it. Bodies go with age.
ALTER TABLE billing_bodies SET (toast_tuple_target = 8160);
"""


def upgrade() -> None:
    op.execute(STATEMENTS)
