"""An index for invoices without a customer: of tenants by the subscription that their one state is
from.

Revision ID: 0017
"""

from alembic import op

revision = "0017"
down_revision = "0016"

# Only the first event of a subscription, and its end, change the column: other updates stay as
# cheap as they are.
INDEX_NAME = "tenants_by_subscription"
INDEX = f"{INDEX_NAME} ON tenants (subscription_id) WHERE subscription_id IS NOT NULL"


def upgrade() -> None:
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = 0")  # no transaction waits behind it
        op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {INDEX_NAME}")  # of an interrupted attempt
        op.execute(f"CREATE INDEX CONCURRENTLY {INDEX}")
