"""Subscriptions by themselves, the access that they give, and more facts of events.

Revision ID: 0013
"""

from alembic import op

revision = "0013"
down_revision = "0012"

# Columns without a default: no row is written anew. NULL in all of them is what an account of the release before means.
STATEMENTS = """
ALTER TABLE billing_events ADD COLUMN details jsonb;
ALTER TABLE tenants
    ADD COLUMN cancel_at bigint,
    ADD COLUMN ends_at bigint,
    ADD COLUMN seats bigint,
    -- The phases of the access; NULL where plan and status say everything.
    ADD COLUMN access json,
    -- With SUBSCRIPTIONS=any: further facts of the tenant's one state.
    ADD COLUMN billing_details json;

-- With SUBSCRIPTIONS=each: the state of each subscription, derived from its events.
CREATE TABLE subscriptions (
    tenant_id            text COLLATE "C" NOT NULL REFERENCES tenants ON DELETE CASCADE,
    id                   text COLLATE "C" NOT NULL,
    customer_id          text,
    created              bigint,
    status               text NOT NULL,
    plan                 text NOT NULL,
    quantity             bigint,
    items                jsonb,
    current_period_start bigint,
    current_period_end   bigint,
    cancel_at            bigint,
    cancel_at_period_end boolean NOT NULL,
    trial_end            bigint,
    pause_behavior       text,
    past_due_since       bigint,
    ended_at             bigint,
    -- What the fold needs besides: the invoices that are past due, the status and time of the last subscription event,
    -- and the checkpoint before the second of the newest event.
    unpaid_invoices      json,
    provider_status      text,
    reported_at          bigint,
    tip_created          bigint NOT NULL,
    tip_state            json,
    -- The second since which the subscription names another tenant.
    moved_at             bigint,
    PRIMARY KEY (tenant_id, id)
) WITH (fillfactor = 70);
CREATE INDEX subscriptions_by_id ON subscriptions (id);
-- An invoice of a customer without a link finds its tenant by the subscription.
CREATE INDEX tenants_subscription ON tenants (subscription_id) WHERE subscription_id IS NOT NULL;
CREATE INDEX tenants_other_subscriptions ON tenants USING gin ((other_subscriptions::jsonb) jsonb_path_ops)
    WHERE other_subscriptions IS NOT NULL;
CREATE INDEX billing_events_parked_by_subscription ON billing_events (subscription_id)
    WHERE outcome = 'parked' AND org_id IS NULL;
"""


def upgrade() -> None:
    op.execute(STATEMENTS)
