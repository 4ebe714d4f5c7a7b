"""Subscriptions by themselves, the access that they give, and more facts of events.

Revision ID: 0013
"""

from alembic import op

revision = "0013"
down_revision = "0012"

# The migration is repeatable: all of this is committed before the last index is built. Columns
# without a default: no row is written anew. NULL in all of them is what an account of the release
# before means.
STATEMENTS = """
ALTER TABLE billing_events ADD COLUMN IF NOT EXISTS details json;
ALTER TABLE tenants
    ADD COLUMN IF NOT EXISTS cancel_at bigint,
    ADD COLUMN IF NOT EXISTS ends_at bigint,
    ADD COLUMN IF NOT EXISTS seats bigint,
    -- The phases of the access; NULL where plan and status say everything.
    ADD COLUMN IF NOT EXISTS access json,
    -- With SUBSCRIPTIONS=any: further facts of the tenant's one state.
    ADD COLUMN IF NOT EXISTS billing_details json;

-- With SUBSCRIPTIONS=each: the state of each subscription, derived from its events.
CREATE TABLE IF NOT EXISTS subscriptions (
    tenant_id            text COLLATE "C" NOT NULL REFERENCES tenants ON DELETE CASCADE,
    id                   text COLLATE "C" NOT NULL,
    customer_id          text,
    created              bigint,
    status               text NOT NULL,
    plan                 text NOT NULL,
    quantity             bigint,
    items                json,
    current_period_start bigint,
    current_period_end   bigint,
    cancel_at            bigint,
    cancel_at_period_end boolean NOT NULL,
    trial_end            bigint,
    pause_behavior       text,
    past_due_since       bigint,
    ended_at             bigint,
    -- What the fold needs besides: the invoices that are past due, the end of the paid period if payments are paused,
    -- the status and time of the last subscription event, and the second of the newest event.
    unpaid_invoices      json,
    paid_until           bigint,
    provider_status      text,
    reported_at          bigint,
    tip_created          bigint NOT NULL,
    -- The second since which the subscription names another tenant.
    moved_at             bigint,
    PRIMARY KEY (tenant_id, id)
) WITH (fillfactor = 70);
-- An invoice finds its tenant by the subscription.
CREATE INDEX IF NOT EXISTS subscriptions_by_id ON subscriptions (id);
"""
# For invoices that wait for their subscription.
PARKED_INDEX = "billing_events_parked_by_subscription"
INDEX = f"{PARKED_INDEX} ON billing_events (subscription_id) WHERE outcome = 'parked' AND org_id IS NULL"


def upgrade() -> None:
    op.execute(STATEMENTS)
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = 0")  # no transaction waits behind it
        op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {PARKED_INDEX}")  # of an interrupted attempt
        op.execute(f"CREATE INDEX CONCURRENTLY {INDEX}")
